//! Reads the `config.json` of an echo model.

use engine_sdk::{ModelFiles, Status, reason};
use serde::Deserialize;

const CONFIG: &str = "config.json";
const CONFIG_BYTES_MAX: u64 = 1 << 20;
const CONTEXT_DEFAULT: u32 = 4096;
const CONTEXT_MAX: u32 = 1 << 20;

#[derive(Deserialize)]
struct ConfigJson {
    model_type: String,
    #[serde(default = "context_default")]
    max_position_embeddings: u32,
}

fn context_default() -> u32 {
    CONTEXT_DEFAULT
}

pub struct Config {
    /// Tokens.
    pub context_length_max: u32,
}

impl Config {
    pub fn read(files: &ModelFiles) -> Result<Config, Status> {
        if files.architecture != "echo" {
            return Err(Status::unsupported(
                reason::UNSUPPORTED_MODEL,
                format!(
                    "model {} has the architecture {}, this engine runs echo only",
                    files.id, files.architecture
                ),
            ));
        }
        let (path, text) = (files.path(CONFIG)?, files.read_small(CONFIG, CONFIG_BYTES_MAX)?);
        let corrupt =
            |what: String| Status::model_corrupt(reason::FILE_CORRUPT, format!("{}: {what}", path.display()));
        let config: ConfigJson = serde_json::from_slice(&text).map_err(|error| corrupt(error.to_string()))?;
        if config.model_type != "echo" {
            return Err(corrupt(format!("model_type is {:?} and not \"echo\"", config.model_type)));
        }
        if !(2..=CONTEXT_MAX).contains(&config.max_position_embeddings) {
            return Err(corrupt(format!(
                "max_position_embeddings is {} and not between 2 and {CONTEXT_MAX}",
                config.max_position_embeddings
            )));
        }
        Ok(Config { context_length_max: config.max_position_embeddings })
    }
}
