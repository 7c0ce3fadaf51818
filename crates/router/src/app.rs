//! What every handler can reach.

use std::sync::Arc;
use std::time::Instant;

use model_manifest::{Allowlist, SupportedModels};
use model_store::{HubClient, Verified};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::caller::CacheSalts;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::templates::Templates;

/// Registrations that talk to the hub at once; more wait.
pub const REGISTRATIONS_MAX: usize = 8;

pub struct App {
    pub config: Config,
    pub join_secret: String,
    pub cluster: Arc<Cluster>,
    pub store: Store,
    pub hub: HubClient,
    pub allowlist: Allowlist,
    pub supported: SupportedModels,
    /// Hashes of files in registered folders.
    pub verified: Verified,
    pub registrations: Semaphore,
    /// Held while the catalog changes, so that database and memory change together.
    pub catalog: Mutex<()>,
    pub templates: Templates,
    pub cache_salts: CacheSalts,
    pub metrics: Metrics,
    /// Tasks that end with the router.
    pub tasks: TaskTracker,
    /// The router was told to end: nothing new is begun.
    pub drain: CancellationToken,
    /// The time for what still runs is over.
    pub cut: CancellationToken,
    /// Nodes are let go.
    pub nodes_end: CancellationToken,
    pub started: Instant,
}

impl App {
    pub fn draining(&self) -> bool {
        self.drain.is_cancelled()
    }
}
