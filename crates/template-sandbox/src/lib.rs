//! Renders chat templates of strangers, and checks their schemas, in a process of its own with a deadline and a memory limit.
//!
//! [`TemplateSandbox`] is the router's side: a few warm children, each asked for one prompt at a time, killed and replaced
//! when it overruns. [`worker_main`] is the child's side, started as `llm-router template-worker`. [`CappedAllocator`] is
//! the global allocator of the binary: it costs one relaxed load per allocation until the child arms it.
//!
//! What a template and the schemas beside it can cost: 100 ms of processor time from when the child has read the request (a busy machine may take longer
//! to give them, up to a second), 64 MiB of private memory, and the child.

#![deny(unsafe_code)]

mod capped_allocator;
mod cpu_time;
mod protocol;
mod sandbox;
mod worker;

pub use capped_allocator::CappedAllocator;
pub use protocol::Schema;
pub use sandbox::{SandboxError, TemplateSandbox};
pub use worker::worker_main;
