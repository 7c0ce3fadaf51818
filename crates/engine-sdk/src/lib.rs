//! The comfortable side of the engine ABI, for engines in Rust.
//!
//! An engine implements [`Engine`] and [`Model`] and exports itself; scheduling, tokenizing,
//! sampling and the C table come from here.

mod batch;
mod engine;
mod progress;
pub mod reason;
mod sampler;
mod sampling;
mod status;
mod tokenize;
mod tokenizer;
mod types;

pub use batch::{Batch, Logits, Row, Slot};
pub use engine::{Engine, Model};
pub use progress::Progress;
pub use sampler::{Choice, History, Sampler, TokenLogprob, philox};
pub use sampling::{LOGPROBS_MAX, STOP_BYTES_MAX, STOP_MAX, STOP_TOKENS_MAX, Sampling};
pub use status::{Status, StatusCode};
pub use tokenize::{Piece, Tokenize};
pub use tokenizer::Tokenizer;
pub use types::{
    Device, DeviceBytes, DeviceNeed, EngineInfo, Estimate, MemoryUse, ModelFile, ModelFiles, ModelSpec,
    Settings,
};
