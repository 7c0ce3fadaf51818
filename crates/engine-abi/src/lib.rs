//! The engine ABI as Rust sees it: a `repr(C)` mirror of `include/engine/llmr_engine.h`, field by field.
//!
//! The header is the specification; what a function promises is said there and only there. `tests/layout.rs` compiles
//! a C program against the header and compares every size, offset and constant with this crate.
//!
//! **Invariant:** no function that does anything. Whoever calls a table's pointers (the worker) or provides them
//! (`engine-sdk`) carries its own `unsafe`.

#![forbid(unsafe_code)]

mod constants;
mod engine;
mod model;
mod sequence;
mod status;
mod value;

pub use constants::*;
pub use engine::{Engine, EngineApi, EntryFn, Estimate, Host, Info, LogLevel, Progress};
pub use model::{Device, DeviceNeed, Devices, Loaded, Model, Settings, Tokens};
pub use sequence::{
    ConstraintKind, Event, EventKind, EventSink, FinishReason, PromptKind, Sampling, Stats, Submit, Task,
};
pub use status::{Code, Status};
pub use value::{Bytes, DeviceBytes, File, Range, Str, TokenBias, TokenLogprob};
