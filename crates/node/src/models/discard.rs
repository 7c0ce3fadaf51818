//! The files of a model that an operator removed: what this node brought into the shared cache leaves it.
//!
//! Only an operator's removal does that. A router that no longer names a model may have lost its database, and twenty
//! gigabytes are not fetched again for that.

use std::sync::Arc;
use std::time::Duration;

use model_manifest::Manifest;
use tokio::time::timeout;

use super::Entry;
use crate::link::chain;
use crate::node::Node;

/// The router takes the model from its wishes right after the command. Where another router still wants it, that does not
/// happen, and the files stay.
const DROP_WAIT_MAX: Duration = Duration::from_secs(60);
/// For requests that still run, and their workers: some systems remove no file that is mapped.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(600);

/// Removes the files in the background, once nobody here wants or uses the model.
pub fn later(node: &Arc<Node>, entry: &Arc<Entry>) {
    let (node, entry) = (Arc::clone(node), Arc::clone(entry));
    node.tasks.clone().spawn(async move {
        tokio::select! {
            () = discard(&node, &entry) => {}
            () = node.end.cancelled() => {}
        }
    });
}

async fn discard(node: &Arc<Node>, entry: &Arc<Entry>) {
    let manifest = &entry.desired.manifest;
    if timeout(DROP_WAIT_MAX, entry.dropped.cancelled()).await.is_err() {
        tracing::info!(model = manifest.id, "its files stay: somebody else wants the model here");
        return;
    }
    let mut changed = entry.changed.subscribe();
    let left = async {
        while !entry.lock().replicas.is_empty() {
            // The sender lives in the entry.
            let _ = changed.changed().await;
        }
    };
    if timeout(LEAVE_WAIT_MAX, left).await.is_err() {
        tracing::warn!(model = manifest.id, "its files stay: its workers do not end");
        return;
    }
    let others = node.table().entries();
    let kept: Vec<&Manifest> = others.iter().map(|other| &other.desired.manifest).collect();
    if let Err(error) = node.store.remove(manifest, &kept).await {
        tracing::warn!(model = manifest.id, "its files cannot be removed: {}", chain(&error));
    }
}
