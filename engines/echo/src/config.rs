//! Reads the `config.json` of an echo model.

use std::fs::File;
use std::io::Read as _;

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
        let path = files.path(CONFIG)?;
        let mut text = Vec::new();
        File::open(path).and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut text)).map_err(
            |error| {
                let message = format!("{} cannot be read: {error}", path.display());
                Status::load_failed(reason::FILE_UNREADABLE, message)
            },
        )?;
        let corrupt =
            |what: String| Status::model_corrupt(reason::FILE_CORRUPT, format!("{}: {what}", path.display()));
        if text.len() as u64 > CONFIG_BYTES_MAX {
            return Err(corrupt(format!("over {CONFIG_BYTES_MAX} bytes")));
        }
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
