//! The body of `POST /v1/chat/completions`, field by field.

use std::collections::BTreeMap;

use serde::Deserialize;
use utoipa::ToSchema;

use super::message::Message;
use super::tool::{Tool, ToolChoice};
use crate::stop::Stop;
use crate::stream_options::StreamOptions;

/// Every field of the OpenAI API, and behind them what vLLM adds for sampling. Which are honoured, accepted or refused is
/// said at each and listed in `docs/api.md`. Null is the same as absent.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// Id of a registered model.
    pub model: String,
    pub messages: Vec<Message>,
    /// Refused: there is no audio.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub audio: Option<serde_json::Value>,
    /// -2 to 2.
    #[serde(default)]
    pub frequency_penalty: Option<f64>,
    /// Refused: replaced by `tool_choice`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub function_call: Option<serde_json::Value>,
    /// Refused: replaced by `tools`.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub functions: Option<serde_json::Value>,
    /// Token id to -100 … 100.
    #[serde(default)]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    #[serde(default)]
    pub logprobs: Option<bool>,
    /// Tokens of the answer at most, reasoning included.
    #[serde(default)]
    pub max_completion_tokens: Option<i64>,
    /// The older name of `max_completion_tokens`.
    #[serde(default)]
    pub max_tokens: Option<i64>,
    /// Accepted: it labels stored answers, and none are stored. 16 pairs at most.
    #[serde(default)]
    pub metadata: Option<BTreeMap<String, String>>,
    /// `["text"]`; others are refused.
    #[serde(default)]
    pub modalities: Option<Vec<String>>,
    /// Choices, 1 to 16.
    #[serde(default)]
    pub n: Option<i64>,
    /// When false, the answer ends after its first call.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Refused: speculation by the caller is not supported.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub prediction: Option<serde_json::Value>,
    /// -2 to 2.
    #[serde(default)]
    pub presence_penalty: Option<f64>,
    /// Accepted: prompts are found in the cache by their content.
    #[serde(default)]
    pub prompt_cache_key: Option<String>,
    /// `in-memory`; others are refused.
    #[serde(default)]
    pub prompt_cache_retention: Option<String>,
    /// `low`, `medium` or `high`, handed to the model's template.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// What the content is held to: `text` (nothing), `json_object` or `json_schema`.
    #[serde(default)]
    pub response_format: Option<ResponseFormat>,
    /// Accepted: an opaque name of the caller's user.
    #[serde(default)]
    pub safety_identifier: Option<String>,
    #[serde(default)]
    pub seed: Option<i64>,
    /// `auto` or `default`; others are refused.
    #[serde(default)]
    pub service_tier: Option<String>,
    #[serde(default)]
    pub stop: Option<Stop>,
    /// `false`; true is refused.
    #[serde(default)]
    pub store: Option<bool>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    /// 0 to 2; 0 takes the most likely token.
    #[serde(default)]
    pub temperature: Option<f64>,
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    #[serde(default)]
    pub tools: Option<Vec<Tool>>,
    /// 0 to 20, with `logprobs`.
    #[serde(default)]
    pub top_logprobs: Option<i64>,
    /// 0 to 1.
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Accepted: an opaque name of the caller's user.
    #[serde(default)]
    pub user: Option<String>,
    /// `medium`; others are refused.
    #[serde(default)]
    pub verbosity: Option<String>,
    /// Refused: the server has no web search.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub web_search_options: Option<serde_json::Value>,

    /// Choose among the k most likely; 0 or -1: all.
    #[serde(default)]
    pub top_k: Option<i64>,
    /// 0 to 1: least probability, as a share of the best token's.
    #[serde(default)]
    pub min_p: Option<f64>,
    /// Above 0, to 10; 1: off.
    #[serde(default)]
    pub repetition_penalty: Option<f64>,
    /// End tokens are not chosen before this many tokens.
    #[serde(default)]
    pub min_tokens: Option<i64>,
    #[serde(default)]
    pub ignore_eos: Option<bool>,
    /// Token ids that end the answer besides the model's own.
    #[serde(default)]
    pub stop_token_ids: Option<Vec<i64>>,
    /// Variables for the model's template.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`; others are refused.
    pub r#type: String,
    #[serde(default)]
    pub json_schema: Option<JsonSchemaFormat>,
    /// Refused.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub grammar: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonSchemaFormat {
    /// Letters, digits, `_` and `-`, 64 at most.
    pub name: String,
    /// What it is for; models that are told of the schema are told this too.
    #[serde(default)]
    pub description: Option<String>,
    /// A JSON Schema. The content is held to it; a keyword that cannot be kept to is refused by name.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<serde_json::Map<String, serde_json::Value>>,
    /// Accepted: the content is held to the schema either way.
    #[serde(default)]
    pub strict: Option<bool>,
}
