//! What a node can be told.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use model_store::HubConfig;
use node_api::transport::LocalRouter;

use crate::devices::SimulatedDevices;
use crate::memory::MemoryLimits;
use crate::worker::WatchdogLimits;

/// Everything [`crate::start`] needs. Build it with [`Config::new`] and change what differs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Routers to join, all of them.
    pub routers: Vec<RouterAddress>,
    /// Folder of the node's identity and of what it remembers of verified files. Made when missing.
    pub data_dir: PathBuf,
    /// Where models come from, and the cache they lie in.
    pub hub: HubConfig,
    /// Files fetched at once, of all models together.
    pub downloads_parallel: usize,
    /// Folders with a folder for each engine; earlier ones win. Those that are missing are passed over.
    pub engine_dirs: Vec<PathBuf>,
    pub devices: DeviceChoice,
    /// Adapters that compute on the processor may be used where they are named: they count as the CPU.
    pub allow_software: bool,
    /// Besides those that are there, for tests. Served with where [`Config::devices`] is `auto` or names them.
    pub simulated_devices: SimulatedDevices,
    pub memory: MemoryLimits,
    pub worker: WorkerProgram,
    /// How long a worker may do nothing that can be seen.
    pub watchdog: WatchdogLimits,
    /// For people; `None`: the host's name.
    pub name: Option<String>,
    /// Longest sequence in tokens where a model has no setting of its own; `None`: what fits the memory.
    pub context_length: Option<u32>,
    /// Sequences at once where a model has no setting of its own; `None`: what fits the memory.
    pub sequences_max: Option<u32>,
    /// CPU threads of each worker; 0: as many as there are physical cores.
    pub threads: u32,
    /// How long requests may go on after the node was told to end.
    pub drain: Duration,
    /// How long a model without requests stays in memory where it has no setting of its own; `None`: until others need
    /// the room.
    pub keep_alive: Option<Duration>,
    /// A worker this old is replaced by a new one, without a lost request; `None`: never.
    pub worker_restart_after: Option<Duration>,
    /// A worker that has taken so many requests is replaced by a new one; `None`: never.
    pub worker_restart_after_requests: Option<u64>,
}

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>, hub: HubConfig, worker: WorkerProgram) -> Config {
        Config {
            routers: Vec::new(),
            data_dir: data_dir.into(),
            hub,
            downloads_parallel: model_store::store::PARALLEL_DEFAULT,
            engine_dirs: Vec::new(),
            devices: DeviceChoice::Auto,
            allow_software: false,
            simulated_devices: SimulatedDevices::default(),
            memory: MemoryLimits::default(),
            worker,
            watchdog: WatchdogLimits::default(),
            name: None,
            context_length: None,
            sequences_max: None,
            threads: 0,
            drain: Duration::from_secs(30),
            keep_alive: None,
            worker_restart_after: None,
            worker_restart_after_requests: None,
        }
    }
}

/// A router to join.
#[derive(Clone)]
pub enum RouterAddress {
    /// It is dialled.
    Url {
        /// `http://host:port`.
        url: String,
        join_secret: String,
    },
    /// It runs in this very process.
    Local(Arc<dyn LocalRouter>),
}

impl std::fmt::Debug for RouterAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RouterAddress::Url { url, .. } => {
                f.debug_struct("Url").field("url", url).field("join_secret", &"…").finish()
            }
            RouterAddress::Local(router) => f.debug_tuple("Local").field(router).finish(),
        }
    }
}

/// The program that is an engine worker when started with these arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    pub executable: PathBuf,
    pub arguments: Vec<String>,
}

impl WorkerProgram {
    /// `<executable> engine-worker`, as the product's own binary is started.
    pub fn of_product(executable: impl Into<PathBuf>) -> WorkerProgram {
        WorkerProgram { executable: executable.into(), arguments: vec!["engine-worker".to_owned()] }
    }
}

/// Which devices a node serves with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Every GPU an engine can use; never the CPU.
    #[default]
    Auto,
    /// These and no others, by id: `cpu`, `cuda:0`.
    Only(Vec<String>),
}

impl FromStr for DeviceChoice {
    type Err = String;

    /// `auto`, or ids with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(DeviceChoice::Auto);
        }
        let ids: Vec<String> = text.split(',').map(|id| id.trim().to_owned()).collect();
        let valid = |id: &String| {
            let (kind, number) = id.split_once(':').unwrap_or((id, "0"));
            ["cpu", "cuda", "metal", "vulkan", "d3d12", "directml", "sim"].contains(&kind)
                && number.parse::<u16>().is_ok()
        };
        match ids.iter().find(|id| !valid(id)) {
            Some(id) => Err(format!("`{id}` is no device; write auto, cpu, or ids such as cuda:0,cuda:1")),
            None => Ok(DeviceChoice::Only(ids)),
        }
    }
}
