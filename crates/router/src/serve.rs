//! The accept loop: connections with a bound, HTTP/1.1 and HTTP/2, and an end in three steps.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::AddExtension;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower::Layer as _;

use crate::app::App;
use crate::caller::Peer;

pub const CONNECTIONS_MAX: usize = 4096;
/// For the head of a request; also how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// After a failed accept (no file handles left): trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection that comes while the router ends may take for its request.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// For the last words of requests that were cut, and for the router's own tasks.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until the app is told to drain. Then running requests go on for the drain time; who comes meanwhile learns that the
/// router ends, instead of finding nobody. What still runs after that is cut with its last words, and the nodes are let go.
pub async fn serve(listener: TcpListener, router: Router, app: Arc<App>) {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let accept = || accept(&listener, &places);
    loop {
        let (stream, peer, place) = tokio::select! {
            accepted = accept() => accepted,
            () = app.drain.cancelled() => break,
        };
        let connection = connections.watch(connection(stream, peer, router.clone()));
        spawn(&app, place, async move {
            // A connection that breaks is the peer's affair.
            let _ = connection.await;
        });
    }
    let drain = app.config.limits.drain;
    tracing::info!(seconds = drain.as_secs(), "ending: running requests may go on");
    let finished = timeout(drain, connections.shutdown());
    tokio::pin!(finished);
    let whole = loop {
        tokio::select! {
            finished = finished.as_mut() => break finished.is_ok(),
            (stream, peer, place) = accept() => {
                let connection = connection(stream, peer, router.clone());
                spawn(&app, place, refuse(connection));
            }
        }
    };
    drop(listener);
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

/// The next connection, with its place among those that may be open.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, place),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Runs a connection to its end, or until what still runs is cut.
fn spawn(app: &App, place: OwnedSemaphorePermit, connection: impl Future<Output = ()> + Send + 'static) {
    let cut = app.cut.clone();
    app.tasks.spawn(async move {
        let _place = place;
        tokio::select! {
            () = connection => {}
            () = async { cut.cancelled().await; tokio::time::sleep(LAST_WORDS).await } => {}
        }
    });
}

/// One answer, which says that the router ends, and no more on this connection.
async fn refuse(connection: Connection) {
    tokio::pin!(connection);
    let answered = tokio::select! {
        _ = connection.as_mut() => true,
        () = tokio::time::sleep(REFUSAL_TIME) => false,
    };
    if !answered {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_WORDS, connection).await;
    }
}

type Connection =
    auto::UpgradeableConnection<'static, TokioIo<TcpStream>, TowerToHyperService<WithPeer>, TokioExecutor>;
type WithPeer = AddExtension<Router, Peer>;

fn connection(stream: TcpStream, peer: SocketAddr, router: Router) -> Connection {
    // Tokens leave one by one: waiting to fill a packet would cost each of them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps Nagle's algorithm");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEAD_TIMEOUT);
    let service = TowerToHyperService::new(Extension(Peer(peer)).layer(router));
    builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned()
}
