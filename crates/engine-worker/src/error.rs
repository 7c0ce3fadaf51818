//! Why a worker ends before it was asked to.

use std::io;

use engine_protocol::{FrameError, PROTOCOL_VERSION};

use crate::exit_code;

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the pipes it was started with cannot be moved away from stdin and stdout")]
    Pipes(#[source] io::Error),
    #[error("no thread can be started for the node's messages")]
    Thread(#[source] io::Error),
    #[error("the node's hello could not be read; is this process started by a node?")]
    HelloRead(#[source] io::Error),
    #[error("the node cannot be written to")]
    Write(#[source] io::Error),
    #[error("what the node sent cannot be understood")]
    Frame(#[from] FrameError),
    #[error(
        "this worker speaks protocol {PROTOCOL_VERSION} and its node {node}\nhint: node and worker must come from \
         the same build of llm-router; restart the node after an upgrade"
    )]
    Version { node: u32 },
    #[error("the node that started it (process {node}) is gone; its parent is process {parent}")]
    NodeGone { node: u32, parent: u32 },
    #[error("the device can be used no more by this process: {0}")]
    DeviceFailed(String),
}

impl WorkerError {
    pub fn exit_code(&self) -> u8 {
        match self {
            WorkerError::Pipes(_) | WorkerError::Thread(_) | WorkerError::Write(_) => exit_code::PIPES,
            WorkerError::HelloRead(_) | WorkerError::Frame(_) | WorkerError::Version { .. } => {
                exit_code::PROTOCOL
            }
            WorkerError::NodeGone { .. } => exit_code::NODE_GONE,
            WorkerError::DeviceFailed(_) => exit_code::DEVICE,
        }
    }
}
