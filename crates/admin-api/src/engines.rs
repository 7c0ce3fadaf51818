//! Engine plugins on the nodes, and what an operator can ask of them.

use node_api::{EngineReply, EngineSummary};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CommandError, LoadedModel};

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
    #[serde(flatten)]
    pub engine: EngineSummary,
}

/// Answer of `GET /api/engines/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineDetails {
    pub id: String,
    /// Every version on every node, in order of version and node.
    pub engines: Vec<EngineOnNode>,
    /// Models that are in workers of it now.
    pub loaded: Vec<LoadedModel>,
}

/// Body of `POST /api/engines/reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReloadEngines {
    /// Give the models of this engine new workers, also where its version is the same. Absent: only where something changed
    /// in the nodes' engine folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Id or name of a node; absent: all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Body of `POST /api/engines/{id}/disable` and `…/enable`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchEngine {
    /// Absent: every version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Id or name of a node; absent: all nodes that have the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Answer of the three: what each node made of it. It is an error when no node did it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineAnswers {
    /// In order of node name.
    pub nodes: Vec<EngineAnswer>,
}

/// One of `reply` and `error` is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineAnswer {
    pub node_id: String,
    pub node_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<EngineReply>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CommandError>,
}
