//! Every setting, once: its flag, its environment variable and its key in the TOML file, in that order of strength.
//!
//! A group of settings is one struct whose fields are all optional. clap fills it from flags and environment; what it
//! left out comes from the file; what both left out has its default where it is used. The same structs make the
//! reference in `docs/configuration.md`.

mod file;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

pub use file::{ConfigFile, over};

/// The file's own place cannot come from the file.
#[derive(Args, Debug, Clone, Default)]
pub struct ConfigPlace {
    /// TOML file with settings [default: config.toml in the config folder, when it is there]
    #[arg(long, env = "LLM_ROUTER_CONFIG", value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

/// Settings of every command; top-level keys of the file.
#[derive(Args, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommonSettings {
    /// Folder of database, join secret and state [default: the system's place for application data]
    #[arg(long, env = "LLM_ROUTER_DATA_DIR", value_name = "DIR", global = true)]
    pub data_dir: Option<PathBuf>,
    /// Folder of log files [default: logs in the system's place for state]
    #[arg(long, env = "LLM_ROUTER_LOG_DIR", value_name = "DIR", global = true)]
    pub log_dir: Option<PathBuf>,
    /// What is logged: a level, or levels by part like `info,node=debug` [default: info]
    #[arg(long, env = "LLM_ROUTER_LOG", value_name = "FILTER", global = true)]
    pub log: Option<String>,
    /// A log file of this many bytes, or a day old, is moved aside [default: 67108864]
    #[arg(long, env = "LLM_ROUTER_LOG_FILE_BYTES", value_name = "BYTES", global = true)]
    pub log_file_bytes: Option<u64>,
    /// Log files that are kept, the current one included [default: 7]
    #[arg(long, env = "LLM_ROUTER_LOG_FILES", value_name = "COUNT", global = true)]
    pub log_files: Option<usize>,
    /// How log lines look [default: text]
    #[arg(long, env = "LLM_ROUTER_LOG_FORMAT", value_name = "FORMAT", global = true)]
    pub log_format: Option<LogFormat>,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// Settings of the commands that speak to a router; table `[client]`.
#[derive(Args, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientSettings {
    /// Address of the router [default: the one running here, else http://127.0.0.1:8411]
    #[arg(long, env = "LLM_ROUTER_URL", value_name = "URL")]
    pub url: Option<String>,
}

/// Settings of the hub that models come from, for router and node; table `[hub]`. The variables are those of the hub's
/// own tools, so that one setting serves all. `HF_TOKEN` holds a token itself, and has no flag because other users of a
/// machine can read flags; `HF_HOME` moves cache and token together.
#[derive(Args, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubSettings {
    /// Origin of the hub [default: https://huggingface.co]
    #[arg(long = "hub-endpoint", env = "HF_ENDPOINT", value_name = "URL")]
    pub endpoint: Option<String>,
    /// Folder of downloaded models, shared with the hub's other tools [default: ~/.cache/huggingface/hub]
    #[arg(long = "hub-cache", env = "HF_HUB_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// File with a token for private and gated repositories [default: ~/.cache/huggingface/token]
    #[arg(long = "hub-token-file", env = "HF_TOKEN_PATH", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// What router and node have to agree on; table `[join]`.
#[derive(Args, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinSettings {
    /// File with the secret that nodes join with; the router makes it when missing [default: join-secret in the data folder]
    #[arg(long = "join-secret-file", env = "LLM_ROUTER_JOIN_SECRET_FILE", value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

