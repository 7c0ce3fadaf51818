//! The node as a library: it joins routers, fetches the models they want, and runs them in worker processes.
//!
//! [`start`] opens no port: it dials every router it is told of and serves on those connections until its token is
//! cancelled.
//!
//! **Invariant:** a node never opens a plugin itself, and whatever happens to a worker happens to that worker only.
//! **Invariant:** prompts and answers are never logged.
#![forbid(unsafe_code)]

mod api_error;
mod clock;
mod config;
mod counters;
pub mod devices;
pub mod engines;
mod error;
mod identity;
mod link;
mod memory;
mod models;
mod node;
mod placement;
mod service;
mod worker;

pub use config::{Config, DeviceChoice, RouterAddress, WorkerProgram};
pub use error::NodeError;
pub use identity::machine_id;
pub use link::LinkState;
pub use memory::MemoryLimits;
pub use node::{Running, start};
pub use worker::WatchdogLimits;
