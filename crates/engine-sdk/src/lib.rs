//! The comfortable side of the engine ABI, for engines in Rust.
//!
//! An engine implements [`Engine`] and [`Model`] and calls [`export_engine!`]. The rest of a plugin is here: the C table
//! ([`abi`]), the loop over a loaded model ([`Runner`]), which sequences are in a step ([`scheduler`]), where their keys and
//! values are ([`kv`]), which token comes next ([`Sampler`]), and text to tokens and back ([`Tokenizer`]).
//!
//! **Invariant:** unsafe code lives in `abi` alone, and no panic of an engine leaves it. The scheduler knows numbers only;
//! the sampler is a function of logits, seed and position, so that another device can reproduce it.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "the C boundary: pointers in and out of the host")]
pub mod abi;
mod batch;
mod begin_with;
pub mod cards;
mod constraint;
mod embedding;
mod engine;
mod event;
mod export;
pub mod kv;
pub mod log;
mod progress;
pub mod reason;
mod runner;
mod sampler;
mod sampling;
pub mod scheduler;
mod status;
mod stop;
#[cfg(test)]
mod testing;
mod tokenize;
mod tokenizer;
mod types;
mod version_stamp;

pub use batch::{Batch, Logits, Row, Slot};
pub use constraint::Constraint;
pub use engine::{Engine, Model};
pub use event::{Event, EventKind, FinishReason};
pub use grammar::TokenSet;
pub use kv::{BlockId, BlockTable, KvGroup, KvLayout, KvMemory};
pub use log::LogLevel;
pub use progress::Progress;
pub use runner::{Counters, Prompt, Runner, Task};
pub use sampler::{Change, Choice, Draw, History, Sampler, TokenLogprob, philox};
pub use sampling::{
    BEGIN_WITH_BYTES_MAX, BEGIN_WITH_MAX, LOGPROBS_MAX, STOP_BYTES_MAX, STOP_MAX, STOP_TOKENS_MAX, Sampling,
};
pub use scheduler::SequenceId;
pub use status::{Status, StatusCode};
pub use tokenize::{Piece, Tokenize};
pub use tokenizer::Tokenizer;
pub use types::{
    Device, DeviceBytes, DeviceNeed, EMBEDDING_SIZE_MAX, EmbeddingSpec, EngineInfo, Estimate, MemoryUse,
    ModelFile, ModelFiles, ModelSpec, Settings,
};
pub use version_stamp::VersionStamp;
