//! Hello: each side says its version before anything else.

use std::fs::File;
use std::io::{Read as _, Write as _};

use engine_protocol::{HELLO_BYTES, Hello, PROTOCOL_VERSION};

use crate::error::WorkerError;
use crate::lifetime;
use crate::stdio::Pipes;

/// Says hello, reads the node's, and hands the pipes on if the two fit.
pub fn hello(mut pipes: Pipes) -> Result<(File, File), WorkerError> {
    let ours = Hello { protocol_version: PROTOCOL_VERSION, process_id: std::process::id() };
    pipes.output.write_all(&ours.to_bytes()).map_err(WorkerError::Write)?;
    let mut bytes = [0; HELLO_BYTES];
    pipes.input.read_exact(&mut bytes).map_err(WorkerError::HelloRead)?;
    let node = Hello::from_bytes(bytes)?;
    if node.protocol_version != PROTOCOL_VERSION {
        return Err(WorkerError::Version { node: node.protocol_version });
    }
    // The node may have died between starting this process and its asking to die with it.
    match lifetime::parent() {
        Some(parent) if parent != node.process_id => {
            Err(WorkerError::NodeGone { node: node.process_id, parent })
        }
        _ => Ok((pipes.input, pipes.output)),
    }
}
