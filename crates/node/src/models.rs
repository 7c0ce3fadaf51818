//! The models routers want here, and how far each of them is.

mod load;
mod prepare;

pub use load::{Load, Replica};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use node_api::{ApiError, DesiredModel, DesiredModels, ModelState, ModelStatus};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api_error::plain;
use crate::engines::Choice;
use crate::node::Node;

/// Models on a node at most, of all routers together.
pub const MODELS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub struct Table {
    /// By the router that wants them. Kept while a router is away.
    wanted: BTreeMap<usize, Vec<DesiredModel>>,
    models: BTreeMap<String, Arc<Entry>>,
}

/// One wanted model.
#[derive(Debug)]
pub struct Entry {
    pub desired: DesiredModel,
    /// Nobody wants it any more, or in another form.
    pub dropped: CancellationToken,
    state: Mutex<EntryState>,
}

#[derive(Debug)]
struct EntryState {
    state: ModelState,
    notes: Vec<String>,
    choice: Option<Choice>,
    load: Option<watch::Receiver<Load>>,
    deaths: Deaths,
}

/// Deaths of workers in a row.
#[derive(Debug, Default, Clone, Copy)]
struct Deaths {
    count: u32,
    last: Option<Instant>,
}

impl Entry {
    fn new(desired: DesiredModel) -> Entry {
        Entry {
            desired,
            dropped: CancellationToken::new(),
            state: Mutex::new(EntryState {
                state: ModelState::Waiting,
                notes: Vec::new(),
                choice: None,
                load: None,
                deaths: Deaths::default(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, node: &Node, state: ModelState) {
        let mut entry = self.lock();
        if entry.state == state {
            return;
        }
        tracing::debug!(model = self.desired.manifest.id, ?state, "state");
        entry.state = state;
        drop(entry);
        node.touch();
    }

    pub fn status(&self) -> ModelStatus {
        let entry = self.lock();
        ModelStatus {
            id: self.desired.manifest.id.clone(),
            fingerprint: self.desired.fingerprint.clone(),
            state: entry.state.clone(),
            notes: entry.notes.clone(),
        }
    }

    /// A request came to its end in order: deaths before it do not count.
    pub fn worked(&self) {
        self.lock().deaths = Deaths::default();
    }

    /// 503 with the reason unless a request may be sent to it.
    fn check_ready(&self) -> Result<(), ApiError> {
        let id = &self.desired.manifest.id;
        let not = |code, reason: String| {
            Err(plain(503, code, format!("{id} is not ready on this node: {reason}"), true))
        };
        match &self.lock().state {
            state if state.is_ready() => Ok(()),
            ModelState::Unsupported { reason } => not("model_unsupported", reason.clone()),
            ModelState::Failed { reason, .. } => not("model_failed", reason.clone()),
            ModelState::Downloading { bytes_done, bytes_total, .. } => {
                not("model_not_ready", format!("downloaded {bytes_done} of {bytes_total} bytes"))
            }
            ModelState::Verifying { bytes_done, bytes_total } => {
                not("model_not_ready", format!("verified {bytes_done} of {bytes_total} bytes"))
            }
            _ => not("model_not_ready", "waiting to be fetched".to_owned()),
        }
    }
}

impl Table {
    pub fn statuses(&self) -> Vec<ModelStatus> {
        self.models.values().map(|entry| entry.status()).collect()
    }

    /// The model a request means; 503 if it is not here in that form or not ready.
    pub fn find(&self, id: &str, fingerprint: &str) -> Result<Arc<Entry>, ApiError> {
        let Some(entry) = self.models.get(id) else {
            return Err(plain(503, "model_not_here", format!("this node was not told of {id}"), true));
        };
        if entry.desired.fingerprint != fingerprint {
            let message =
                format!("this node has another registration of {id}: {}", entry.desired.fingerprint);
            return Err(plain(503, "model_not_here", message, true));
        }
        entry.check_ready()?;
        Ok(Arc::clone(entry))
    }
}

/// Makes the node have what this router wants, and what the others want. Of two forms of one model the first stays.
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
        let keep = union.get(id).is_some_and(|wanted| *wanted == entry.desired);
        if !keep {
            entry.dropped.cancel();
        }
        keep
    });
    for (id, desired) in union {
        table.models.entry(id).or_insert_with(|| {
            let entry = Arc::new(Entry::new(desired));
            node.tasks.spawn(prepare::run(Arc::clone(node), Arc::clone(&entry)));
            entry
        });
    }
    drop(table);
    node.touch();
    Ok(())
}
