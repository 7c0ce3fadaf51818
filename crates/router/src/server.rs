//! Starting and ending a router.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::secret::{self, SecretError};

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
}

/// A router that serves. It ends when the token given to [`start`] is cancelled; [`Running::wait`] waits for that.
#[derive(Debug)]
pub struct Running {
    /// Where it listens, with the port that was taken.
    pub local_addr: SocketAddr,
    /// What nodes join with.
    pub join_secret: String,
    task: JoinHandle<()>,
}

impl Running {
    /// `http://127.0.0.1:8411`.
    pub fn url(&self) -> String {
        format!("http://{}", self.local_addr)
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
    std::fs::create_dir_all(&config.data_dir)
        .map_err(|source| StartError::DataDir { path: config.data_dir.clone(), source })?;
    let secret_file = config.join_secret_file.clone().unwrap_or_else(|| config.data_dir.join("join-secret"));
    let join_secret = secret::load_or_create(&secret_file)?;
    let listener = TcpListener::bind(config.listen).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => StartError::PortBusy { addr: config.listen },
        _ => StartError::Listen { addr: config.listen, source },
    })?;
    let local_addr =
        listener.local_addr().map_err(|source| StartError::Listen { addr: config.listen, source })?;
    let app = axum::Router::new();
    let task = tokio::spawn(async move {
        let served = axum::serve(listener, app).with_graceful_shutdown(shutdown.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the listener failed");
        }
    });
    Ok(Running { local_addr, join_secret, task })
}
