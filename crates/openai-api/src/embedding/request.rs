//! The body of `POST /v1/embeddings`, field by field.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::completion::PromptInput;

/// Every field of the OpenAI API. Null is the same as absent.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    /// Id of a registered model.
    pub model: String,
    /// One text or up to 2048, or token ids.
    pub input: PromptInput,
    /// As many numbers as the model's embeddings have, or absent: they are not shortened.
    #[serde(default)]
    pub dimensions: Option<i64>,
    /// `float` (default), or `base64` of the numbers as little-endian f32.
    #[serde(default)]
    pub encoding_format: Option<String>,
    /// Accepted: an opaque name of the caller's user.
    #[serde(default)]
    pub user: Option<String>,
}
