//! What the operator set for a model, with the node's defaults filled in.

use std::time::Duration;

use engine_protocol::Settings;
use node_api::ModelSettings;

use crate::Config;
use crate::devices::is_software;
use crate::engines::DeviceChosen;
use crate::memory::Wanted;

/// Replicas of one model on a node at most.
pub const REPLICAS_MAX: u32 = 64;

/// The part that a worker is loaded with: another one means another load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadSettings {
    pub wanted: Wanted,
    pub threads: u32,
    pub options: serde_json::Map<String, serde_json::Value>,
}

impl LoadSettings {
    pub fn new(settings: &ModelSettings, config: &Config) -> LoadSettings {
        LoadSettings {
            wanted: Wanted {
                context_length: settings.context_length.or(config.context_length),
                sequences_max: settings.sequences_max.or(config.sequences_max),
            },
            threads: config.threads,
            options: settings.options.clone(),
        }
    }

    /// As an engine is told, before it is known what fits.
    pub fn of_engine(&self, device: &DeviceChosen, wanted: Wanted) -> Settings {
        let mut options = self.options.clone();
        if is_software(&device.id, &device.kind) {
            // The operator gave leave for the whole node.
            options.insert("allow_software".to_owned(), true.into());
        }
        Settings {
            devices: vec![device.id.clone()],
            context_length: wanted.context_length.unwrap_or(0),
            sequences_max: wanted.sequences_max.unwrap_or(0),
            batch_tokens_max: 0,
            threads: self.threads,
            options_json: if options.is_empty() {
                String::new()
            } else {
                serde_json::Value::from(options).to_string()
            },
        }
    }
}

pub fn replicas(settings: &ModelSettings) -> usize {
    settings.replicas.unwrap_or(1).clamp(1, REPLICAS_MAX) as usize
}

/// How long it stays without requests; `None`: until others need the room.
pub fn keep_alive(settings: &ModelSettings, config: &Config) -> Option<Duration> {
    match settings.keep_alive_seconds {
        None => config.keep_alive,
        Some(seconds) => u64::try_from(seconds).ok().map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use node_api::ModelSettings;

    use super::{LoadSettings, REPLICAS_MAX, keep_alive, replicas};
    use crate::engines::DeviceChosen;
    use crate::memory::Wanted;
    use crate::{Config, WorkerProgram};

    fn config(keep_alive: Option<Duration>) -> Config {
        let url = "http://127.0.0.1:1".parse().unwrap();
        let hub = model_store::HubConfig::new(url, "cache".into());
        Config { keep_alive, ..Config::new("data", hub, WorkerProgram::of_product("llm-router")) }
    }

    #[test]
    fn a_models_own_time_goes_before_the_nodes_and_a_negative_one_is_for_ever() {
        let of = |seconds| ModelSettings { keep_alive_seconds: seconds, ..ModelSettings::default() };
        let config = config(Some(Duration::from_secs(7)));
        assert_eq!(keep_alive(&of(None), &config), Some(Duration::from_secs(7)));
        assert_eq!(keep_alive(&of(Some(0)), &config), Some(Duration::ZERO));
        assert_eq!(keep_alive(&of(Some(-1)), &config), None);
    }

    #[test]
    fn leave_for_software_goes_to_the_engine_with_such_a_device_alone() {
        let settings = LoadSettings::new(&ModelSettings::default(), &config(None));
        let options = |id: &str, kind: &str| {
            let device = DeviceChosen { id: id.to_owned(), kind: kind.to_owned() };
            let wanted = Wanted { context_length: None, sequences_max: None };
            settings.of_engine(&device, wanted).options_json
        };
        assert_eq!(options("vulkan:0", "cpu"), r#"{"allow_software":true}"#);
        assert_eq!((options("vulkan:0", "vulkan"), options("cpu", "cpu")), (String::new(), String::new()));
    }

    #[test]
    fn replicas_are_at_least_one_and_bounded() {
        let of = |replicas| ModelSettings { replicas, ..ModelSettings::default() };
        let counts = [None, Some(0), Some(3), Some(u32::MAX)].map(|n| replicas(&of(n)));
        assert_eq!(counts, [1, 1, 3, REPLICAS_MAX as usize]);
    }
}
