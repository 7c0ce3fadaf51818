//! Requests and answers of the router's own API under `/api`, for the router that serves it and the tools that call it.
//!
//! Errors have the body of the OpenAI API (`openai_api::ErrorBody`), here as there.
//!
//! **Invariant:** only types; nothing here opens a connection or reads a clock.
#![forbid(unsafe_code)]

pub mod models;
pub mod nodes;

pub use models::*;
pub use nodes::*;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `GET /api/version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Always `llm-router`, so that a tool knows what it found behind a port.
    pub name: String,
    /// Of the binary.
    pub version: String,
    /// Of the contract between router and node.
    pub node_protocol_version: u32,
    /// Nodes that have only a CPU are taken.
    pub allow_cpu: bool,
    /// Seconds since this router started.
    pub uptime_seconds: u64,
}

/// Answer of `GET /health` and `GET /ready`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or `draining` while the router ends.
    pub status: String,
    /// Nodes connected now.
    pub nodes: u32,
    /// Models that are ready on some node.
    pub models_ready: u32,
}
