//! A model hub on this machine that answers as the Hugging Face hub does, for tests and the demo.
//!
//! It listens on two origins: the hub itself and the content network to which the hub redirects large files. What the
//! content network must never see (the caller's token) and what a download has to survive (cuts, stalls, wrong bytes,
//! refusals) can therefore be shown over real sockets. [`FixtureHub::start`] returns a handle with the addresses, the
//! requests seen so far and the switchboard of faults.
//!
//! **Invariant:** nothing here is written to disk, and no name outside the repositories it was given is read.

#![forbid(unsafe_code)]

mod answer;
mod api;
mod cdn;
mod content;
mod fault;
mod hub_path;
mod repo;
mod resolve;
mod server;

pub use fault::Fault;
pub use repo::{LFS_SIZE_MIN, Repo, RepoError};
pub use server::{FixtureHub, Options, Origin, SeenRequest};
