//! What a router can be told.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use model_store::HubConfig;
use time::OffsetDateTime;
use url::Url;

/// Where a router listens unless told otherwise.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8411);

/// The hub unless told otherwise.
const DEFAULT_HUB: &str = "https://huggingface.co";
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
    /// The hub models are registered from. Its cache folder is not used: the router fetches small files only and keeps
    /// what it needs in its database.
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
    /// Of the machine the router runs on, as its nodes tell theirs; local folders are only offered to nodes that tell the
    /// same. `None`: every node counts as on this machine, since only loopback is listened on.
    pub machine_id: Option<String>,
    pub limits: Limits,
}

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>) -> Config {
        let data_dir = data_dir.into();
        let endpoint = Url::parse(DEFAULT_HUB).expect("the constant is an address");
        Config {
            listen: DEFAULT_LISTEN,
            allow_cpu: false,
            hub: HubConfig::new(endpoint, data_dir.join("hub")),
            data_dir,
            artifact_allowlist: DEFAULT_ALLOWLIST.map(str::to_owned).to_vec(),
            supported_models: None,
            require_engine: false,
            template_clock: None,
            template_worker: None,
            join_secret_file: None,
            machine_id: None,
            limits: Limits::default(),
        }
    }
}

/// Bounds an operator may want to move. Those that protect the router itself are constants beside what they bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Requests that wait for one model at once; more are refused with 503.
    pub queue_length: usize,
    /// How long a request waits for a place before it is refused with 503. Time in which its model's load moves does not
    /// count.
    pub queue_wait: Duration,
    /// Between two comments in a stream that has nothing to say.
    pub keep_alive: Duration,
    /// How long requests may go on after the router was told to end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes_max: 32 << 20,
            queue_length: 1024,
            queue_wait: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}
