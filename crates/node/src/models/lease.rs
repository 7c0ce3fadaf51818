//! A request's place on a replica: asked for, waited for, held, given back.

use std::ops::Deref;
use std::sync::Arc;

use engine_protocol::{Status, StatusCode};
use node_api::ApiError;
use tokio::sync::watch;

use super::pick::{Seat, pick};
use super::{Entry, Replica};
use crate::api_error::plain;
use crate::node::Node;

/// What a request hears while it waits for a replica.
#[derive(Debug)]
pub enum LeaseEvent {
    /// The model is on its way into a worker; 0 to 1.
    Loading(f32),
    /// Nothing comes after it.
    Granted(Lease),
    /// Nothing comes after it. Nobody died of this request: it has been on no worker.
    Failed(ApiError),
}

/// A request that waits for a replica. Dropping it ends the waiting.
#[derive(Debug)]
pub struct Leasing {
    node: Arc<Node>,
    entry: Arc<Entry>,
    prefix_hash: Option<u64>,
    changed: watch::Receiver<u64>,
    /// Loads that had failed before it came.
    load_failures: u64,
    told: Option<f32>,
    /// It counts among those who wait.
    waits: bool,
}

/// A place on a replica. As long as one is held the replica is busy: it is not idle, not evicted and does not leave.
#[derive(Debug)]
pub struct Lease {
    node: Arc<Node>,
    entry: Arc<Entry>,
    replica: Arc<Replica>,
}

impl Entry {
    /// Asks for a place on a replica, and has one loaded if there is none. `prefix_hash` is of the prompt's beginning:
    /// the same one goes to the same replica while that has room. `_worker_deaths` as in the request: every replica has a
    /// gate of its own, so it does not decide where the request goes.
    /// 503 with the reason where the model is not ready.
    pub fn lease(
        self: &Arc<Self>,
        node: &Arc<Node>,
        prefix_hash: Option<u64>,
        _worker_deaths: u32,
    ) -> Result<Leasing, ApiError> {
        // It was admitted. If workers have died in a row since, it waits for the next: nobody has seen anything of it.
        self.check_ready_or_restarts()?;
        Ok(Leasing {
            node: Arc::clone(node),
            entry: Arc::clone(self),
            prefix_hash,
            changed: self.changed.subscribe(),
            load_failures: self.lock().load_failures,
            told: None,
            waits: false,
        })
    }

    /// Replicas in a worker, least loaded first or the one that knows the beginning.
    fn take(self: &Arc<Self>, node: &Arc<Node>, prefix_hash: Option<u64>) -> Option<Lease> {
        let entry = self.lock();
        if entry.trouble.is_some() {
            return None;
        }
        let serving: Vec<&Arc<Replica>> = entry.serving().collect();
        let seats: Vec<Seat> = serving.iter().map(|replica| replica.seat(prefix_hash)).collect();
        let replica = Arc::clone(serving[pick(&seats)?]);
        replica.enter(prefix_hash);
        drop(entry);
        Some(Lease { node: Arc::clone(node), entry: Arc::clone(self), replica })
    }
}

impl Leasing {
    /// The next thing to know; the first time at once. Dropping the future loses nothing.
    pub async fn next(&mut self) -> LeaseEvent {
        loop {
            self.changed.mark_unchanged();
            if self.entry.dropped.is_cancelled() {
                return LeaseEvent::Failed(gone(self.entry.id()));
            }
            if self.node.end.is_cancelled() {
                return LeaseEvent::Failed(plain(503, "node_ends", "the node ends", true));
            }
            if let Some(lease) = self.entry.take(&self.node, self.prefix_hash) {
                self.wait(false);
                return LeaseEvent::Granted(lease);
            }
            if let Some(error) = self.failure() {
                return LeaseEvent::Failed(error);
            }
            self.wait(true);
            let progress = self.entry.lock().starting.as_ref().map_or(0.0, |starting| starting.progress);
            if self.told != Some(progress) {
                self.told = Some(progress);
                return LeaseEvent::Loading(progress);
            }
            tokio::select! {
                // The sender lives in the entry that is held here.
                _ = self.changed.changed() => {}
                () = self.entry.dropped.cancelled() => {}
                () = self.node.end.cancelled() => {}
            }
        }
    }

    /// A load failed since it came, or the model needs somebody's help.
    fn failure(&self) -> Option<ApiError> {
        let entry = self.entry.lock();
        if entry.load_failures != self.load_failures {
            return Some(entry.load_error.clone());
        }
        let barred = entry.trouble.as_ref().is_some_and(|trouble| !trouble.retrying);
        drop(entry);
        barred.then(|| self.entry.check_ready().err()).flatten()
    }

    fn wait(&mut self, waits: bool) {
        if self.waits == waits {
            return;
        }
        self.waits = waits;
        self.entry.change(&self.node, |entry| {
            entry.waiting = if waits { entry.waiting + 1 } else { entry.waiting.saturating_sub(1) };
        });
    }
}

impl Drop for Leasing {
    fn drop(&mut self) {
        self.wait(false);
    }
}

impl Lease {
    /// What the engine said of a request that failed: broken files take the model out of ready.
    pub fn failed_with(&self, status: &Status) {
        if status.code == StatusCode::ModelCorrupt {
            self.entry.corrupt(&self.node, &status.message);
        }
    }
}

impl Deref for Lease {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.replica.leave() {
            self.entry.wake.notify_one();
            self.node.memory.tenants_changed();
        }
    }
}

pub(super) fn gone(id: &str) -> ApiError {
    plain(503, "model_dropped", format!("{id} is no longer wanted on this node"), true)
}
