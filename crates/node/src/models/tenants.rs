//! The replicas as the memory sees them: who is idle, who leaves when it says so.

use std::sync::{Arc, Weak};

use node_api::ReplicaRole;
use tokio::time::Instant;

use super::keeper::EXTRA_PAUSE;
use super::{Entry, Replica, leave};
use crate::memory::{GrantId, Reservation, Tenant, Tenants};
use crate::node::Node;

/// Weak: the node holds its memory.
#[derive(Debug)]
pub struct Replicas(pub Weak<Node>);

impl Tenants for Replicas {
    fn list(&self) -> Vec<Tenant> {
        let Some(node) = self.0.upgrade() else { return Vec::new() };
        let entries = node.table().entries();
        let mut tenants = Vec::new();
        for entry in entries {
            let entry = entry.lock();
            for replica in &entry.replicas {
                let Some(grant) = grant(replica) else { continue };
                tenants.push(Tenant {
                    grant,
                    busy: replica.running() > 0,
                    leaving: replica.role() == ReplicaRole::Draining,
                    last_used: replica.last_used(),
                });
            }
            if let Some(grant) = entry.starting.as_ref().and_then(|starting| starting.grant) {
                tenants.push(Tenant { grant, busy: true, leaving: false, last_used: Instant::now() });
            }
        }
        tenants
    }

    fn evict(&self, grant: GrantId) -> bool {
        let Some(node) = self.0.upgrade() else { return false };
        let left = retire(&node, grant, |replica| replica.running() == 0);
        if left {
            node.counters.evictions.one();
        }
        left
    }

    fn drain(&self, grant: GrantId) {
        if let Some(node) = self.0.upgrade() {
            retire(&node, grant, |_| true);
        }
    }
}

pub(super) fn grant(replica: &Replica) -> Option<GrantId> {
    replica.with_reservation(Reservation::id)
}

/// Has the replica leave if `may` says so: looked at with its entry locked, so that no request gets on it meanwhile.
fn retire(node: &Arc<Node>, wanted: GrantId, may: impl Fn(&Replica) -> bool) -> bool {
    let entries = node.table().entries();
    for entry in entries {
        let found: Option<Arc<Replica>> = {
            let mut state = entry.lock();
            let replica = state.serving().find(|replica| grant(replica) == Some(wanted)).cloned();
            replica.filter(|replica| may(replica)).inspect(|replica| {
                replica.set_role(ReplicaRole::Draining);
                // It comes back when it is asked for; a further replica not before others had their turn.
                state.resident = state.serves();
                state.extra_at = Some(Instant::now() + EXTRA_PAUSE);
            })
        };
        if let Some(replica) = found {
            told(node, &entry, replica);
            return true;
        }
    }
    false
}

fn told(node: &Arc<Node>, entry: &Arc<Entry>, replica: Arc<Replica>) {
    entry.tell(node);
    leave::later(node, entry, replica);
}
