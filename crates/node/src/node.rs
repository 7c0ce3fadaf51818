//! The node itself: what its parts share, how it starts and how it ends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Uri;
use model_store::{HubClient, Store, StoreConfig};
use node_api::{DeviceInfo, MemoryStatus, NodeInfo};
use sysinfo::System;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engines::{self, EngineRegistry};
use crate::link::{self, LinkState};
use crate::models::Table;
use crate::{Config, NodeError, devices, identity, memory};

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
    /// The devices it serves with: chosen, and usable by an engine.
    pub devices: Vec<DeviceInfo>,
    pub registry: EngineRegistry,
    /// `runtime/kind`, for the store.
    pub runtimes: Vec<String>,
    pub store: Store,
    pub fetching: Semaphore,
    /// One load at a time, so that two do not count the same free memory.
    pub loading: Semaphore,
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
    memory: Mutex<MemoryStatus>,
}

impl Node {
    /// Nothing that holds the lock can panic half way through a change.
    pub fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn memory(&self) -> MemoryStatus {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn touch(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// Bytes free on a device now. On GPUs the engine's own word counts, where it has one.
    pub async fn available(
        self: &Arc<Self>,
        free_by_engine: &[engine_protocol::Device],
        device: &str,
    ) -> u64 {
        self.refresh_memory().await;
        let memory = self.memory();
        if device == "cpu" {
            return memory::ram_budget(&memory);
        }
        let said =
            free_by_engine.iter().find(|d| d.id == device).map(|d| d.memory_free).filter(|free| *free > 0);
        let seen = memory.devices.iter().find(|d| d.device == device).map(|d| d.total.saturating_sub(d.used));
        let total = self.devices.iter().find(|d| d.id == device).map(|d| d.memory_total);
        said.or(seen).or(total).unwrap_or(0)
    }

    /// Reads what the system and the drivers say, off the event loop.
    pub async fn refresh_memory(self: &Arc<Self>) {
        let node = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let devices = devices::memory(&node.devices);
            let Ok(mut system) = System::new() else { return };
            let status = memory::status(&mut system, devices);
            *node.memory.lock().unwrap_or_else(PoisonError::into_inner) = status;
        });
        if let Err(error) = read.await {
            tracing::warn!(%error, "memory cannot be read");
        }
    }
}

/// Starts a node. Returns when it has looked at its machine; joining goes on behind, see [`Running::links`].
/// Cancelling `shutdown` ends it: no new requests, those that run get [`Config::drain`], then workers end.
pub async fn start(config: Config, shutdown: CancellationToken) -> Result<Running, NodeError> {
    let routers: Vec<Uri> =
        config.routers.iter().map(|router| router_uri(&router.url)).collect::<Result<_, _>>()?;
    if !config.worker.executable.is_file() {
        return Err(NodeError::Worker { path: config.worker.executable.clone() });
    }
    std::fs::create_dir_all(&config.data_dir).map_err(|source| NodeError::Io {
        what: "make the folder",
        path: config.data_dir.clone(),
        source,
    })?;
    let registry = engines::find(&config.engine_dirs, &config.worker).await?;
    let looked = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || look(&config, registry)).await
    };
    let (info, devices, registry) = looked.map_err(|e| NodeError::Looking { reason: e.to_string() })??;
    let hub = HubClient::new(&config.hub)?;
    let store_config = StoreConfig {
        parallel: config.downloads_parallel,
        ..StoreConfig::new(config.hub.cache_dir.clone(), config.data_dir.join("store"))
    };
    let store = Store::open(&store_config, hub)?;
    let links = vec![LinkState::Dialling; routers.len()];
    let node = Arc::new(Node {
        info,
        runtimes: registry.runtimes(&devices),
        devices,
        registry,
        store,
        fetching: Semaphore::new(FETCHED_MODELS_MAX),
        loading: Semaphore::new(1),
        requests_running: AtomicU32::new(0),
        requests_waiting: AtomicU32::new(0),
        draining: CancellationToken::new(),
        end: CancellationToken::new(),
        tasks: TaskTracker::new(),
        changed: watch::Sender::new(0),
        links: watch::Sender::new(links),
        table: Mutex::default(),
        memory: Mutex::default(),
        config,
    });
    node.refresh_memory().await;
    tracing::info!(node = node.info.id, name = node.info.name, "the node starts");
    for (index, uri) in routers.into_iter().enumerate() {
        node.tasks.spawn(link::keep(Arc::clone(&node), index, uri));
    }
    node.tasks.spawn(watch_memory(Arc::clone(&node)));
    let main = tokio::spawn(run(Arc::clone(&node), shutdown));
    Ok(Running { node, main })
}

async fn run(node: Arc<Node>, shutdown: CancellationToken) {
    shutdown.cancelled().await;
    tracing::info!(node = node.info.id, "the node ends: no new requests");
    node.draining.cancel();
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

async fn watch_memory(node: Arc<Node>) {
    let mut tick = tokio::time::interval(node_api::HEARTBEAT);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => node.refresh_memory().await,
            () = node.end.cancelled() => return,
        }
    }
}

/// Everything that reads the machine; blocks.
fn look(
    config: &Config,
    registry: EngineRegistry,
) -> Result<(NodeInfo, Vec<DeviceInfo>, EngineRegistry), NodeError> {
    let detected = devices::detect();
    for note in &detected.notes {
        tracing::info!("{note}");
    }
    for engine in &registry.engines {
        tracing::info!(
            engine_id = engine.manifest.id,
            engine_version = engine.manifest.version,
            "an engine is found"
        );
    }
    for refused in &registry.refused {
        tracing::warn!(folder = %refused.folder.display(), reason = refused.reason, "an engine is refused");
    }
    let chosen = devices::select(&config.devices, &detected)?;
    let (usable, useless): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|device| registry.uses(&device.kind));
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
            "the device does not count: no engine here can use {}; engines: {engines}",
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
        devices: usable.clone(),
        engines: registry.summaries(),
    };
    Ok((info, usable, registry))
}

fn router_uri(url: &str) -> Result<Uri, NodeError> {
    let bad = || NodeError::RouterUrl { url: url.to_owned() };
    let uri: Uri = url.parse().map_err(|_| bad())?;
    if uri.scheme_str() != Some("http") || uri.host().is_none() {
        return Err(bad());
    }
    Ok(uri)
}
