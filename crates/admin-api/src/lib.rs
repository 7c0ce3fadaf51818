//! Requests and answers of the router's own API under `/api`, for the router that serves it and the tools that call it.
//!
//! Errors have the body of the OpenAI API (`openai_api::ErrorBody`), here as there.
//!
//! **Invariant:** only types; nothing here opens a connection or reads a clock.
#![forbid(unsafe_code)]

pub mod engines;
pub mod loaded;
pub mod models;
pub mod nodes;

pub use engines::*;
pub use loaded::*;
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
    pub status: HealthState,
    /// Why it is not ready, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Nodes connected now; for `/ready` those that take requests.
    pub nodes: u32,
    /// Models that are ready on some node.
    pub models_ready: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    Ok,
    /// It answers, and cannot serve requests.
    NotReady,
    /// It was told to end.
    Draining,
}
