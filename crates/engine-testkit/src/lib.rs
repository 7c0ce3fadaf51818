//! For tests of engines and with engines: builds plugins, starts workers, and holds the one suite every engine passes.
//!
//! * [`build`]: engine folders and binaries, built once per process;
//! * [`worker`]: a worker process and a blocking client of its protocol, where every wait has a deadline;
//! * [`model`]: small model folders made on the spot;
//! * [`suite`]: the named cases of the conformance suite, run through a real worker process.
//!
//! The `engine-check` binary runs the suite for authors of engines.

#![forbid(unsafe_code)]

pub mod build;
pub mod manifest;
pub mod model;
pub mod suite;
pub mod worker;
