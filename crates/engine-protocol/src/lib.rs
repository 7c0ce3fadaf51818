//! Messages between a node and an engine worker, and their framing. No IO.
//!
//! The node starts the worker with two pipes. Either side begins with [`Hello`] in a fixed layout that never changes,
//! so that any two versions can tell each other apart; after it come frames: a little-endian `u32` length and that many
//! bytes of [postcard](https://postcard.jamesmunns.com/wire-format) encoding of [`ToWorker`] or [`ToNode`].
//!
//! **Invariant:** one frame is at most [`FRAME_BYTES_MAX`]; a longer one ends the connection, it is never allocated.
#![forbid(unsafe_code)]

mod environment;
mod frame;
mod message;
mod status;

pub use environment::{WORKER_ENVIRONMENT, is_worker_variable};
pub use frame::{FRAME_BYTES_MAX, FrameError, FrameReader, HELLO_BYTES, Hello, encode_frame};
pub use message::*;

/// Raised with every change of a message. Node and worker must agree exactly: they are one binary.
pub const PROTOCOL_VERSION: u32 = 4;
