//! The node itself: what its parts share, how it starts and how it ends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Uri;
use model_store::{HubClient, Store, StoreConfig};
use node_api::{DeviceInfo, NodeInfo};
use sysinfo::System;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::counters::Counters;
use crate::engines::{EngineRegistry, Engines, EnginesConfig};
use crate::link::{self, LinkState, Reach};
use crate::memory::{Memory, RealMachine};
use crate::models::{Replicas, Table};
use crate::placement::scores::Scores;
use crate::{Config, NodeError, RouterAddress, devices, identity};

/// Models whose files are fetched at once; the files of all of them share the store's own bound.
pub const FETCHED_MODELS_MAX: usize = 2;
/// After the requests: for workers and connections to end.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// A node that runs.
#[derive(Debug)]
pub struct Running {
    node: Arc<Node>,
    main: tokio::task::JoinHandle<()>,
}

impl Running {
    /// As routers see it.
    pub fn info(&self) -> &NodeInfo {
        &self.node.info
    }

    /// How it stands with each router, in the order of the configuration.
    pub fn links(&self) -> watch::Receiver<Vec<LinkState>> {
        self.node.links.subscribe()
    }

    /// Returns when it has ended, which begins with the token given to [`start`].
    pub async fn wait(self) -> Result<(), NodeError> {
        self.main.await.map_err(|e| NodeError::Ended { reason: e.to_string() })
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    pub config: Config,
    pub info: NodeInfo,
    /// The devices that were chosen: an engine that can use one may come later.
    pub devices: Vec<DeviceInfo>,
    pub engines: Engines,
    pub store: Store,
    pub memory: Arc<Memory>,
    /// What engines reached with models.
    pub scores: Scores,
    pub fetching: Semaphore,
    pub counters: Counters,
    pub requests_running: AtomicU32,
    pub requests_waiting: AtomicU32,
    /// No new requests.
    pub draining: CancellationToken,
    /// Everything ends.
    pub end: CancellationToken,
    pub tasks: TaskTracker,
    /// Counts changes of anything in the status.
    pub changed: watch::Sender<u64>,
    pub links: watch::Sender<Vec<LinkState>>,
    table: Mutex<Table>,
}

impl Node {
    /// Nothing that holds the lock can panic half way through a change.
    pub fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `runtime/kind` of everything that can run here now, for the store.
    pub fn runtimes(&self) -> Vec<String> {
        self.engines.current().runtimes(&self.devices)
    }

