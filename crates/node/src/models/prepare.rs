//! From wanted to ready: which engines, then the files; and again whenever engines come or go.

use std::sync::Arc;
use std::time::Duration;

use model_store::{Phase, Progress, StoreError};
use node_api::ModelState;
use tokio::sync::watch;

use super::Entry;
use super::entry::Files;
use super::ways::{self, Refreshed};
use crate::node::Node;

/// The first pause before a failed download is tried again; doubled up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(300);

pub async fn run(node: Arc<Node>, entry: Arc<Entry>) {
    tokio::select! {
        () = prepare(&node, &entry) => {}
        () = entry.dropped.cancelled() => {}
        () = node.end.cancelled() => {}
    }
}

async fn prepare(node: &Arc<Node>, entry: &Arc<Entry>) {
    let mut engines = node.engines.subscribe();
    loop {
        engines.mark_unchanged();
        let retry = match ways::refresh(node, entry) {
            Refreshed::Done => None,
            Refreshed::Nothing(reason) => {
                tracing::warn!(model = entry.id(), reason, "the model cannot run here");
                let state = ModelState::Unsupported { reason };
                entry.change(node, |entry| entry.files = Files::Not(state));
                None
            }
            Refreshed::Fetch => fetch_again_and_again(node, entry).await,
        };
        let until = async {
            match retry {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender lives in the node.
            _ = engines.changed() => {}
            () = entry.look_again.notified() => recheck(node, entry).await,
            () = until => {}
        }
    }
}

/// Until the files are here, or cannot be had until somebody does something.
async fn fetch_again_and_again(node: &Arc<Node>, entry: &Arc<Entry>) -> Option<Duration> {
    let mut pause = RETRY_MIN;
    loop {
        let error = match fetch(node, entry).await {
            Ok(()) => {
                tracing::info!(model = entry.id(), "the model is ready");
                return None;
            }
            Err(StoreError::Cancelled) => return Some(pause),
            Err(error) => error,
        };
        let retrying = error.is_transient();
        let hint = error.hint().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
        let reason = format!("{}{hint}", error.message());
        tracing::warn!(model = entry.id(), reason, retrying, "the model's files cannot be had");
        let state = ModelState::Failed { reason, retrying };
        entry.change(node, |entry| entry.files = Files::Not(state));
        if !retrying {
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
            () = entry.look_again.notified() => {}
        }
    }
}

async fn fetch(node: &Arc<Node>, entry: &Arc<Entry>) -> Result<(), StoreError> {
    let Ok(_turn) = node.fetching.acquire().await else { return Err(StoreError::Cancelled) };
    let (sender, mut progress) = watch::channel(Progress::default());
    // Ends the store's work with this future, however that ends.
    let cancel = entry.dropped.child_token();
    let _guard = cancel.clone().drop_guard();
    let (files, runtimes) = (ways::files(node, entry), node.runtimes());
    let fetching = node.store.ensure(&entry.desired.manifest, &runtimes, &sender, &cancel);
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
                entry.change(node, |entry| entry.files = Files::Not(state));
            }
        }
    };
    entry.lock().notes = model.notes;
    ways::adopt(node, entry, files);
    Ok(())
}

/// An engine found something wrong with the files: they are hashed again, and fetched again where they are not what was
/// registered. Where they are, the model stays out of use until somebody says otherwise.
async fn recheck(node: &Arc<Node>, entry: &Arc<Entry>) {
    let manifest = &entry.desired.manifest;
    if !std::mem::take(&mut entry.lock().suspect) {
        return;
    }
    node.store.forget_verified(manifest);
    match node.store.check(manifest, &node.runtimes(), &entry.dropped).await {
        Ok(_) => {
            entry.change(node, |entry| {
                if let Some(trouble) = entry.trouble.as_mut().filter(|trouble| !trouble.retrying) {
                    trouble.reason = format!(
                        "{}; its files are the ones that were registered: say `models load` to try it again, or use \
                         another engine",
                        trouble.reason
                    );
                }
            });
        }
        Err(StoreError::Cancelled) => {}
        Err(error) => {
            tracing::warn!(model = entry.id(), error = error.message(), "files are not what was registered");
            let state = ModelState::Failed { reason: error.message(), retrying: true };
            entry.change(node, |entry| entry.files = Files::Not(state));
            fetch_again_and_again(node, entry).await;
            entry.change(node, |entry| {
                if entry.files == Files::Here && entry.trouble.as_ref().is_some_and(|t| !t.retrying) {
                    entry.trouble = None;
                }
            });
        }
    }
}
