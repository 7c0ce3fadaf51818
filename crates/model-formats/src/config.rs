//! Reads the parts of `config.json` that every model has, and tells which engine runtimes can run it.

use serde_json::{Map, Value};

/// Longest `config.json`, in bytes. The published ones have a few kB.
pub const CONFIG_BYTES_MAX: usize = 4 << 20;

/// One architecture that some runtime is known for.
struct Known {
    /// The name the product uses.
    architecture: &'static str,
    /// Other spellings of `model_type`.
    model_types: &'static [&'static str],
    /// Spellings in `architectures`.
    classes: &'static [&'static str],
    /// Best first.
    runtimes: &'static [&'static str],
}

const KNOWN: [Known; 2] = [
    Known {
        architecture: "gpt_oss",
        model_types: &["gpt_oss", "gpt-oss", "gptoss"],
        classes: &["GptOssForCausalLM", "GptOssModel"],
        runtimes: &["gpt-oss"],
    },
    Known {
        architecture: "echo",
        model_types: &["echo"],
        classes: &["EchoForCausalLM"],
        runtimes: &["echo"],
    },
];

/// What a `config.json` says about how to run the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `gpt_oss` for every spelling of it; of unknown models their own `model_type` (or first of `architectures`).
    pub architecture: String,
    /// Engine runtimes for it, best first. Empty: none is known.
    pub runtimes: Vec<String>,
    /// `max_position_embeddings`, in tokens.
    pub context_length_max: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{file}: {bytes} bytes; at most {CONFIG_BYTES_MAX} are read")]
    TooLarge { file: String, bytes: usize },
    #[error("{file}: not a JSON object")]
    NotJson { file: String, source: serde_json::Error },
    #[error("{file}: neither model_type nor architectures says what the model is")]
    NoArchitecture { file: String },
    #[error("{file}: field {field}: {problem}")]
    Field { file: String, field: String, problem: String },
    #[error("{file}: model_type {model_type:?} and architectures {class:?} name different models")]
    Contradiction { file: String, model_type: String, class: String },
}

/// Reads `config.json` (`bytes`) far enough to choose an engine.
///
/// # Errors
/// See [`ConfigError`]. An architecture nobody knows is no error: its `runtimes` are empty.
pub fn detect_runtime(bytes: &[u8]) -> Result<Config, ConfigError> {
    let fields = Fields::parse("config.json", bytes)?;
    let model_type = fields.text("model_type")?.filter(|t| !t.is_empty());
    let classes = fields.texts("architectures")?;
    let by_type = model_type.and_then(|t| known(|k| k.model_types, t));
    let by_class = classes.iter().find_map(|c| known(|k| k.classes, c).map(|k| (k, *c)));
    if let (Some(model_type), Some((of_class, class))) = (model_type, by_class)
        && by_type.is_none_or(|k| k.architecture != of_class.architecture)
    {
        let (model_type, class) = (model_type.to_owned(), class.to_owned());
        return Err(ConfigError::Contradiction { file: "config.json".to_owned(), model_type, class });
    }
    let known = by_type.or(by_class.map(|(k, _)| k));
    let architecture = match (known, model_type.or(classes.first().copied())) {
        (Some(known), _) => known.architecture.to_owned(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => return Err(ConfigError::NoArchitecture { file: "config.json".to_owned() }),
    };
    Ok(Config {
        architecture,
        runtimes: known.map_or(&[][..], |k| k.runtimes).iter().map(|r| (*r).to_owned()).collect(),
        context_length_max: fields.number("max_position_embeddings", 1, u32::MAX)?,
    })
}

fn known(spellings: impl Fn(&Known) -> &'static [&'static str], name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|k| spellings(k).iter().any(|s| s.eq_ignore_ascii_case(name)))
}

/// A JSON object whose fields are read with checks; errors name file and field. `null` counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    file: String,
    /// `rope_scaling.` inside a nested object.
    prefix: String,
    object: Map<String, Value>,
}

impl Fields {
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Fields, ConfigError> {
        if bytes.len() > CONFIG_BYTES_MAX {
            return Err(ConfigError::TooLarge { file: file.to_owned(), bytes: bytes.len() });
        }
        let object = serde_json::from_slice(bytes)
            .map_err(|source| ConfigError::NotJson { file: file.to_owned(), source })?;
        Ok(Fields { file: file.to_owned(), prefix: String::new(), object })
    }

    pub(crate) fn error(&self, field: &str, problem: impl Into<String>) -> ConfigError {
        let field = format!("{}{field}", self.prefix);
        ConfigError::Field { file: self.file.clone(), field, problem: problem.into() }
    }

    pub(crate) fn value(&self, field: &str) -> Option<&Value> {
        self.object.get(field).filter(|v| !v.is_null())
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&str>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.error(field, "is not a string"))
    }

    pub(crate) fn texts(&self, field: &str) -> Result<Vec<&str>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(Vec::new()) };
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        list.ok_or_else(|| self.error(field, "is not a list of strings"))
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.error(field, "is neither true nor false"))
    }

    /// A whole number from `min` to `max`.
    pub(crate) fn number(&self, field: &str, min: u32, max: u32) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (min..=max).contains(n));
        number
            .map(Some)
            .ok_or_else(|| self.error(field, format!("is {value}, not a whole number from {min} to {max}")))
    }

    pub(crate) fn required_number(&self, field: &str, min: u32, max: u32) -> Result<u32, ConfigError> {
        self.number(field, min, max)?.ok_or_else(|| self.error(field, "is missing"))
    }

    /// A finite number from `min` to `max`.
    pub(crate) fn real(&self, field: &str, min: f64, max: f64) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let number = value.as_f64().filter(|n| n.is_finite() && (min..=max).contains(n));
        number
            .map(Some)
            .ok_or_else(|| self.error(field, format!("is {value}, not a number from {min} to {max}")))
    }

    pub(crate) fn object(&self, field: &str) -> Result<Option<Fields>, ConfigError> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let object = value.as_object().ok_or_else(|| self.error(field, "is not an object"))?.clone();
        Ok(Some(Fields { file: self.file.clone(), prefix: format!("{}{field}.", self.prefix), object }))
    }
}

#[cfg(test)]
mod tests;