    pub fn touch(&self) {
        self.changed.send_modify(|n| *n += 1);
    }
}

/// Starts a node. Returns when it has looked at its machine; joining goes on behind, see [`Running::links`].
/// Cancelling `shutdown` ends it: no new requests, those that run get [`Config::drain`], then workers end.
pub async fn start(config: Config, shutdown: CancellationToken) -> Result<Running, NodeError> {
    let routers: Vec<Reach> = config.routers.iter().map(reach).collect::<Result<_, _>>()?;
    if !config.worker.executable.is_file() {
        return Err(NodeError::Worker { path: config.worker.executable.clone() });
    }
    std::fs::create_dir_all(&config.data_dir).map_err(|source| NodeError::Io {
        what: "make the folder",
        path: config.data_dir.clone(),
        source,
    })?;
    let engines = Engines::start(EnginesConfig {
        dirs: config.engine_dirs.clone(),
        data_dir: config.data_dir.clone(),
        program: config.worker.clone(),
    });
    let engines = engines.await?;
    let registry = engines.current();
    let looked = {
        let (config, registry) = (config.clone(), Arc::clone(&registry));
        tokio::task::spawn_blocking(move || look(&config, &registry)).await
    };
    let (info, devices) = looked.map_err(|e| NodeError::Looking { reason: e.to_string() })??;
    let hub = HubClient::new(&config.hub)?;
    let store_config = StoreConfig {
        parallel: config.downloads_parallel,
        ..StoreConfig::new(config.hub.cache_dir.clone(), config.data_dir.join("store"))
    };
    let store = Store::open(&store_config, hub)?;
    let links = vec![LinkState::Dialling; routers.len()];
    let machine = RealMachine::new(devices.clone());
    let memory = Memory::new(config.memory, devices.clone(), Box::new(machine));
    memory.look().await;
    let scores = Scores::open(&config.data_dir);
    let node = Arc::new(Node {
        memory,
        scores,
        info,
        devices,
        engines,
        store,
        fetching: Semaphore::new(FETCHED_MODELS_MAX),
        counters: Counters::default(),
        requests_running: AtomicU32::new(0),
        requests_waiting: AtomicU32::new(0),
        draining: shutdown.clone(),
        end: CancellationToken::new(),
        tasks: TaskTracker::new(),
        changed: watch::Sender::new(0),
        links: watch::Sender::new(links),
        table: Mutex::default(),
        config,
    });
    node.memory.set_tenants(Arc::new(Replicas(Arc::downgrade(&node))));
    tracing::info!(node = node.info.id, name = node.info.name, "the node starts");
    for (index, router) in routers.into_iter().enumerate() {
        node.tasks.spawn(link::keep(Arc::clone(&node), index, router));
    }
    node.tasks.spawn(Arc::clone(&node.memory).run(node.end.clone()));
    node.tasks.spawn(node.engines.clone().follow(node.end.clone()));
    node.tasks.spawn(tell_of_engines(Arc::clone(&node)));
    let main = tokio::spawn(run(Arc::clone(&node)));
    Ok(Running { node, main })
}

async fn run(node: Arc<Node>) {
    node.draining.cancelled().await;
    tracing::info!(node = node.info.id, "the node ends: no new requests");
    node.touch();
    let mut changed = node.changed.subscribe();
    let idle = async {
        while node.requests_running.load(Ordering::Relaxed) + node.requests_waiting.load(Ordering::Relaxed)
            > 0
        {
            if changed.changed().await.is_err() {
                return;
            }
        }
    };
    if timeout(node.config.drain, idle).await.is_err() {
        tracing::warn!(after = ?node.config.drain, "requests that did not finish are ended");
    }
    node.end.cancel();
    node.tasks.close();
    if timeout(END_TIMEOUT, node.tasks.wait()).await.is_err() {
        tracing::warn!("something of the node did not end in time and is dropped");
    }
}

/// Routers hear of engines that come and go.
async fn tell_of_engines(node: Arc<Node>) {
    let mut changes = node.engines.subscribe();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = node.end.cancelled() => return,
        }
        node.touch();
    }
}

/// Everything that reads the machine; blocks.
fn look(config: &Config, registry: &EngineRegistry) -> Result<(NodeInfo, Vec<DeviceInfo>), NodeError> {
    let mut detected = devices::detect();
    detected.simulate(&config.simulated_devices);
    for note in &detected.notes {
        tracing::info!("{note}");
    }
    let chosen = devices::select(&config.devices, &detected, config.allow_software)?;
    let (usable, useless): (Vec<_>, Vec<_>) =
        chosen.iter().cloned().partition(|device| registry.uses(&device.kind));
    for device in useless {
        let engines: Vec<_> = registry
            .engines
            .iter()
            .map(|e| format!("{} ({})", e.label(), e.manifest.devices.join(", ")))
            .collect();
        let engines = if engines.is_empty() { "none is installed".to_owned() } else { engines.join(", ") };
        tracing::warn!(
            device = device.id,
            name = device.name,
            "no engine here can use {}; engines: {engines}",
            device.kind
        );
    }
    let name = config.name.clone().or_else(|| System::host_name().ok()).unwrap_or_else(|| "node".to_owned());
    let info = NodeInfo {
        id: identity::node_id(&config.data_dir)?,
        name,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        machine_id: identity::machine_id(),
        devices: usable,
    };
    Ok((info, chosen))
}

fn reach(router: &RouterAddress) -> Result<Reach, NodeError> {
    let (url, join_secret) = match router {
        RouterAddress::Url { url, join_secret } => (url, join_secret.clone()),
        RouterAddress::Local(router) => return Ok(Reach::Local(Arc::clone(router))),
    };
    let bad = || NodeError::RouterUrl { url: url.clone() };
    let uri: Uri = url.parse().map_err(|_| bad())?;
    if uri.scheme_str() != Some("http") || uri.host().is_none() {
        return Err(bad());
    }
    Ok(Reach::Dial { uri, join_secret })
}
