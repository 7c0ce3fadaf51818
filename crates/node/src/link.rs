//! The connection to one router: dialled, served on, and dialled again when it is lost.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use node_api::transport::{DialError, dial, serve};
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

/// Keeps one router until the node ends.
pub async fn keep(node: Arc<Node>, index: usize, router: Uri) {
    let secret = node.config.routers[index].join_secret.clone();
    let join = Join { protocol_version: PROTOCOL_VERSION, node: node.info.clone() };
    let mut pause = PAUSE_MIN;
    let mut said = None;
    while !node.end.is_cancelled() {
        let dialled = tokio::select! {
            dialled = dial(&router, &secret, &join) => dialled,
            () = node.end.cancelled() => return,
        };
        let mut wait = pause;
        match dialled {
            Ok(dialled) => {
                tracing::info!(node = node.info.id, router = dialled.address, "joined");
                set(&node, index, LinkState::Connected);
                said = None;
                let since = std::time::Instant::now();
                let service = Arc::new(Service::new(Arc::clone(&node), index));
                let serving = serve(dialled.io, service, node.end.clone());
                tokio::pin!(serving);
                let served = tokio::select! {
                    served = serving.as_mut() => served,
                    () = node.end.cancelled() => {
                        let _ = timeout(CLOSE_TIMEOUT, serving).await;
                        return;
                    }
                };
                let error =
                    served.err().map(|e| e.to_string()).unwrap_or_else(|| "it closed the connection".into());
                tracing::warn!(node = node.info.id, router = dialled.address, error, "the router is lost");
                set(&node, index, LinkState::Unreachable { reason: error });
                if since.elapsed() >= GOOD_AFTER {
                    pause = PAUSE_MIN;
                }
                wait = pause;
            }
            Err(error) => {
                let (state, seldom) = match &error {
                    DialError::Refused { reason, .. } => {
                        (LinkState::Refused(reason.clone()), reason.status < 500)
                    }
                    other => (LinkState::Unreachable { reason: chain(other) }, false),
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
