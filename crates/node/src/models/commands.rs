//! What operators ask of engines and models, done and answered.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use node_api::{
    ApiError, EngineCommand, EngineReply, ModelAction, ModelCommand, ModelState, ModelStatus, ReplicaRole,
};
use tokio::time::timeout;

use super::entry::Trouble;
use super::restart::Failures;
use super::{Entry, Replica, discard, leave, ways};
use crate::api_error::plain;
use crate::engines::EngineError;
use crate::node::Node;

/// For everything an order to the engines brings about: several loads of the largest model. What is not done by then
/// goes on, and shows in the status.
const ENGINES_WAIT_MAX: Duration = Duration::from_secs(840);
/// For a load an operator asked for.
const LOAD_WAIT_MAX: Duration = Duration::from_secs(600);

pub async fn engines(node: &Arc<Node>, command: EngineCommand) -> Result<EngineReply, ApiError> {
    let mut renewed = None;
    match &command {
        EngineCommand::Reload { engine } => {
            let registry = node.engines.rescan().await.map_err(|e| of_engine(&e))?;
            if let Some(id) = engine {
                if registry.versions_of(id).is_empty() {
                    let asked = id.clone();
                    let mut known: Vec<String> =
                        registry.engines.iter().map(|e| e.manifest.id.clone()).collect();
                    known.dedup();
                    return Err(of_engine(&EngineError::Unknown { asked, known: known.join(", ") }));
                }
                renewed = Some(id.clone());
            }
        }
        EngineCommand::Disable { engine, version } => {
            node.engines.set_enabled(engine, version.as_deref(), false).map_err(|e| of_engine(&e))?;
        }
        EngineCommand::Enable { engine, version } => {
            node.engines.set_enabled(engine, version.as_deref(), true).map_err(|e| of_engine(&e))?;
        }
    }
    let entries = node.table().entries();
    let mut answers = Vec::with_capacity(entries.len());
    for entry in &entries {
        ways::refresh(node, entry);
        let uses = |id: &String| entry.lock().serving().any(|replica| replica.engine == *id);
        answers.push(entry.order(renewed.as_ref().is_some_and(uses))?);
    }
    let done = timeout(ENGINES_WAIT_MAX, join_all(answers)).await.map_err(|_| {
        let message =
            format!("not every model was handed over within {} s; it goes on", ENGINES_WAIT_MAX.as_secs());
        plain(504, "reload_timeout", message, false)
    })?;
    // A model that was dropped meanwhile answers nothing.
    let handovers = done.into_iter().filter_map(Result::ok).flatten().collect();
    Ok(EngineReply { engines: node.engines.current().summaries(), handovers })
}

pub async fn model(node: &Arc<Node>, command: ModelCommand) -> Result<ModelStatus, ApiError> {
    let entry = node.table().get(&command.model, &command.fingerprint)?;
    match command.action {
        ModelAction::Load => load(node, &entry).await,
        ModelAction::Unload => {
            unload(node, &entry);
            Ok(entry.status())
        }
        ModelAction::Remove => {
            discard::later(node, &entry);
            Ok(entry.status())
        }
    }
}

/// Whatever was wrong with it before: the operator knows better.
async fn load(node: &Arc<Node>, entry: &Arc<Entry>) -> Result<ModelStatus, ApiError> {
    let before = entry.change(node, |entry| {
        entry.trouble = None;
        entry.failures = Failures::default();
        entry.resident = true;
        entry.load_failures
    });
    // Files that could not be had are tried again; those that are here are left alone.
    entry.look_again.notify_one();
    let mut changed = entry.changed.subscribe();
    let done = async {
        loop {
            changed.mark_unchanged();
            let status = entry.status();
            match &status.state {
                ModelState::Loaded { .. } => return Ok(status),
                ModelState::Unsupported { .. } | ModelState::Failed { .. } => entry.check_ready()?,
                _ => {}
            }
            let failed = {
                let state = entry.lock();
                (state.load_failures != before).then(|| state.load_error.clone())
            };
            if let Some(error) = failed {
                return Err(error);
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = entry.dropped.cancelled() => return Err(super::lease::gone(entry.id())),
                () = node.end.cancelled() => return Err(plain(503, "node_ends", "the node ends", true)),
            }
        }
    };
    // A large model from a slow disk or hub takes longer than anybody waits: it goes on.
    timeout(LOAD_WAIT_MAX, done).await.unwrap_or_else(|_| Ok(entry.status()))
}

/// Requests that run finish; the next one loads it again. A load that goes on is called off.
fn unload(node: &Arc<Node>, entry: &Arc<Entry>) {
    let leaving = retire_all(node, entry, None);
    entry.unloads.send_modify(|n| *n += 1);
    tracing::info!(model = entry.id(), replicas = leaving, "the model leaves memory, as asked");
}

impl Entry {
    /// An engine said in the middle of its work that the files are broken: the model leaves ready, and comes back when
    /// its files were wrong and are fetched again, or when an operator says so.
    pub fn corrupt(self: &Arc<Self>, node: &Arc<Node>, reason: &str) {
        tracing::error!(model = self.id(), "the model leaves ready: {reason}");
        retire_all(node, self, Some(Trouble { reason: reason.to_owned(), retrying: false }));
        self.look_again.notify_one();
    }
}

/// How many leave.
pub(super) fn retire_all(node: &Arc<Node>, entry: &Arc<Entry>, trouble: Option<Trouble>) -> usize {
    let leaving: Vec<Arc<Replica>> = entry.change(node, |entry| {
        let serving: Vec<Arc<Replica>> = entry.serving().cloned().collect();
        serving.iter().for_each(|replica| replica.set_role(ReplicaRole::Draining));
        entry.resident = false;
        if trouble.is_some() {
            entry.trouble = trouble;
            entry.suspect = true;
        }
        serving
    });
    let count = leaving.len();
    for replica in leaving {
        leave::later(node, entry, replica);
    }
    count
}

fn of_engine(error: &EngineError) -> ApiError {
    let (status, code) = match error {
        EngineError::Unknown { .. } => (404, "engine_unknown"),
        EngineError::Keep { .. } => (500, "data_folder"),
        EngineError::Look(_) => (500, "engine_folders"),
    };
    plain(status, code, crate::link::chain(error), false)
}
