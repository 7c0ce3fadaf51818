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
    /// Requests that run on one node at once [default: 64]
    #[arg(long, env = "LLM_ROUTER_NODE_REQUESTS_MAX", value_name = "COUNT")]
    pub node_requests_max: Option<u32>,
    /// Requests that wait for a place at once; more get a 503 [default: 1024]
    #[arg(long, env = "LLM_ROUTER_WAITING_MAX", value_name = "COUNT")]
    pub waiting_max: Option<usize>,
    /// Longest wait of a request for a place, in seconds [default: 60]
    #[arg(long, env = "LLM_ROUTER_WAIT_MAX_SECONDS", value_name = "SECONDS")]
    pub wait_max_seconds: Option<u64>,
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
}

#[cfg(test)]
mod tests;
