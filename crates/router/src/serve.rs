//! The accept loop: connections with a bound, HTTP/1.1 and HTTP/2, and an end in three steps.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::app::App;

pub const CONNECTIONS_MAX: usize = 4096;
/// For the head of a request; also how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// After a failed accept (no file handles left): trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For the last words of requests that were cut, and for the router's own tasks.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until the app is told to drain; then no connection is taken, running requests go on for the drain time, what
/// still runs is cut, and the nodes are let go.
pub async fn serve(listener: TcpListener, router: Router, app: Arc<App>) {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = app.drain.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = connections.watch(connection(stream, router.clone()));
        let cut = app.cut.clone();
        app.tasks.spawn(async move {
            let _place = place;
            let ended = async {
                // A connection that breaks is the peer's affair.
                let _ = connection.await;
            };
            tokio::select! {
                () = ended => {}
                () = async { cut.cancelled().await; tokio::time::sleep(LAST_WORDS).await } => {}
            }
        });
    }
    drop(listener);
    let drain = app.config.limits.drain;
    tracing::info!(seconds = drain.as_secs(), "ending: running requests may go on");
    let whole = timeout(drain, connections.shutdown()).await.is_ok();
    if !whole {
        tracing::warn!(seconds = drain.as_secs(), "requests that still ran were cut");
    }
    app.cut.cancel();
    app.nodes_end.cancel();
    app.tasks.close();
    // Twice: the tasks of cut connections use up the first.
    if timeout(LAST_WORDS * 2, app.tasks.wait()).await.is_err() {
        tracing::warn!("tasks of the router did not end in time");
    }
    app.store.close().await;
    tracing::info!("router ended");
}

fn connection(
    stream: TcpStream,
    router: Router,
) -> auto::UpgradeableConnection<'static, TokioIo<TcpStream>, TowerToHyperService<Router>, TokioExecutor> {
    // Tokens leave one by one: waiting to fill a packet would cost each of them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps Nagle's algorithm");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEAD_TIMEOUT);
    builder
        .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(router))
        .into_owned()
}
