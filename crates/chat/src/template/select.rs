//! Which template a model has: a file of its own, one in `tokenizer_config.json`, or a default by architecture.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{TEMPLATE_BYTES_MAX, TemplateSource};
use crate::control_tokens::ControlTokens;

/// Largest `tokenizer_config.json` that is read; those that list some thousand tokens have 1 MB.
const CONFIG_BYTES_MAX: usize = 16 << 20;
/// The architecture whose messages have the harmony form.
pub(crate) const HARMONY_ARCHITECTURES: [&str; 2] = ["gpt_oss", "gpt-oss"];

const HARMONY: &str = include_str!("../defaults/harmony.jinja");
const PLAIN: &str = include_str!("../defaults/plain.jinja");

/// The variables of `tokenizer_config.json` that a template sees.
const VARIABLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    #[error("{file} has {bytes} bytes, more than {max}")]
    TooLarge { file: &'static str, bytes: usize, max: usize },
    #[error("tokenizer_config.json is not JSON")]
    Json(#[from] serde_json::Error),
    #[error("{file} is not UTF-8")]
    NotUtf8 { file: &'static str },
    #[error("chat_template of tokenizer_config.json has no template named \"default\"; it has {names}")]
    NoDefault { names: String },
    #[error("chat_template of tokenizer_config.json is neither a text nor a list of named texts")]
    WrongType,
}

/// Where a model's template comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `chat_template.jinja` of the model.
    File,
    /// `chat_template` in its `tokenizer_config.json`.
    TokenizerConfig,
    /// It has none; ours for its architecture.
    Default,
}

/// The templates of one model.
#[derive(Debug, Clone)]
pub struct TemplateSet {
    pub origin: Origin,
    /// `model_type` of `config.json`.
    pub architecture: String,
    default: Arc<TemplateSource>,
    tool_use: Option<Arc<TemplateSource>>,
}

impl TemplateSet {
    /// `chat_template.jinja` is stronger than `tokenizer_config.json`, as `transformers` has it. Both are the files'
    /// bytes, `None` where the model lacks them.
    pub fn select(
        architecture: &str,
        chat_template: Option<&[u8]>,
        tokenizer_config: Option<&[u8]>,
        control_tokens: ControlTokens,
    ) -> Result<TemplateSet, SelectError> {
        let config: Json = match tokenizer_config {
            Some(bytes) => {
                check_size("tokenizer_config.json", bytes.len(), CONFIG_BYTES_MAX)?;
                serde_json::from_slice(bytes)?
            }
            None => Json::Null,
        };
        let (origin, default, tool_use) = match (chat_template, config.get("chat_template")) {
            (Some(bytes), _) => {
                check_size("chat_template.jinja", bytes.len(), TEMPLATE_BYTES_MAX)?;
                let text = std::str::from_utf8(bytes)
                    .map_err(|_| SelectError::NotUtf8 { file: "chat_template.jinja" })?;
                (Origin::File, text.to_owned(), None)
            }
            (None, None | Some(Json::Null)) => (Origin::Default, default_text(architecture).to_owned(), None),
            (None, Some(Json::String(text))) => (Origin::TokenizerConfig, text.clone(), None),
            (None, Some(Json::Array(named))) => {
                let (default, tool_use) = named_templates(named)?;
                (Origin::TokenizerConfig, default, tool_use)
            }
            (None, Some(_)) => return Err(SelectError::WrongType),
        };
        for text in [Some(&default), tool_use.as_ref()].into_iter().flatten() {
            check_size("chat_template of tokenizer_config.json", text.len(), TEMPLATE_BYTES_MAX)?;
        }
        let variables = variables(&config);
        let source = |text: String| {
            Arc::new(TemplateSource {
                text,
                architecture: architecture.to_owned(),
                control_tokens: control_tokens.spellings().to_vec(),
                markers: control_tokens.markers().to_vec(),
                variables: variables.clone(),
            })
        };
        Ok(TemplateSet {
            origin,
            architecture: architecture.to_owned(),
            tool_use: tool_use.map(&source),
            default: source(default),
        })
    }

    /// The template for a request with or without tools.
    pub fn for_request(&self, has_tools: bool) -> &Arc<TemplateSource> {
        match &self.tool_use {
            Some(tool_use) if has_tools => tool_use,
            _ => &self.default,
        }
    }
}

fn check_size(file: &'static str, bytes: usize, max: usize) -> Result<(), SelectError> {
    if bytes > max {
        return Err(SelectError::TooLarge { file, bytes, max });
    }
    Ok(())
}

fn default_text(architecture: &str) -> &'static str {
    if HARMONY_ARCHITECTURES.contains(&architecture) { HARMONY } else { PLAIN }
}

fn named_templates(named: &[Json]) -> Result<(String, Option<String>), SelectError> {
    let mut by_name = BTreeMap::new();
    for entry in named {
        let name = entry.get("name").and_then(Json::as_str).ok_or(SelectError::WrongType)?;
        let text = entry.get("template").and_then(Json::as_str).ok_or(SelectError::WrongType)?;
        by_name.insert(name, text);
    }
    let default = by_name.get("default").ok_or_else(|| SelectError::NoDefault {
        names: by_name.keys().copied().collect::<Vec<_>>().join(", "),
    })?;
    Ok(((*default).to_owned(), by_name.get("tool_use").map(|text| (*text).to_owned())))
}

/// What a text that no template has written begins with, by the bytes of a model's `tokenizer_config.json`: its `bos_token`
/// where `add_bos_token` is true.
pub fn plain_beginning(tokenizer_config: &[u8]) -> Option<String> {
    let config: Json = serde_json::from_slice(tokenizer_config).ok()?;
    let adds = config.get("add_bos_token").and_then(Json::as_bool);
    adds.filter(|adds| *adds).and_then(|_| text(config.get("bos_token")?)).filter(|text| !text.is_empty())
}

/// A token is a text or an object with `content`.
fn text(token: &Json) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

fn variables(config: &Json) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> =
        VARIABLES.into_iter().filter_map(|name| Some((name.to_owned(), text(config.get(name)?)?))).collect();
    // Named tokens beyond the usual ones (`image_token`) are variables too.
    if let Some(Json::Object(extra)) = config.get("extra_special_tokens") {
        found.extend(extra.iter().filter_map(|(name, value)| Some((name.clone(), text(value)?))));
    }
    found
}

#[cfg(test)]
mod tests;
