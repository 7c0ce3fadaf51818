//! `/v1/models`: what is ready to answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `GET /v1/models/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Model {
    pub id: String,
    /// Always `model`.
    pub object: String,
    /// Seconds since 1970 when it was registered.
    pub created: i64,
    /// The publisher: what comes before the slash of the id.
    pub owned_by: String,
    /// Longest sequence in tokens, prompt and answer, where a node has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
}

/// Answer of `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: String,
    pub data: Vec<Model>,
}
