//! The link to one router: made, served on, and made again when it is lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::Uri;
use node_api::transport::{DialError, LocalRouter, dial, local, serve};
use node_api::{ApiError, Join, PROTOCOL_VERSION};
use rand::RngExt as _;
use tokio::time::timeout;

use crate::node::Node;
use crate::service::Service;

/// The first pause after a lost connection; doubled each time up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// After a refusal: somebody has to change something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// A connection this old was a good one: the next pause is the shortest again.
const GOOD_AFTER: Duration = Duration::from_secs(30);
/// For the last frames of a connection that ends in order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How it stands with a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    Dialling,
    Connected,
    /// Not reached; it is tried again.
    Unreachable {
        reason: String,
    },
    /// The router said no; it is asked again, seldom.
    Refused(ApiError),
}

/// A router, as it is reached.
#[derive(Debug)]
pub enum Reach {
    Dial { uri: Uri, join_secret: String },
    Local(Arc<dyn LocalRouter>),
}

/// Why a router was not joined.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the router of this process does not take this node ({}): {}", .0.status, .0.message)]
    Local(ApiError),
}

impl JoinError {
    /// What the router itself said.
    fn refused(&self) -> Option<&ApiError> {
        match self {
            JoinError::Dial(DialError::Refused { reason, .. }) | JoinError::Local(reason) => Some(reason),
            JoinError::Dial(_) => None,
        }
    }
}

/// A link on which this node was taken.
struct Joined {
    /// For log lines.
    router: String,
    /// Until the router goes, or the node ends and nothing runs; an error says what broke.
    serving: BoxFuture<'static, Result<(), String>>,
}

impl Reach {
    async fn join(&self, node: &Arc<Node>, index: usize) -> Result<Joined, JoinError> {
        let service = Arc::new(Service::new(Arc::clone(node), index));
        match self {
            Reach::Dial { uri, join_secret } => {
                let join = Join { protocol_version: PROTOCOL_VERSION, node: node.info.clone() };
                let dialled = dial(uri, join_secret, &join).await?;
                let serving = serve(dialled.io, service, node.end.clone());
                let serving = serving.map(|served| served.map_err(|e| e.to_string())).boxed();
                Ok(Joined { router: dialled.address, serving })
            }
            Reach::Local(router) => {
                let (link, serving) = local(service, node.end.clone());
                router.join(node.info.clone(), link).map_err(JoinError::Local)?;
                Ok(Joined { router: "this process".to_owned(), serving: serving.run().map(Ok).boxed() })
            }
        }
    }
}

/// Keeps one router until the node ends.
pub async fn keep(node: Arc<Node>, index: usize, router: Reach) {
    let mut pause = PAUSE_MIN;
    let mut said = None;
    while !node.end.is_cancelled() {
        let joined = tokio::select! {
            joined = router.join(&node, index) => joined,
            () = node.end.cancelled() => return,
        };
        let mut wait = pause;
        match joined {
            Ok(Joined { router, mut serving }) => {
                tracing::info!(node = node.info.id, router, "joined");
                set(&node, index, LinkState::Connected);
                said = None;
                let since = std::time::Instant::now();
                let served = tokio::select! {
                    served = &mut serving => served,
                    () = node.end.cancelled() => {
                        let _ = timeout(CLOSE_TIMEOUT, serving).await;
                        return;
                    }
                };
                let error = served.err().unwrap_or_else(|| "it closed the connection".to_owned());
                if node.draining.is_cancelled() {
                    tracing::info!(
                        node = node.info.id,
                        router,
                        error,
                        "the router has ended before this node"
                    );
                } else {
                    tracing::warn!(node = node.info.id, router, error, "the router is lost");
                }
                set(&node, index, LinkState::Unreachable { reason: error });
                if since.elapsed() >= GOOD_AFTER {
                    pause = PAUSE_MIN;
                }
                wait = pause;
            }
            Err(error) => {
                let (state, seldom) = match error.refused() {
                    Some(reason) => (LinkState::Refused(reason.clone()), reason.status < 500),
                    None => (LinkState::Unreachable { reason: chain(&error) }, false),
                };
                if seldom {
                    wait = REFUSED_PAUSE;
                }
                let text = chain(&error);
                // The same again and again is said once.
                if said.as_ref() != Some(&text) {
                    let hint = match &state {
                        LinkState::Refused(reason) => reason.hint.clone(),
                        _ => None,
                    };
                    tracing::warn!(node = node.info.id, hint, "{text}; it is tried again");
                    said = Some(text);
                }
                set(&node, index, state);
            }
        }
        pause = (pause * 2).min(PAUSE_MAX);
        // Half of it by chance: nodes that lost the same router do not come back together.
        let wait = wait.mul_f64(rand::rng().random_range(0.5..1.0));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = node.end.cancelled() => return,
        }
    }
}

fn set(node: &Node, index: usize, state: LinkState) {
    node.links.send_modify(|links| links[index] = state);
}

/// The error with its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
