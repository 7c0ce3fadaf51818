//! What goes to the node: whole frames, each batch in one write, nothing held back.

use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine_protocol::{FrameError, LogLevel, SequenceId, Status, StatusCode, ToNode, encode_frame};

use crate::{exit_code, lifetime};

/// A log line longer than this is cut.
const LOG_BYTES_MAX: usize = 16 << 10;

/// Shared by all threads. Writing blocks while the pipe is full: the node's pace is the engine's.
pub struct Outbox {
    pipe: Mutex<Pipe>,
}

struct Pipe {
    file: File,
    /// Kept between messages, so that a step allocates nothing here.
    buffer: Vec<u8>,
}

impl Outbox {
    pub fn new(file: File) -> Outbox {
        Outbox { pipe: Mutex::new(Pipe { file, buffer: Vec::new() }) }
    }

    /// Sends one message. A node that cannot be written to is gone, and the process ends.
    pub fn send(&self, message: &ToNode) {
        let mut pipe = self.lock();
        let pipe = &mut *pipe;
        pipe.buffer.clear();
        if let Err(error) = encode_frame(message, &mut pipe.buffer) {
            pipe.buffer.clear();
            encode_frame(&instead_of(message, &error), &mut pipe.buffer)
                .expect("a status with a short message fits a frame");
        }
        if pipe.file.write_all(&pipe.buffer).is_err() {
            lifetime::end_without_flush(exit_code::NODE_GONE);
        }
    }

    pub fn log(&self, level: LogLevel, mut message: String, sequence: SequenceId) {
        if message.len() > LOG_BYTES_MAX {
            message.truncate(message.floor_char_boundary(LOG_BYTES_MAX));
            message.push('…');
        }
        self.send(&ToNode::Log { level, message, sequence });
    }

    fn lock(&self) -> MutexGuard<'_, Pipe> {
        // A panic ends the process, so a poisoned lock is never seen for long.
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a call whose real answer does not fit a frame.
fn instead_of(message: &ToNode, error: &FrameError) -> ToNode {
    let status = Status::new(StatusCode::Internal, "answer_too_long", error.to_string());
    match message {
        ToNode::Estimated { call, .. }
        | ToNode::Loaded { call, .. }
        | ToNode::Tokenized { call, .. }
        | ToNode::Stats { call, .. }
        | ToNode::Failed { call, .. } => ToNode::Failed { call: *call, status },
        ToNode::Opened(_) => ToNode::Failed { call: 0, status },
        ToNode::Events(_) | ToNode::StepFailed { .. } => ToNode::StepFailed { status },
        ToNode::Progress { .. } | ToNode::Log { .. } => {
            ToNode::Log { level: LogLevel::Error, message: status.to_string(), sequence: 0 }
        }
    }
}
