//! The router as a library: registration, nodes, templates, dispatch and the public APIs.
//!
//! [`start`] opens the database, binds the listener and serves until its token is cancelled.
//!
//! **Invariant:** the router holds no weights and opens no plugin; it knows models by their manifests alone.
#![forbid(unsafe_code)]

mod config;
mod secret;
mod server;

pub use config::{Config, HubConfig, Limits};
pub use server::{Running, StartError, start};