/// Settings of a router; table `[router]`.
#[derive(Args, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSettings {
    /// Address to listen on: a loopback one, until there are keys and TLS; port 0 takes a free one [default: 127.0.0.1:8411]
    #[arg(long, env = "LLM_ROUTER_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Take nodes that have no GPU [default: false; true for `up --device cpu`]
    #[arg(long, env = "LLM_ROUTER_ALLOW_CPU", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub allow_cpu: Option<bool>,
    /// Refuse models for which no connected node has an engine [default: false]
    #[arg(long, env = "LLM_ROUTER_REQUIRE_ENGINE", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub require_engine: Option<bool>,
    /// Publishers whose optimized artifacts are taken, as `publisher/*` [default: openai/*,nvidia/*]
    #[arg(long, env = "LLM_ROUTER_ARTIFACT_ALLOWLIST", value_delimiter = ',', value_name = "PATTERN")]
    pub artifact_allowlist: Option<Vec<String>>,
    /// File in the form of supported_models.json, in place of the built-in list
    #[arg(long, env = "LLM_ROUTER_SUPPORTED_MODELS", value_name = "FILE")]
    pub supported_models: Option<PathBuf>,
    /// What chat templates see as now, as 2025-01-01 or 2025-01-01T12:00:00Z [default: the clock]
    #[arg(long, env = "LLM_ROUTER_TEMPLATE_CLOCK", value_name = "TIME")]
    pub template_clock: Option<String>,
    /// Largest request body, in bytes [default: 33554432]
    #[arg(long, env = "LLM_ROUTER_BODY_BYTES_MAX", value_name = "BYTES")]
    pub body_bytes_max: Option<usize>,
    /// Requests that wait for one model at once; more get a 503 [default: 1024]
    #[arg(long, env = "LLM_ROUTER_QUEUE_LENGTH", value_name = "COUNT")]
    pub queue_length: Option<usize>,
    /// Longest wait of a request for a place, in seconds; time in which its model is being loaded does not count
    /// [default: 60]
    #[arg(long, visible_alias = "queue-wait", env = "LLM_ROUTER_QUEUE_WAIT_SECONDS", value_name = "SECONDS")]
    pub queue_wait_seconds: Option<u64>,
    /// Between two comments in a stream that has nothing to say, in seconds [default: 10]
    #[arg(long, env = "LLM_ROUTER_KEEP_ALIVE_SECONDS", value_name = "SECONDS")]
    pub keep_alive_seconds: Option<u64>,
    /// How long requests may go on after the router is told to end, in seconds [default: 30]
    #[arg(long, env = "LLM_ROUTER_DRAIN_SECONDS", value_name = "SECONDS")]
    pub drain_seconds: Option<u64>,
}

