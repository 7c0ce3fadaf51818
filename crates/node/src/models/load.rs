//! From ready to loaded: one worker for a model, started by the first request and shared by all that come meanwhile.
//!
//! The task that loads a model owns its worker to the end. A worker that died is replaced by the next request; after
//! [`DEATHS_FREE`] deaths in a row, later each time. A watchdog or a reload would end a worker through the same
//! [`Replica::worker`], and the next request starts anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_protocol::{Loaded, Model, Settings, StatusCode};
use node_api::{ApiError, ModelState};
use tokio::sync::watch;

use super::prepare::ready;
use super::{Deaths, Entry};
use crate::api_error::{of_no_room, of_store, of_worker, plain};
use crate::engines::Choice;
use crate::memory::{self, Wanted};
use crate::node::Node;
use crate::worker::{self, Worker, WorkerError, WorkerSpec};

/// So many deaths in a row are followed by an immediate start.
const DEATHS_FREE: u32 = 2;
/// The pause after one more; doubled up to [`RESTART_MAX`].
const RESTART_MIN: Duration = Duration::from_secs(1);
const RESTART_MAX: Duration = Duration::from_secs(60);

/// How far a load is.
#[derive(Debug, Clone)]
pub enum Load {
    /// 0 to 1.
    Loading(f32),
    Loaded(Arc<Replica>),
    Failed(ApiError),
}

/// A model in a worker.
#[derive(Debug)]
pub struct Replica {
    pub worker: Arc<Worker>,
    pub loaded: Loaded,
    pub engine: String,
    pub engine_version: String,
}

impl Entry {
    /// The load that is going on or done; a new one if there is none or its worker has ended.
    pub fn acquire(self: &Arc<Self>, node: &Arc<Node>) -> Result<watch::Receiver<Load>, ApiError> {
        self.check_ready()?;
        let mut state = self.lock();
        if let Some(load) = &state.load {
            let usable = match &*load.borrow() {
                // A sender that is gone with this as its last word has been aborted.
                Load::Loading(_) => load.has_changed().is_ok(),
                Load::Loaded(replica) => replica.worker.ended().borrow().is_none(),
                Load::Failed(_) => false,
            };
            if usable {
                return Ok(load.clone());
            }
        }
        let (sender, receiver) = watch::channel(Load::Loading(0.0));
        state.load = Some(receiver.clone());
        drop(state);
        node.tasks.spawn(run(Arc::clone(node), Arc::clone(self), sender));
        Ok(receiver)
    }
}

async fn run(node: Arc<Node>, entry: Arc<Entry>, sender: watch::Sender<Load>) {
    let id = entry.desired.manifest.id.as_str();
    let loaded = tokio::select! {
        loaded = load(&node, &entry, &sender) => loaded,
        () = entry.dropped.cancelled() => Err(Failure::Other(gone(id))),
        () = node.end.cancelled() => Err(Failure::Other(plain(503, "node_ends", "the node ends", true))),
    };
    let replica = match loaded {
        Ok(replica) => replica,
        Err(failure) => {
            let error = failure.error();
            tracing::error!(model = id, code = error.code, "the model cannot be loaded: {}", error.message);
            if matches!(failure, Failure::Died(_)) {
                note_death(&entry);
            }
            entry.set(
                &node,
                match failure {
                    Failure::Corrupt(_) => {
                        ModelState::Failed { reason: error.message.clone(), retrying: false }
                    }
                    _ => ready(&entry),
                },
            );
            sender.send_replace(Load::Failed(error));
            return;
        }
    };
    let mut ended = replica.worker.ended();
    sender.send_replace(Load::Loaded(Arc::clone(&replica)));
    let death = async {
        // The sender is gone only with the worker itself.
        let _ = ended.wait_for(Option::is_some).await;
    };
    tokio::select! {
        () = death => note_death(&entry),
        () = entry.dropped.cancelled() => replica.worker.shut_down().await,
        () = node.end.cancelled() => replica.worker.shut_down().await,
    }
    entry.set(&node, ready(&entry));
}

/// Why a load came to nothing, by what follows from it.
enum Failure {
    /// The model leaves ready: somebody has to look at its files.
    Corrupt(ApiError),
    /// The worker died.
    Died(ApiError),
    Other(ApiError),
}

impl Failure {
    fn error(&self) -> ApiError {
        match self {
            Failure::Corrupt(error) | Failure::Died(error) | Failure::Other(error) => error.clone(),
        }
    }
}

impl From<WorkerError> for Failure {
    fn from(error: WorkerError) -> Failure {
        let api = of_worker(&error);
        match error {
            WorkerError::Status(status) if status.code == StatusCode::ModelCorrupt => Failure::Corrupt(api),
            WorkerError::Ended(_) | WorkerError::Hello(_) | WorkerError::Silent { .. } => Failure::Died(api),
            _ => Failure::Other(api),
        }
    }
}

