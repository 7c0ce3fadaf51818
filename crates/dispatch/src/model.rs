//! One model: the nodes that have it, and the requests that wait for it in order of arrival.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::affinity::rank;
use crate::dispatcher::Ticket;
use crate::node_view::Replica;

/// Requests that a worker gets beyond those it can run, so that it has one at hand when another ends. More would only move
/// the queue to where nobody can send them elsewhere.
pub const SURPLUS: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub hosts: BTreeMap<Arc<str>, Host>,
    /// Tickets are numbered in order of arrival, and one that is sent again keeps its own.
    pub queue: BTreeSet<Ticket>,
    /// Came into the queue since it was last looked at.
    pub fresh: Vec<Ticket>,
    /// When a load was last seen to move.
    pub progress_at: Duration,
    /// How long the request that was sent last had waited for its place.
    pub waited: Option<Duration>,
    /// Since when no node takes requests for it.
    pub hostless_since: Option<Duration>,
    /// It is on the list of models to look at.
    pub dirty: bool,
}

/// A node as far as this model goes.
#[derive(Debug)]
pub(crate) struct Host {
    pub replica: Replica,
    /// Not draining, and the model is ready there.
    pub open: bool,
    /// Bytes.
    pub memory_free: u64,
    /// Requests that are there.
    pub running: u32,
    /// Of those, the ones that have not begun: they may be bringing it into a worker.
    pub beginning: u32,
    /// A load that failed here is not tried again before, whoever asks for it.
    pub rests_until: Duration,
}

impl Host {
    fn room(&self, surplus: bool) -> bool {
        match self.replica {
            Replica::Loaded { sequences_max, workers } => {
                let more = if surplus { SURPLUS.saturating_mul(workers) } else { 0 };
                self.open && self.running < sequences_max.saturating_add(more)
            }
            _ => false,
        }
    }

    fn weight(&self) -> u32 {
        match self.replica {
            Replica::Loaded { sequences_max, .. } => sequences_max.max(1),
            _ => 1,
        }
    }

    /// Requests for each place, in thousandths.
    fn load(&self) -> u64 {
        u64::from(self.running) * 1000 / u64::from(self.weight())
    }
}

impl Model {
    pub fn has_host(&self) -> bool {
        self.hosts.values().any(|h| h.open)
    }

    pub fn is_loading(&self) -> bool {
        self.hosts.values().any(|h| h.open && matches!(h.replica, Replica::Loading { .. }))
    }

    /// The node for the request at the head of the queue; `None`: it waits. `failed_on` names a node once for each failure
    /// there that killed nobody.
    pub fn choose(&self, now: Duration, affinity: u64, failed_on: &[Arc<str>]) -> Option<Arc<str>> {
        self.loaded(affinity, failed_on, false)
            .or_else(|| self.loaded(affinity, failed_on, true))
            .or_else(|| self.trigger(now, failed_on))
    }

    /// A worker that can run it, or with `surplus` soon will.
    fn loaded(&self, affinity: u64, failed_on: &[Arc<str>], surplus: bool) -> Option<Arc<str>> {
        let with_room = self.hosts.iter().filter(|(_, host)| host.room(surplus));
        let best = with_room.min_by(|(a_id, a), (b_id, b)| {
            let failures = times(failed_on, a_id).cmp(&times(failed_on, b_id));
            failures
                .then_with(|| match affinity {
                    0 => a.load().cmp(&b.load()),
                    _ => rank(affinity, b_id, b.weight()).total_cmp(&rank(affinity, a_id, a.weight())),
                })
                .then_with(|| a_id.cmp(b_id))
        });
        best.map(|(id, _)| Arc::clone(id))
    }

    /// A node that the request shall bring it into a worker on. One at a time: the others wait here, where the first worker
    /// that is ready gets them.
    fn trigger(&self, now: Duration, failed_on: &[Arc<str>]) -> Option<Arc<str>> {
        let on_its_way = |host: &Host| match host.replica {
            Replica::Loading { .. } => true,
            Replica::Ready => host.beginning > 0,
            Replica::Loaded { .. } => false,
        };
        let mut open = self.hosts.values().filter(|h| h.open);
        if open.any(on_its_way) {
            return None;
        }
        let may_load = |h: &Host| h.open && h.replica == Replica::Ready && h.rests_until <= now;
        let ready = self.hosts.iter().filter(|(_, h)| may_load(h));
        ready
            .min_by_key(|(id, host)| (times(failed_on, id), Reverse(host.memory_free), host.running, *id))
            .map(|(id, _)| Arc::clone(id))
    }
}

fn times(failed_on: &[Arc<str>], id: &str) -> usize {
    failed_on.iter().filter(|node| ***node == *id).count()
}
