//! From wanted to ready: which engine, then the files.

use std::sync::Arc;
use std::time::Duration;

use model_store::{Phase, Progress, StoreError};
use node_api::ModelState;
use tokio::sync::watch;

use super::Entry;
use crate::node::Node;

/// The first pause before a failed download is tried again; doubled up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(300);

pub async fn run(node: Arc<Node>, entry: Arc<Entry>) {
    let id = entry.desired.manifest.id.clone();
    match node.registry.choose(&entry.desired.manifest, &node.devices) {
        Ok(choice) => entry.lock().choice = Some(choice),
        Err(reason) => {
            tracing::warn!(model = id, reason, "the model cannot run here");
            return entry.set(&node, ModelState::Unsupported { reason });
        }
    }
    let mut pause = RETRY_MIN;
    loop {
        let fetched = tokio::select! {
            fetched = fetch(&node, &entry) => fetched,
            () = entry.dropped.cancelled() => return,
            () = node.end.cancelled() => return,
        };
        match fetched {
            Ok(()) => {
                tracing::info!(model = id, "the model is ready");
                return;
            }
            Err(StoreError::Cancelled) => return,
            Err(error) => {
                let retrying = error.is_transient();
                let hint = error.hint().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
                let reason = format!("{}{hint}", error.message());
                tracing::warn!(model = id, reason, retrying, "the model's files cannot be had");
                entry.set(&node, ModelState::Failed { reason, retrying });
                if !retrying {
                    return;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
            () = entry.dropped.cancelled() => return,
            () = node.end.cancelled() => return,
        }
    }
}

async fn fetch(node: &Arc<Node>, entry: &Arc<Entry>) -> Result<(), StoreError> {
    let Ok(_turn) = node.fetching.acquire().await else { return Err(StoreError::Cancelled) };
    let (sender, mut progress) = watch::channel(Progress::default());
    // Ends the store's work with this future, however that ends.
    let cancel = entry.dropped.child_token();
    let _guard = cancel.clone().drop_guard();
    let fetching = node.store.ensure(&entry.desired.manifest, &node.runtimes, &sender, &cancel);
    tokio::pin!(fetching);
    let model = loop {
        tokio::select! {
            done = fetching.as_mut() => break done?,
            Ok(()) = progress.changed() => {
                let now = progress.borrow_and_update().clone();
                let state = match now.phase {
                    Phase::Waiting | Phase::Done => continue,
                    Phase::Downloading => ModelState::Downloading {
                        bytes_done: now.bytes_done,
                        bytes_total: now.bytes_total,
                        files: now.files,
                    },
                    Phase::Verifying => {
                        ModelState::Verifying { bytes_done: now.bytes_done, bytes_total: now.bytes_total }
                    }
                };
                entry.set(node, state);
            }
        }
    };
    entry.lock().notes = model.notes;
    entry.set(node, ready(entry));
    Ok(())
}

/// Verified and not loaded.
pub(super) fn ready(entry: &Entry) -> ModelState {
    let choice = entry.lock().choice.clone();
    match choice {
        Some(choice) => ModelState::Ready {
            engine: choice.engine.manifest.id,
            engine_version: choice.engine.manifest.version,
            device: choice.device.id,
        },
        None => ModelState::Waiting,
    }
}