async fn load(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    sender: &watch::Sender<Load>,
) -> Result<Arc<Replica>, Failure> {
    let manifest = &entry.desired.manifest;
    let id = manifest.id.as_str();
    let (choice, deaths) = {
        let state = entry.lock();
        (state.choice.clone(), state.deaths)
    };
    let choice = choice.ok_or_else(|| Failure::Other(gone(id)))?;
    let manifest_of_engine = &choice.engine.manifest;
    let show = |progress: f32| {
        entry.set(
            node,
            ModelState::Loading {
                engine: manifest_of_engine.id.clone(),
                engine_version: manifest_of_engine.version.clone(),
                device: choice.device.id.clone(),
                progress,
            },
        );
        sender.send_replace(Load::Loading(progress));
    };
    show(0.0);
    if let Some(wait) = restart_pause(deaths) {
        tracing::warn!(
            model = id,
            deaths = deaths.count,
            ?wait,
            "its workers died; the next one starts later"
        );
        tokio::time::sleep(wait).await;
    }
    let Ok(_turn) = node.loading.acquire().await else { return Err(Failure::Other(gone(id))) };
    let model = local_model(node, entry, &choice).await?;

    let spec = WorkerSpec {
        program: node.config.worker.clone(),
        engine: choice.engine.clone(),
        model: id.to_owned(),
    };
    let (worker, engine) = worker::start(&spec).await?;
    let worker = Arc::new(worker);
    let wanted = Wanted {
        context_length: entry.desired.settings.context_length.or(node.config.context_length),
        sequences_max: entry.desired.settings.sequences_max.or(node.config.sequences_max),
    };
    let options = &entry.desired.settings.options;
    let mut settings = Settings {
        devices: vec![choice.device.id.clone()],
        context_length: wanted.context_length.unwrap_or(0),
        sequences_max: wanted.sequences_max.unwrap_or(0),
        batch_tokens_max: 0,
        threads: node.config.threads,
        options_json: if options.is_empty() {
            String::new()
        } else {
            serde_json::Value::from(options.clone()).to_string()
        },
    };
    let estimate = worker.estimate(model.clone(), settings.clone()).await?;
    let mut free = std::collections::BTreeMap::new();
    for need in &estimate.devices {
        free.insert(need.device.clone(), node.available(&engine.devices, &need.device).await);
    }
    let fit = memory::fit(&estimate, wanted, |device| free.get(device).copied().unwrap_or(0))
        .map_err(|no| Failure::Other(of_no_room(id, &no)))?;
    settings.context_length = fit.context_length;
    settings.sequences_max = fit.sequences_max;

    let started = Instant::now();
    let mut progress = worker.progress();
    let loaded = {
        let loading = worker.load(model, settings, fit.budget);
        tokio::pin!(loading);
        loop {
            tokio::select! {
                loaded = loading.as_mut() => break loaded?,
                Ok(()) = progress.changed() => {
                    let now = *progress.borrow_and_update();
                    show(now);
                }
            }
        }
    };
    tracing::info!(
        model = id,
        engine_id = manifest_of_engine.id,
        engine_version = manifest_of_engine.version,
        device = choice.device.id,
        worker = worker.pid(),
        context_length = loaded.context_length,
        sequences_max = loaded.sequences_max,
        seconds = started.elapsed().as_secs_f32(),
        "the model is loaded"
    );
    entry.set(
        node,
        ModelState::Loaded {
            engine: manifest_of_engine.id.clone(),
            engine_version: manifest_of_engine.version.clone(),
            device: choice.device.id.clone(),
            context_length: loaded.context_length,
            sequences_max: loaded.sequences_max,
            worker: worker.pid(),
        },
    );
    Ok(Arc::new(Replica {
        worker,
        loaded,
        engine: manifest_of_engine.id.clone(),
        engine_version: manifest_of_engine.version.clone(),
    }))
}

/// The files, looked at again: what lies in a folder of the user may have changed since it was registered.
async fn local_model(node: &Arc<Node>, entry: &Arc<Entry>, choice: &Choice) -> Result<Model, Failure> {
    let manifest = &entry.desired.manifest;
    let checked = node.store.check(manifest, &node.runtimes, &entry.dropped).await;
    let local = checked.map_err(|error| {
        let api = of_store(&manifest.id, &error);
        if error.is_transient() { Failure::Other(api) } else { Failure::Corrupt(api) }
    })?;
    let descriptor = local.descriptor(manifest, &choice.runtime, &choice.device.kind).map_err(|error| {
        Failure::Corrupt(plain(503, "manifest_invalid", crate::link::chain(&error), true))
    })?;
    Ok(Model {
        id: descriptor.id,
        format: descriptor.format.to_string(),
        architecture: descriptor.architecture,
        runtime: descriptor.runtime,
        model_dir: descriptor.model_dir.display().to_string(),
        primary: descriptor.primary,
        files: descriptor
            .files
            .into_iter()
            .map(|file| (file.name, file.path.display().to_string()))
            .collect(),
    })
}

fn gone(id: &str) -> ApiError {
    plain(503, "model_dropped", format!("{id} is no longer wanted on this node"), true)
}

fn note_death(entry: &Entry) {
    let deaths = &mut entry.lock().deaths;
    *deaths = Deaths { count: deaths.count.saturating_add(1), last: Some(Instant::now()) };
}

/// What is left of the pause after the last death.
fn restart_pause(deaths: Deaths) -> Option<Duration> {
    let beyond = deaths.count.checked_sub(DEATHS_FREE + 1)?;
    let pause = RESTART_MIN.saturating_mul(1 << beyond.min(16)).min(RESTART_MAX);
    pause.checked_sub(deaths.last?.elapsed()).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_deaths_cost_no_pause_and_more_cost_more_up_to_the_limit() {
        let pause = |count| restart_pause(Deaths { count, last: Some(Instant::now()) });
        assert_eq!((pause(0), pause(1), pause(2)), (None, None, None));
        assert!(pause(3).unwrap() <= RESTART_MIN);
        assert!(pause(5).unwrap() > RESTART_MIN * 3);
        assert!(pause(1000).unwrap() <= RESTART_MAX && pause(1000).unwrap() > RESTART_MAX / 2);
    }
}
