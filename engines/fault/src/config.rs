//! A fault model's `config.json`, and the model's options over it.

use engine_sdk::{ModelFiles, Settings, Status, reason};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::plan::{Fault, Plan};

const CONFIG: &str = "config.json";
const CONFIG_BYTES_MAX: u64 = 1 << 20;
const CONTEXT_DEFAULT: u32 = 4096;
const CONTEXT_MAX: u32 = 1 << 20;
const KV_BYTES_PER_TOKEN_DEFAULT: u64 = size_of::<u32>() as u64;
/// Every key of `config.json`'s `fault` and of the options.
const KEYS: &[&str] = &[
    "faults",
    "repeat",
    "tokens_per_second",
    "prefill_tokens_per_second",
    "load_ms",
    "unload_ms",
    "weights_bytes",
    "workspace_bytes",
    "per_sequence_bytes",
    "kv_bytes_per_token",
];

/// How the model behaves where no rule strikes, and the rules.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    pub faults: Vec<Fault>,
    /// The answer is the prompt so many times.
    pub repeat: u32,
    /// Of one sequence; 0: as fast as it goes.
    pub tokens_per_second: f64,
    /// 0: as fast as it goes.
    pub prefill_tokens_per_second: f64,
    /// A load takes so long, and tells how far it is.
    pub load_ms: u64,
    /// The end of the model takes so long.
    pub unload_ms: u64,
    /// Taken on the CPU, claimed on simulated devices; spread evenly over the devices used.
    pub weights_bytes: u64,
    pub workspace_bytes: u64,
    pub per_sequence_bytes: u64,
    pub kv_bytes_per_token: u64,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            faults: Vec::new(),
            repeat: 1,
            tokens_per_second: 0.0,
            prefill_tokens_per_second: 0.0,
            load_ms: 0,
            unload_ms: 0,
            weights_bytes: 0,
            workspace_bytes: 0,
            per_sequence_bytes: 0,
            kv_bytes_per_token: KV_BYTES_PER_TOKEN_DEFAULT,
        }
    }
}

#[derive(Deserialize)]
struct ConfigJson {
    model_type: String,
    #[serde(default = "context_default")]
    max_position_embeddings: u32,
    #[serde(default)]
    fault: Map<String, Value>,
}

fn context_default() -> u32 {
    CONTEXT_DEFAULT
}

pub struct Config {
    /// Tokens.
    pub context_length_max: u32,
    /// Ids, never none.
    pub devices: Vec<String>,
    pub behaviour: Behaviour,
}

impl Config {
    pub fn read(files: &ModelFiles, settings: &Settings) -> Result<Config, Status> {
        let devices = devices(settings)?;
        if files.architecture != "fault" {
            let message = format!(
                "model {} has the architecture {}, this engine runs fault only",
                files.id, files.architecture
            );
            return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, message));
        }
        let (path, text) = (files.path(CONFIG)?, files.read_small(CONFIG, CONFIG_BYTES_MAX)?);
        let corrupt =
            |what: String| Status::model_corrupt(reason::FILE_CORRUPT, format!("{}: {what}", path.display()));
        let config: ConfigJson = serde_json::from_slice(&text).map_err(|error| corrupt(error.to_string()))?;
        if config.model_type != "fault" {
            return Err(corrupt(format!("model_type is {:?} and not \"fault\"", config.model_type)));
        }
        if !(2..=CONTEXT_MAX).contains(&config.max_position_embeddings) {
            return Err(corrupt(format!(
                "max_position_embeddings is {} and not between 2 and {CONTEXT_MAX}",
                config.max_position_embeddings
            )));
        }
        let mut asked = config.fault;
        asked.extend(options(settings)?);
        let behaviour = behaviour(asked)?;
        Ok(Config { context_length_max: config.max_position_embeddings, devices, behaviour })
    }

    pub fn plan(&self) -> Plan {
        Plan { faults: self.behaviour.faults.clone(), devices: self.devices.clone() }
    }

    /// A device's part of something that is spread over all of them, rounded up.
    pub fn part(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.devices.len() as u64)
    }
}

/// `cpu` and every simulated device: how many of those there are only the host knows.
fn devices(settings: &Settings) -> Result<Vec<String>, Status> {
    let known =
        |id: &str| id == "cpu" || id.strip_prefix("sim:").is_some_and(|number| number.parse::<u16>().is_ok());
    if let Some(device) = settings.devices.iter().find(|d| !known(d)) {
        let message = format!("device {device} is not one of: cpu, sim:0, sim:1, ...");
        return Err(Status::unsupported(reason::UNKNOWN_DEVICE, message));
    }
    Ok(if settings.devices.is_empty() { vec!["cpu".to_owned()] } else { settings.devices.clone() })
}

fn options(settings: &Settings) -> Result<Map<String, Value>, Status> {
    if settings.options_json.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(&settings.options_json).map_err(|error| {
        Status::unsupported(reason::INVALID_SETTINGS, format!("options are not a JSON object: {error}"))
    })
}

fn behaviour(asked: Map<String, Value>) -> Result<Behaviour, Status> {
    if let Some(key) = asked.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let message = format!("option {key} is not one of: {}", KEYS.join(", "));
        return Err(Status::unsupported(reason::UNKNOWN_OPTION, message));
    }
    let behaviour: Behaviour = serde_json::from_value(Value::Object(asked)).map_err(|error| {
        Status::unsupported(reason::INVALID_SETTINGS, format!("the options are not understood: {error}"))
    })?;
    let positive = |rate: f64| rate.is_finite() && rate >= 0.0;
    if !positive(behaviour.tokens_per_second) || !positive(behaviour.prefill_tokens_per_second) {
        let message = "option tokens_per_second and prefill_tokens_per_second: 0 or more";
        return Err(Status::unsupported(reason::INVALID_SETTINGS, message));
    }
    Ok(behaviour)
}
