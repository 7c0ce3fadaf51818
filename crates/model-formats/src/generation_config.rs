//! Reads the end tokens from `generation_config.json`.

use crate::config::{ConfigError, Fields};

/// What is wrong with a `generation_config.json`.
pub type GenerationConfigError = ConfigError;

/// End tokens at most.
pub const END_TOKENS_MAX: usize = 64;

/// The parts of `generation_config.json` that an engine has to honour.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GenerationConfig {
    /// `eos_token_id`, one or several; each ends a reply.
    pub end_tokens: Vec<u32>,
}

impl GenerationConfig {
    /// # Errors
    /// Not a JSON object, or an `eos_token_id` that is neither a token id nor a list of them.
    pub fn parse(bytes: &[u8]) -> Result<GenerationConfig, GenerationConfigError> {
        let fields = Fields::parse("generation_config.json", bytes)?;
        Ok(GenerationConfig { end_tokens: end_tokens(&fields)? })
    }
}

/// `eos_token_id` of any config: a number, a list of numbers, or absent. Repeated ids are kept once.
pub(crate) fn end_tokens(fields: &Fields) -> Result<Vec<u32>, ConfigError> {
    const FIELD: &str = "eos_token_id";
    let Some(value) = fields.value(FIELD) else { return Ok(Vec::new()) };
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    if list.len() > END_TOKENS_MAX {
        return Err(fields.error(FIELD, format!("has {} ids; at most {END_TOKENS_MAX} are read", list.len())));
    }
    let mut ids = Vec::new();
    for value in list {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| fields.error(FIELD, format!("{value} is not a token id")))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests;
