//! The models routers want here, and how far each of them is.

mod commands;
mod discard;
mod entry;
mod forms;
mod handover;
mod keeper;
mod launch;
mod lease;
mod leave;
mod pick;
mod plan;
mod prepare;
mod replica;
mod restart;
mod tenants;
mod trial;
mod wanted;
mod ways;

pub use commands::{engines, model};
pub use entry::Entry;
pub use lease::{Lease, LeaseEvent};
pub use replica::{Replica, Suspect};
pub use tenants::Replicas;

use std::collections::BTreeMap;
use std::sync::Arc;

use node_api::{ApiError, DesiredModel, DesiredModels, ModelStatus};

use crate::api_error::plain;
use crate::node::Node;

/// Models on a node at most, of all routers together.
pub const MODELS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub struct Table {
    /// By the router that wants them. Kept while a router is away.
    wanted: BTreeMap<usize, Vec<DesiredModel>>,
    models: BTreeMap<String, Arc<Entry>>,
}

impl Table {
    pub fn statuses(&self) -> Vec<ModelStatus> {
        self.models.values().map(|entry| entry.status()).collect()
    }

    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.models.values().cloned().collect()
    }

    /// The model of this registration, whatever its state; 503 if it is not here in that form.
    pub fn get(&self, id: &str, fingerprint: &str) -> Result<Arc<Entry>, ApiError> {
        let Some(entry) = self.models.get(id) else {
            return Err(plain(503, "model_not_here", format!("this node was not told of {id}"), true));
        };
        if entry.desired.fingerprint != fingerprint {
            let message =
                format!("this node has another registration of {id}: {}", entry.desired.fingerprint);
            return Err(plain(503, "model_not_here", message, true));
        }
        Ok(Arc::clone(entry))
    }

    /// The model a request means; 503 if it is not here in that form or not ready. One that was on a worker that died
    /// (`worker_deaths`) waits out a crash loop's pause: its caller is to notice nothing. New ones are told.
    pub fn find(&self, id: &str, fingerprint: &str, worker_deaths: u32) -> Result<Arc<Entry>, ApiError> {
        let entry = self.get(id, fingerprint)?;
        if worker_deaths == 0 {
            entry.check_ready()?;
        } else {
            entry.check_ready_or_restarts()?;
        }
        Ok(entry)
    }
}

/// Makes the node have what this router wants, and what the others want. Of two forms of one model the first stays.
/// Other settings of a model that is here are adopted: where they need a new load, its workers are handed over.
pub fn put(node: &Arc<Node>, router: usize, wanted: DesiredModels) -> Result<(), ApiError> {
    let mut table = node.table();
    let others = table.wanted.iter().filter(|(index, _)| **index != router).map(|(_, models)| models.len());
    let count = others.sum::<usize>() + wanted.models.len();
    if count > MODELS_MAX {
        let message = format!("{count} models are wanted here, at most {MODELS_MAX} are allowed");
        return Err(plain(400, "too_many_models", message, false));
    }
    if let Some(model) = wanted.models.iter().find(|m| m.manifest.fingerprint() != m.fingerprint) {
        let message = format!("the manifest of {} is not the one its fingerprint names", model.manifest.id);
        return Err(plain(400, "fingerprint_wrong", message, false));
    }
    table.wanted.insert(router, wanted.models);
    let mut union: BTreeMap<String, DesiredModel> = BTreeMap::new();
    for model in table.wanted.values().flatten() {
        union.entry(model.manifest.id.clone()).or_insert_with(|| model.clone());
    }
    table.models.retain(|id, entry| {
        let keep = union.get(id).is_some_and(|wanted| wanted.fingerprint == entry.desired.fingerprint);
        if !keep {
            entry.dropped.cancel();
        }
        keep
    });
    let mut changed = Vec::new();
    for (id, desired) in union {
        match table.models.get(&id) {
            Some(entry) if *entry.settings() == desired.settings => {}
            Some(entry) => {
                entry.lock().settings = Arc::new(desired.settings);
                changed.push(Arc::clone(entry));
            }
            None => {
                let entry = Arc::new(Entry::new(desired));
                node.tasks.spawn(prepare::run(Arc::clone(node), Arc::clone(&entry)));
                node.tasks.spawn(keeper::run(Arc::clone(node), Arc::clone(&entry)));
                table.models.insert(id, entry);
            }
        }
    }
    drop(table);
    for entry in changed {
        entry.lock().extra_at = None;
        // Another engine or device may be allowed now, and another may not.
        entry.look_again.notify_one();
        entry.tell(node);
    }
    node.touch();
    Ok(())
}
