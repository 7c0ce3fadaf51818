//! Connected nodes and the engines they have found.

use node_api::{DeviceInfo, EngineState, EngineSummary, MemoryStatus};
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

/// Answer of `GET /api/engines`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineList {
    /// In order of id, version and node.
    pub engines: Vec<EngineOnNode>,
}

/// An engine plugin on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineOnNode {
    pub node_id: String,
    pub node_name: String,
    pub id: String,
    pub version: String,
    pub runtimes: Vec<String>,
    pub architectures: Vec<String>,
    pub formats: Vec<String>,
    /// Device kinds it can use.
    pub devices: Vec<String>,
    pub capabilities: Vec<String>,
    /// sha256 of the library, lower-case hex.
    pub sha256: String,
    #[serde(flatten)]
    pub state: EngineState,
}

impl EngineOnNode {
    pub fn new(node_id: &str, node_name: &str, engine: &EngineSummary) -> EngineOnNode {
        EngineOnNode {
            node_id: node_id.to_owned(),
            node_name: node_name.to_owned(),
            id: engine.id.clone(),
            version: engine.version.clone(),
            runtimes: engine.runtimes.clone(),
            architectures: engine.architectures.clone(),
            formats: engine.formats.clone(),
            devices: engine.devices.clone(),
            capabilities: engine.capabilities.clone(),
            sha256: engine.sha256.clone(),
            state: engine.state.clone(),
        }
    }
}
