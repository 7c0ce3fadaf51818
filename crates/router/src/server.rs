//! Starting a router.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use model_manifest::{Allowlist, SupportedModels};
use model_store::{HubClient, HubError, Verified};
use node_api::transport::LocalRouter;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::app::{App, REGISTRATIONS_MAX};
use crate::caller::CacheSalts;
use crate::cluster::{Cluster, Registered};
use crate::link::Local;
use crate::metrics::Metrics;
use crate::secret::{self, SecretError};
use crate::store::{Store, StoreError};
use crate::templates::Templates;

const DATABASE: &str = "router.db";
const JOIN_SECRET: &str = "join-secret";
/// Folder of what is remembered of hashed files.
const VERIFIED: &str = "verified";

/// Why a router did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "refusing to listen on {addr}: it is not a loopback address, and other machines are served only with API keys and \
         TLS, which this version does not have; listen on 127.0.0.1 or [::1]"
    )]
    NotLoopback { addr: SocketAddr },
    #[error("port {} of {} is in use; choose another with --listen, or end the program that holds it", addr.port(), addr.ip())]
    PortBusy { addr: SocketAddr },
    #[error("cannot listen on {addr}")]
    Listen { addr: SocketAddr, source: std::io::Error },
    #[error("data folder {} cannot be made", path.display())]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the artifact allowlist cannot be used")]
    Allowlist(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the list of supported models {} cannot be used", path.display())]
    Supported { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the program's own path is not known, so no template worker can be started")]
    OwnPath(#[source] std::io::Error),
    #[error("the client for the hub cannot be set up")]
    Hub(#[source] HubError),
}

/// A router that serves. It ends when the token given to [`start`] is cancelled; [`Running::wait`] waits for that.
#[derive(Debug)]
pub struct Running {
    /// Where it listens, with the port that was taken.
    pub local_addr: SocketAddr,
    /// What nodes join with.
    pub join_secret: String,
    local: Local,
    task: JoinHandle<()>,
}

impl Running {
    /// `http://127.0.0.1:8411`
    pub fn url(&self) -> String {
        format!("http://{}", self.local_addr)
    }

    /// What a node of this process joins.
    pub fn local(&self) -> Arc<dyn LocalRouter> {
        Arc::new(self.local.clone())
    }

    /// Returns when the router has ended: its token was cancelled and running requests are finished or their time is up.
    pub async fn wait(self) {
        // A panic of the serving task has been logged by the panic hook; there is nothing left to wait for.
        let _ = self.task.await;
    }
}

/// Opens what `config` names and serves until `shutdown` is cancelled.
pub async fn start(config: Config, shutdown: CancellationToken) -> Result<Running, StartError> {
    if !config.listen.ip().is_loopback() {
        return Err(StartError::NotLoopback { addr: config.listen });
    }
    let allowlist = Allowlist::new(config.artifact_allowlist.iter().cloned());
    let allowlist = allowlist.map_err(|e| StartError::Allowlist(Box::new(e)))?;
    let supported = supported_models(&config)?;
    let hub = HubClient::new(&config.hub).map_err(StartError::Hub)?;
    std::fs::create_dir_all(&config.data_dir)
        .map_err(|source| StartError::DataDir { path: config.data_dir.clone(), source })?;
    let secret_file = config.join_secret_file.clone().unwrap_or_else(|| config.data_dir.join(JOIN_SECRET));
    let join_secret = secret::load_or_create(&secret_file)?;
    // Before the database is touched: a second router of the same folder ends here.
    let listener = TcpListener::bind(config.listen).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => StartError::PortBusy { addr: config.listen },
        _ => StartError::Listen { addr: config.listen, source },
    })?;
    let local_addr =
        listener.local_addr().map_err(|source| StartError::Listen { addr: config.listen, source })?;
    let store = Store::open(&config.data_dir.join(DATABASE)).await?;
    let verified_dir = config.data_dir.join(VERIFIED);
    let verified =
        Verified::open(&verified_dir).map_err(|source| StartError::DataDir { path: verified_dir, source })?;
    let template_worker = match &config.template_worker {
        Some(worker) => worker.clone(),
        None => std::env::current_exe().map_err(StartError::OwnPath)?,
    };
    let limits =
        dispatch::Limits { queue_length: config.limits.queue_length, queue_wait: config.limits.queue_wait };
    let cluster = Cluster::new(limits, config.machine_id.clone());
    let metrics = Metrics::new();
    for model in store.models().await? {
        metrics.add_model(&model.manifest.id);
        cluster.set_model(Registered::from(model));
    }
    let app = Arc::new(App {
        cache_salts: CacheSalts::default(),
        templates: Templates::new(template_worker, config.template_clock),
        metrics,
        join_secret: join_secret.clone(),
        cluster,
        store,
        hub,
        allowlist,
        supported,
        verified,
        registrations: Semaphore::new(REGISTRATIONS_MAX),
        catalog: Mutex::new(()),
        tasks: TaskTracker::new(),
        drain: shutdown,
        cut: CancellationToken::new(),
        nodes_end: CancellationToken::new(),
        started: Instant::now(),
        config,
    });
    let (deadlines, end) = (Arc::clone(&app.cluster).watch_deadlines(), app.nodes_end.clone());
    app.tasks.spawn(async move {
        tokio::select! {
            () = deadlines => {}
            () = end.cancelled() => {}
        }
    });
    app.tasks.spawn(crate::register::reread::run(Arc::clone(&app)));
    let warming = Arc::clone(&app);
    app.tasks.spawn(async move { warming.templates.warm().await });
    let router = crate::routes::router(Arc::clone(&app));
    tracing::info!(%local_addr, data_dir = %app.config.data_dir.display(), "router started");
    let local = Local(Arc::clone(&app));
    Ok(Running {
        local_addr,
        join_secret,
        local,
        task: tokio::spawn(crate::serve::serve(listener, router, app)),
    })
}

fn supported_models(config: &Config) -> Result<SupportedModels, StartError> {
    let Some(path) = &config.supported_models else { return Ok(SupportedModels::shipped()) };
    let wrong = |source| StartError::Supported { path: path.clone(), source };
    let text = std::fs::read_to_string(path).map_err(|e| wrong(Box::new(e)))?;
    SupportedModels::parse(&text).map_err(|e| wrong(Box::new(e)))
}
