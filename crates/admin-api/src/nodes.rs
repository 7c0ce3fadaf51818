//! Connected nodes: what they have, how they are, and why one did not do what it was told.

use node_api::{Alert, Counters, DeviceInfo, EngineSummary, MemoryStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `GET /api/nodes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// In order of name, then id.
    pub nodes: Vec<Node>,
}

/// A connected node. One that has been gone is not listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    pub id: String,
    pub name: String,
    pub version: String,
    pub os: String,
    pub arch: String,
    pub state: NodeState,
    /// It serves with a CPU only.
    pub cpu_only: bool,
    /// It runs on the router's machine, so local folders are offered to it.
    pub same_machine: bool,
    pub devices: Vec<DeviceInfo>,
    pub engines: Vec<EngineSummary>,
    pub memory: MemoryStatus,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<Alert>,
    #[serde(default)]
    pub counters: Counters,
    /// Seconds since 1970.
    pub connected_since: i64,
    /// Milliseconds since its last heartbeat.
    pub last_heard_ms: u64,
    pub requests_running: u32,
    pub requests_waiting: u32,
    /// Models that are ready or loaded on it.
    pub models_ready: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Connected; its first status is still on its way.
    Joining,
    Connected,
    /// It ends and takes no new requests.
    Draining,
}

/// Why a node did not do what an operator asked of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommandError {
    /// HTTP status it would have had alone.
    pub status: u16,
    /// Stable, snake_case.
    pub code: String,
    pub message: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
