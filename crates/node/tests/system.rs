//! A whole node, with real workers and the echo engine, against a router that is played by the tests.
#![expect(clippy::unwrap_used, reason = "tests, and helpers that only they use")]

#[path = "system/deaths.rs"]
mod deaths;
#[path = "system/engines.rs"]
mod engines;
#[path = "system/fault.rs"]
mod fault;
#[path = "system/files.rs"]
mod files;
#[path = "system/joining.rs"]
mod joining;
#[path = "system/lifecycle.rs"]
mod lifecycle;
#[path = "system/memory.rs"]
mod memory;
#[path = "system/requests.rs"]
mod requests;
#[path = "system/support.rs"]
mod support;
#[path = "system/watchdog.rs"]
mod watchdog;
#[path = "system/workers.rs"]
mod workers;
