//! What a router can be told.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use time::OffsetDateTime;

/// Where a router listens unless told otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8411);

/// Publishers whose optimized artifacts are taken into manifests.
pub const DEFAULT_ALLOWLIST: [&str; 2] = ["openai/*", "nvidia/*"];

/// Everything [`crate::start`] needs. Build it with [`Config::new`] and change what differs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Loopback only; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Folder of the database, the join secret and the small files of registered models. Made when missing.
    pub data_dir: PathBuf,
    /// Take nodes that have no GPU.
    pub allow_cpu: bool,
    pub hub: HubConfig,
    /// Patterns `publisher/*` from whose repositories optimized artifacts are taken.
    pub artifact_allowlist: Vec<String>,
    /// A file in the form of `supported_models.json` instead of the list that is built in.
    pub supported_models: Option<PathBuf>,
    /// What `require_engine` is when a registration does not say.
    pub require_engine: bool,
    /// What templates see as now; `None`: the system's clock.
    pub template_clock: Option<OffsetDateTime>,
    /// The program that is started as `<program> template-worker` to render hostile templates in; `None`: the program
    /// that is running.
    pub template_worker: Option<PathBuf>,
    /// Holds the secret nodes join with, made when missing; `None`: `join-secret` in `data_dir`.
    pub join_secret_file: Option<PathBuf>,
    pub limits: Limits,
}

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>) -> Config {
        Config {
            listen: DEFAULT_LISTEN,
            data_dir: data_dir.into(),
            allow_cpu: false,
            hub: HubConfig::default(),
            artifact_allowlist: DEFAULT_ALLOWLIST.map(str::to_owned).to_vec(),
            supported_models: None,
            require_engine: false,
            template_clock: None,
            template_worker: None,
            join_secret_file: None,
            limits: Limits::default(),
        }
    }
}

/// The hub models are registered from.
#[derive(Clone, PartialEq, Eq)]
pub struct HubConfig {
    /// Origin, such as `https://huggingface.co`.
    pub endpoint: String,
    /// Sent to this origin only.
    pub token: Option<String>,
}

impl Default for HubConfig {
    fn default() -> Self {
        HubConfig { endpoint: "https://huggingface.co".to_owned(), token: None }
    }
}

impl std::fmt::Debug for HubConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("HubConfig").field("endpoint", &self.endpoint).field("token", &token).finish()
    }
}

/// Bounds an operator may want to move. Those that protect the router itself are constants beside what they bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Requests that run on one node at once; more wait.
    pub node_requests_max: u32,
    /// Requests that wait for a place at once; more are refused with 503.
    pub waiting_max: usize,
    /// How long a request waits for a place before it is refused with 503.
    pub wait_max: Duration,
    /// Between two comments in a stream that has nothing to say.
    pub keep_alive: Duration,
    /// How long requests may go on after the router was told to end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes_max: 32 << 20,
            node_requests_max: 64,
            waiting_max: 1024,
            wait_max: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}
