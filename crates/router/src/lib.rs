//! The router as a library: registration, nodes, templates, dispatch and the public APIs.
//!
//! [`start`] opens the database, binds the listener and serves until its token is cancelled.
//!
//! **Invariant:** the router holds no weights and opens no plugin; it knows models by their manifests alone.
#![forbid(unsafe_code)]

mod api;
mod app;
mod body;
mod caller;
mod cluster;
mod config;
mod error;
mod generate;
mod guard;
mod link;
mod metrics;
mod openapi;
mod queued;
mod register;
mod routes;
mod secret;
mod serve;
mod server;
mod sse;
mod store;
mod templates;
mod text;
mod v1;

pub use config::{Config, DEFAULT_LISTEN, Limits};
pub use model_store::HubConfig;
pub use openapi::document as openapi_document;
pub use server::{Running, StartError, start};
