//! What a decision needs to know of a node.

use std::collections::BTreeMap;

use node_api::{ModelState, ModelStatus, NodeStatus, ReplicaRole};

/// A node that may get requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeView {
    /// It ends: no new requests.
    pub draining: bool,
    /// Bytes free on its roomiest device.
    pub memory_free: u64,
    /// By model id; only models that are ready there.
    pub replicas: BTreeMap<String, Replica>,
}

/// A model that is ready on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Replica {
    /// In workers that run this many sequences at once, together.
    Loaded { sequences_max: u32, workers: u32 },
    /// On its way into a worker; 0 to 1.
    Loading { progress: f32 },
    /// A request would bring it into a worker.
    Ready,
}

impl NodeView {
    /// From a node's own words. `current` tells whether a (model, fingerprint) is the one that is registered now: what a
    /// node still has of an older registration gets no requests.
    pub fn of(status: &NodeStatus, current: impl Fn(&str, &str) -> bool) -> NodeView {
        let replicas = status
            .models
            .iter()
            .filter(|m| current(&m.id, &m.fingerprint))
            .filter_map(|m| Some((m.id.clone(), replica(m)?)))
            .collect();
        let device = |d: &node_api::DeviceMemory| d.total.saturating_sub(d.used.max(d.reserved));
        let free = status.memory.devices.iter().map(device).max();
        NodeView {
            draining: status.draining,
            memory_free: free.unwrap_or(status.memory.ram_available),
            replicas,
        }
    }
}

fn replica(model: &ModelStatus) -> Option<Replica> {
    // While a worker serves, whatever else is going on beside it takes nothing away.
    let serving = model.replicas.iter().filter(|r| r.role == ReplicaRole::Serving);
    let (workers, sequences) =
        serving.fold((0u32, 0u32), |(n, sum), r| (n + 1, sum.saturating_add(r.sequences_max.max(1))));
    match &model.state {
        state if workers > 0 && state.is_ready() => {
            Some(Replica::Loaded { sequences_max: sequences, workers })
        }
        ModelState::Loaded { sequences_max, .. } => {
            Some(Replica::Loaded { sequences_max: (*sequences_max).max(1), workers: 1 })
        }
        ModelState::Loading { progress, .. } => Some(Replica::Loading { progress: *progress }),
        ModelState::Ready { .. } => Some(Replica::Ready),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
