//! Which models are in memory where, and asking for one to be there or not.

use node_api::ReplicaStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CommandError, ModelOnNode};

/// Answer of `GET /api/ps`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoadedList {
    /// In order of model, node and worker.
    pub models: Vec<LoadedModel>,
}

/// A model in a worker of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoadedModel {
    pub model: String,
    pub node_id: String,
    pub node_name: String,
    /// As it was set for the model: seconds without a request after which it leaves; negative: never. Absent: the node's
    /// own setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<i64>,
    #[serde(flatten)]
    pub replica: ReplicaStatus,
}

/// Body of `POST /api/models/{id}/load` and `…/unload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPlace {
    /// Id or name of a node. Absent: to load, the one that has it or else has the most free memory; to unload, every node
    /// that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Answer of the two: what each node made of it. It is an error when no node did it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelAnswers {
    pub id: String,
    /// In order of node name; none: there was nothing to do.
    pub nodes: Vec<ModelAnswer>,
}

/// One of `model` and `error` is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelAnswer {
    pub node_id: String,
    pub node_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelOnNode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CommandError>,
}