/// Settings of a node; table `[node]`.
#[derive(Args, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Name of the node, for people [default: the host's name]
    #[arg(long, env = "LLM_ROUTER_NODE_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// Devices to serve with, such as `cuda:0` or `cpu` [default: every GPU; the CPU only by name]
    #[arg(long = "device", env = "LLM_ROUTER_DEVICES", value_delimiter = ',', value_name = "DEVICE")]
    pub devices: Option<Vec<String>>,
    /// Use an adapter that computes on the processor, such as Mesa's lavapipe, where --device names it: counts as the CPU
    /// [default: false]
    #[arg(long, env = "LLM_ROUTER_ALLOW_SOFTWARE", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub allow_software: Option<bool>,
    /// Folders with engine plugins [default: engines beside the program, and engines in the data folder]
    #[arg(long = "engines-dir", env = "LLM_ROUTER_ENGINES_DIR", value_delimiter = ',', value_name = "DIR")]
    pub engines_dirs: Option<Vec<PathBuf>>,
    /// Longest sequence of a model, prompt and answer, in tokens [default: what fits the memory]
    #[arg(long, env = "LLM_ROUTER_CONTEXT_LENGTH", value_name = "TOKENS")]
    pub context_length: Option<u32>,
    /// Sequences that one model runs at once [default: what fits the memory]
    #[arg(long, env = "LLM_ROUTER_SEQUENCES_MAX", value_name = "COUNT")]
    pub sequences_max: Option<u32>,
    /// CPU threads of each engine worker [default: as many as there are physical cores]
    #[arg(long, env = "LLM_ROUTER_THREADS", value_name = "COUNT")]
    pub threads: Option<u32>,
    /// Files that are downloaded at once [default: 4]
    #[arg(long, env = "LLM_ROUTER_DOWNLOADS_PARALLEL", value_name = "COUNT")]
    pub downloads_parallel: Option<usize>,
    /// How long requests may go on after the node is told to end, in seconds [default: 30]
    #[arg(long = "node-drain-seconds", env = "LLM_ROUTER_NODE_DRAIN_SECONDS", value_name = "SECONDS")]
    pub node_drain_seconds: Option<u64>,
    /// A worker that gives no sign of life for so long while it loads, reads a prompt or answers is ended, in seconds
    /// [default: 30]
    #[arg(long, env = "LLM_ROUTER_WATCHDOG_PROGRESS_SECONDS", value_name = "SECONDS")]
    pub watchdog_progress_seconds: Option<u64>,
    /// The same while a sequence gets its tokens, in seconds [default: 5]
    #[arg(long, env = "LLM_ROUTER_WATCHDOG_DECODE_SECONDS", value_name = "SECONDS")]
    pub watchdog_decode_seconds: Option<u64>,
    /// A worker whose progress never rises for so long is ended, in seconds [default: 900]
    #[arg(long, env = "LLM_ROUTER_WATCHDOG_STALL_SECONDS", value_name = "SECONDS")]
    pub watchdog_stall_seconds: Option<u64>,
    /// Used share of a device or of the machine's memory at which an alert is raised [default: 90]
    #[arg(long, env = "LLM_ROUTER_MEMORY_ALERT_PERCENT", value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub memory_alert_percent: Option<u8>,
    /// Used share above which idle models leave; 100: they leave for other models only [default: 95]
    #[arg(long, env = "LLM_ROUTER_MEMORY_EVICT_PERCENT", value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub memory_evict_percent: Option<u8>,
    /// A model that was just loaded stays so long, whoever waits for its room, in seconds [default: 10]
    #[arg(long, env = "LLM_ROUTER_MINIMUM_STAY_SECONDS", value_name = "SECONDS")]
    pub minimum_stay_seconds: Option<u64>,
    /// How long a load waits for busy models to leave, in seconds [default: 300]
    #[arg(long, env = "LLM_ROUTER_ROOM_WAIT_SECONDS", value_name = "SECONDS")]
    pub room_wait_seconds: Option<u64>,
    /// A worker that takes so much more than it was granted is ended, in percent of the grant [default: 10]
    #[arg(long, env = "LLM_ROUTER_OVERRUN_MARGIN_PERCENT", value_name = "PERCENT")]
    pub overrun_margin_percent: Option<u8>,
    /// … and beyond that so many bytes, for the program itself [default: 268435456]
    #[arg(long, env = "LLM_ROUTER_OVERRUN_MARGIN_BYTES", value_name = "BYTES")]
    pub overrun_margin_bytes: Option<u64>,
    /// How long a model without requests stays in memory where it has no setting of its own, in seconds [default: until
    /// others need the room]
    #[arg(long, env = "LLM_ROUTER_MODEL_KEEP_ALIVE_SECONDS", value_name = "SECONDS")]
    pub model_keep_alive_seconds: Option<u64>,
    /// A worker this old is replaced by a new one, without a lost request, in hours [default: never]
    #[arg(long, env = "LLM_ROUTER_WORKER_RESTART_HOURS", value_name = "HOURS")]
    pub worker_restart_hours: Option<u64>,
    /// A worker that has taken so many requests is replaced by a new one, without a lost request [default: never]
    #[arg(long, env = "LLM_ROUTER_WORKER_RESTART_REQUESTS", value_name = "COUNT")]
    pub worker_restart_requests: Option<u64>,
    /// Devices that are not there, for tests: `sim:0=8GiB,sim:1=4GiB`
    #[arg(long, env = "LLM_ROUTER_SIMULATED_DEVICES", value_name = "DEVICES", hide = true)]
    pub simulated_devices: Option<String>,
}

#[cfg(test)]
mod tests;
