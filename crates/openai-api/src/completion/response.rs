//! Answers of `POST /v1/completions`; the chunks of a stream have the same form.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::usage::Usage;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Completion {
    /// `cmpl-…`
    pub id: String,
    /// Always `text_completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: i64,
    pub model: String,
    pub choices: Vec<CompletionChoice>,
    pub system_fingerprint: Option<String>,
    /// In a stream only with `stream_options.include_usage`: null in every chunk but the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    /// The choices of the first prompt come first.
    pub index: u32,
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null while a stream goes on.
    pub finish_reason: Option<String>,
}

/// Lists of the same length, one entry a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<Option<f32>>,
    /// Null when no alternatives were asked for.
    pub top_logprobs: Option<Vec<BTreeMap<String, f32>>>,
    /// Characters before the token, in prompt and answer together as far as the answer shows the prompt.
    pub text_offset: Vec<u32>,
}
