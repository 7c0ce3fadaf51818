//! The answer of `POST /v1/embeddings`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EmbeddingList {
    /// Always `list`.
    pub object: String,
    /// In the order of the inputs.
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: EmbeddingUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: String,
    /// Of the input.
    pub index: u32,
    pub embedding: Numbers,
}

/// Of length 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Numbers {
    Float(Vec<f32>),
    /// Little-endian f32.
    Base64(String),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Of all inputs together, with what the model puts around a text.
    pub prompt_tokens: u32,
    /// The same.
    pub total_tokens: u32,
}
