//! The body of `POST /v1/completions`, field by field.

use std::collections::BTreeMap;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::stop::Stop;
use crate::stream_options::StreamOptions;

/// Every field of the OpenAI API, and behind them what vLLM adds for sampling. Null is the same as absent.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// Id of a registered model.
    pub model: String,
    pub prompt: PromptInput,
    /// The same as `n`; more is refused: answers are not ranked.
    #[serde(default)]
    pub best_of: Option<i64>,
    /// Begin the answer with the prompt. Only for prompts of text and without `logprobs`.
    #[serde(default)]
    pub echo: Option<bool>,
    #[serde(default)]
    pub frequency_penalty: Option<f64>,
    #[serde(default)]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// 0 to 5.
    #[serde(default)]
    pub logprobs: Option<i64>,
    /// 16 when absent, as in the OpenAI API.
    #[serde(default)]
    pub max_tokens: Option<i64>,
    /// Choices for each prompt.
    #[serde(default)]
    pub n: Option<i64>,
    #[serde(default)]
    pub presence_penalty: Option<f64>,
    #[serde(default)]
    pub seed: Option<i64>,
    #[serde(default)]
    pub stop: Option<Stop>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub stream_options: Option<StreamOptions>,
    /// Refused unless empty: text is not inserted.
    #[serde(default)]
    pub suffix: Option<String>,
    #[serde(default)]
    pub temperature: Option<f64>,
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Accepted: an opaque name of the caller's user.
    #[serde(default)]
    pub user: Option<String>,

    #[serde(default)]
    pub top_k: Option<i64>,
    #[serde(default)]
    pub min_p: Option<f64>,
    #[serde(default)]
    pub repetition_penalty: Option<f64>,
    #[serde(default)]
    pub min_tokens: Option<i64>,
    #[serde(default)]
    pub ignore_eos: Option<bool>,
    #[serde(default)]
    pub stop_token_ids: Option<Vec<i64>>,
}

/// One prompt or several, as text or as token ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PromptInput {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl<'de> Deserialize<'de> for PromptInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = PromptInput;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a list of strings, a list of token ids or a list of such lists")
            }

            fn visit_str<E>(self, text: &str) -> Result<PromptInput, E> {
                Ok(PromptInput::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptInput, A::Error> {
                // The first element decides what the list is of; an empty list is refused by the checks.
                let Some(first) = seq.next_element::<Element>()? else {
                    return Ok(PromptInput::Texts(Vec::new()));
                };
                match first {
                    Element::Text(first) => rest(first, seq).map(PromptInput::Texts),
                    Element::Token(first) => rest(first, seq).map(PromptInput::Tokens),
                    Element::Tokens(first) => rest(first, seq).map(PromptInput::TokenLists),
                }
            }
        }
        deserializer.deserialize_any(Form)
    }
}

fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(first: T, mut seq: A) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = seq.next_element()? {
        all.push(next);
    }
    Ok(all)
}

enum Element {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Element;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
                u32::try_from(id).map(Element::Token).map_err(|_| E::custom(format!("{id} is no token id")))
            }

            fn visit_i64<E: de::Error>(self, id: i64) -> Result<Element, E> {
                Err(E::custom(format!("{id} is no token id")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element()? {
                    ids.push(id);
                }
                Ok(Element::Tokens(ids))
            }
        }
        deserializer.deserialize_any(Form)
    }
}
