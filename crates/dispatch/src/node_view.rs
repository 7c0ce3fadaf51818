//! What a decision needs to know of a node.

use std::collections::BTreeMap;

use node_api::{ModelState, NodeStatus};

/// A node that may get requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeView {
    /// It ends: no new requests.
    pub draining: bool,
    /// By model id; only models that are ready there.
    pub replicas: BTreeMap<String, Replica>,
}

/// A model that is ready on a node. The order is the order of preference at equal load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replica {
    /// In a worker that runs this many sequences at once.
    Loaded { sequences_max: u32 },
    /// On its way into a worker.
    Loading,
    /// The request would bring it into a worker.
    Ready,
}

impl NodeView {
    /// From a node's own words. `current` tells whether a (model, fingerprint) is the one that is registered now: what a
    /// node still has of an older registration gets no requests.
    pub fn of(status: &NodeStatus, current: impl Fn(&str, &str) -> bool) -> NodeView {
        let replica = |state: &ModelState| match state {
            ModelState::Loaded { sequences_max, .. } => {
                Some(Replica::Loaded { sequences_max: *sequences_max })
            }
            ModelState::Loading { .. } => Some(Replica::Loading),
            ModelState::Ready { .. } => Some(Replica::Ready),
            _ => None,
        };
        let replicas = status
            .models
            .iter()
            .filter(|m| current(&m.id, &m.fingerprint))
            .filter_map(|m| Some((m.id.clone(), replica(&m.state)?)))
            .collect();
        NodeView { draining: status.draining, replicas }
    }
}
