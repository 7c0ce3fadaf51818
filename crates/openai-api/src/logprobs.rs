//! Log probabilities in the form of chat completions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry a token of `content`.
    pub content: Option<Vec<TokenLogprob>>,
    /// Always null: refusals are not told apart from content.
    #[schema(value_type = Option<Vec<TokenLogprob>>)]
    pub refusal: Option<Vec<TokenLogprob>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenLogprob {
    /// Bytes that are no whole UTF-8 become U+FFFD here; `bytes` has them.
    pub token: String,
    /// Natural logarithm.
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TopLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
}
