//! How a replica leaves: no new requests, those it has finish, then the worker ends and its memory is given back.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use node_api::ReplicaRole;
use tokio::time::timeout;

use super::{Entry, Replica};
use crate::node::Node;
use crate::worker::{EndCause, Worker};

/// From a kill to the end of the process: the system frees its memory meanwhile.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A replica that takes no new requests any more finishes those it has and ends, in a task of its own.
pub(super) fn later(node: &Arc<Node>, entry: &Arc<Entry>, replica: Arc<Replica>) {
    let (of_task, entry) = (Arc::clone(node), Arc::clone(entry));
    node.tasks.spawn(async move {
        tokio::select! {
            () = now(&replica) => of_task.memory.tenants_changed(),
            // Its keeper ends all it has.
            () = of_task.end.cancelled() => {}
        }
        entry.tell(&of_task);
    });
}

/// The same, waited for. Requests take as long as they take: the watchdog sees to it that they move.
pub(super) async fn now(replica: &Replica) {
    replica.set_role(ReplicaRole::Draining);
    replica.idle().await;
    replica.worker.shut_down().await;
    drop(replica.release());
}

/// A worker that failed: killed at once. Returns when it is gone.
pub(super) async fn kill(worker: &Worker, reason: &str) {
    worker.kill(EndCause::Asked, reason);
    if timeout(KILL_TIMEOUT, worker.ended().wait_for(Option::is_some)).await.is_err() {
        tracing::error!(worker = worker.pid(), "a worker is still there after it was killed");
    }
}

/// All workers of a model at once, those that leave already too. They get `patience` to end in order.
pub(super) async fn all(node: &Node, entry: &Entry, patience: Duration) {
    let replicas = entry.lock().replicas.clone();
    join_all(replicas.iter().map(|replica| async {
        replica.set_role(ReplicaRole::Draining);
        if timeout(patience, replica.worker.shut_down()).await.is_err() {
            kill(&replica.worker, "it did not end in time with its node").await;
        }
        drop(replica.release());
    }))
    .await;
    entry.tell(node);
}
