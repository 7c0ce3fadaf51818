//! One worker with the model in it: started, asked what it needs, granted that, loaded, and proved where it has to be.

use std::sync::Arc;

use engine_protocol::{EngineInfo, Loaded, Model, StatusCode};
use node_api::ApiError;
use tokio::time::Instant;

use super::entry::Starting;
use super::replica::Parts;
use super::wanted::LoadSettings;
use super::{Entry, Replica, keeper, leave, trial};
use crate::api_error::{of_no_room, of_store, of_worker, plain};
use crate::engines::Choice;
use crate::memory::{Ask, GrantId, NoRoom, Patience, Reservation, Room, Wanted};
use crate::node::Node;
use crate::placement;
use crate::worker::{self, Worker, WorkerError, WorkerSpec};

/// An engine's sentence is cut behind so many characters.
const RUNS_CHARS_MAX: usize = 500;

/// What to load, and who may be displaced for it.
#[derive(Debug)]
pub(super) struct Job {
    /// One engine on the devices it could use, the best first.
    pub places: Vec<Choice>,
    pub settings: LoadSettings,
    /// Context and sequences; those of the settings, or those of the worker whose place it takes.
    pub wanted: Wanted,
    pub patience: Patience,
    /// Before those who wait for room: it takes the place of one that is there.
    pub ahead: bool,
    /// They stay, whatever happens.
    pub keep: Vec<GrantId>,
    /// It has to give a token, or an embedding, before it counts.
    pub trial: bool,
    /// Its speed decides between engines, and is not known.
    pub measure: bool,
}

/// Why a load came to nothing, by what follows from it. No request was on the worker.
#[derive(Debug)]
pub(super) enum Failure {
    /// The model leaves ready: somebody has to look at its files.
    Corrupt(ApiError),
    /// The worker died or was ended, or the engine failed where it should not: the next one may do better.
    Broken(ApiError),
    /// The engine is of another ABI: it is not used for this model again.
    Abi(ApiError),
    NoRoom(ApiError, NoRoom),
    /// It would only happen again: settings, devices, files.
    Refused(ApiError),
}

impl Failure {
    pub fn error(&self) -> &ApiError {
        match self {
            Failure::Corrupt(error)
            | Failure::Broken(error)
            | Failure::Abi(error)
            | Failure::NoRoom(error, _)
            | Failure::Refused(error) => error,
        }
    }
}

impl From<WorkerError> for Failure {
    fn from(error: WorkerError) -> Failure {
        // No request was on it, whatever became of the worker.
        let api = ApiError { worker_died: false, ..of_worker(&error) };
        match error {
            WorkerError::Status(status) => match status.code {
                StatusCode::ModelCorrupt => Failure::Corrupt(api),
                StatusCode::AbiMismatch => Failure::Abi(api),
                StatusCode::Internal | StatusCode::LoadFailed | StatusCode::Timeout | StatusCode::Ok => {
                    Failure::Broken(ApiError { retry: true, ..api })
                }
                _ => Failure::Refused(api),
            },
            _ => Failure::Broken(ApiError { retry: true, ..api }),
        }
    }
}

/// A worker on its way. Whoever gives up meanwhile takes it with him: it is killed, and what it was granted is given
/// back when it is gone.
struct Aboard {
    node: Arc<Node>,
    worker: Arc<Worker>,
    reservation: Option<Reservation>,
    done: bool,
}

impl Drop for Aboard {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (worker, reservation) = (Arc::clone(&self.worker), self.reservation.take());
        self.node.tasks.spawn(async move {
            leave::kill(&worker, "its load was given up").await;
            drop(reservation);
        });
    }
}

/// On failure the worker is gone and everything it was granted is given back.
pub(super) async fn launch(node: &Arc<Node>, entry: &Arc<Entry>, job: &Job) -> Result<Replica, Failure> {
    let Some(first) = job.places.first() else {
        let message = format!("no engine here runs {}", entry.id());
        return Err(Failure::Refused(plain(503, "model_unsupported", message, true)));
    };
    show(node, entry, first, 0, 0.0, None);
    let spec = WorkerSpec {
        program: node.config.worker.clone(),
        engine: first.engine.clone(),
        model: entry.id().to_owned(),
        watchdog: node.config.watchdog,
    };
    node.counters.worker_starts.one();
    let (worker, engine) = worker::start(&spec).await?;
    let mut aboard =
        Aboard { node: Arc::clone(node), worker: Arc::new(worker), reservation: None, done: false };
    show(node, entry, first, aboard.worker.pid(), 0.0, None);
    let loaded = load(node, entry, job, &mut aboard, &engine).await;
    aboard.done = true;
    let worker = Arc::clone(&aboard.worker);
    let reservation = aboard.reservation.take();
    match (loaded, reservation) {
        (Ok((loaded, choice)), Some(reservation)) => {
            let (settings, works) = (job.settings.clone(), job.trial || job.measure);
            Ok(Replica::new(Parts { worker, loaded, choice, settings, reservation, works }))
        }
        (Ok(_), None) => unreachable!("what is loaded was granted room"),
        (Err(failure), reservation) => {
            leave::kill(&worker, "its load failed").await;
            let end = worker.ended().borrow().as_ref().map(|end| end.cause);
            if let Some(cause) = end {
                keeper::count(node, cause);
            }
            drop(reservation);
            Err(failure)
        }
    }
}

async fn load(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    job: &Job,
    aboard: &mut Aboard,
    engine: &EngineInfo,
) -> Result<(Loaded, Choice), Failure> {
    let (id, worker) = (entry.id(), Arc::clone(&aboard.worker));
    let mut rooms = Vec::with_capacity(job.places.len());
    let mut refused = None;
    for choice in &job.places {
        let model = local_model(node, entry, choice).await?;
        let settings = job.settings.of_engine(&choice.device, job.wanted);
        match worker.estimate(model.clone(), settings).await {
            Ok(estimate) => rooms.push((choice, model, Room { estimate, devices: engine.devices.clone() })),
            // Another device may do.
            Err(WorkerError::Status(status)) => refused = Some(WorkerError::Status(status)),
            Err(error) => return Err(error.into()),
        }
    }
    if let (true, Some(refused)) = (rooms.is_empty(), refused) {
        return Err(refused.into());
    }
    let ask = Ask {
        model: id.to_owned(),
        rooms: rooms.iter().map(|(_, _, room)| room.clone()).collect(),
        wanted: job.wanted,
        patience: job.patience,
        ahead: job.ahead,
        keep: job.keep.clone(),
    };
    let granted = tokio::select! {
        granted = node.memory.reserve(ask) => granted,
        end = ended(&worker) => return Err(end),
    };
    let reservation = granted.map_err(|no| Failure::NoRoom(of_no_room(id, &no), no))?;
    let (choice, model, _) = rooms.swap_remove(reservation.room);
    let (fit, grant) = (reservation.fit.clone(), reservation.id());
    show(node, entry, choice, worker.pid(), 0.0, Some(grant));
    reservation.watch(&worker);
    aboard.reservation = Some(reservation);

    let wanted = Wanted { context_length: Some(fit.context_length), sequences_max: Some(fit.sequences_max) };
    let started = Instant::now();
    let mut progress = worker.progress();
    let loaded = {
        let loading = worker.load(model, job.settings.of_engine(&choice.device, wanted), fit.budget);
        tokio::pin!(loading);
        loop {
            tokio::select! {
                loaded = loading.as_mut() => break loaded?,
                Ok(()) = progress.changed() => {
                    let now = *progress.borrow_and_update();
                    show(node, entry, choice, worker.pid(), now, Some(grant));
                }
            }
        }
    };
    if job.trial {
        trial::prove(&worker, &loaded).await?;
    }
    if job.measure {
        let bytes = granted_bytes(aboard);
        let what = placement::measured(choice, &entry.desired.fingerprint, &node.devices);
        if let Some(what) = what {
            let measured = node.scores.measure(&worker, &loaded, what, bytes).await;
            let broken = |e| Failure::Broken(plain(503, "trial_failed", crate::link::chain(&e), true));
            measured.map_err(broken)?;
        }
    }
    if let Some(reservation) = &aboard.reservation {
        reservation.loaded();
    }
    let runs = runs(&worker).await;
    let note = runs.as_ref().map(|runs| format!("{} on {} {runs}", choice.engine.label(), choice.device.id));
    entry.change(node, |entry| entry.runs = note);
    tracing::info!(
        model = id,
        runs = runs.unwrap_or_default(),
        engine_id = choice.engine.manifest.id,
        engine_version = choice.engine.manifest.version,
        device = choice.device.id,
        worker = worker.pid(),
        context_length = loaded.context_length,
        sequences_max = loaded.sequences_max,
        proved = job.trial,
        seconds = started.elapsed().as_secs_f32(),
        "the model is loaded"
    );
    Ok((loaded, choice.clone()))
}

/// Which form of the weights runs, in the engine's words: `runs` of its counters' details. Most engines have one form.
async fn runs(worker: &Worker) -> Option<String> {
    let stats = worker.stats().await.ok()?;
    let details: serde_json::Value = serde_json::from_str(&stats.details_json).ok()?;
    Some(details.get("runs")?.as_str()?.chars().take(RUNS_CHARS_MAX).collect())
}

fn granted_bytes(aboard: &Aboard) -> u64 {
    let budget = aboard.reservation.iter().flat_map(|reservation| &reservation.fit.budget);
    budget.map(|part| part.bytes).fold(0, u64::saturating_add)
}

/// Never returns while it lives.
async fn ended(worker: &Worker) -> Failure {
    let mut ended = worker.ended();
    match ended.wait_for(Option::is_some).await.map(|end| end.clone()) {
        Ok(Some(end)) => Failure::from(WorkerError::Ended(end)),
        _ => Failure::Broken(plain(503, "worker_died", "the worker is gone", true)),
    }
}

fn show(node: &Node, entry: &Entry, choice: &Choice, worker: u32, progress: f32, grant: Option<GrantId>) {
    let starting = Starting { choice: choice.clone(), worker, progress, grant };
    entry.change(node, |entry| entry.starting = Some(starting));
}

/// The files, looked at again: what lies in a folder of the user may have changed since it was registered.
async fn local_model(node: &Arc<Node>, entry: &Arc<Entry>, choice: &Choice) -> Result<Model, Failure> {
    let manifest = &entry.desired.manifest;
    let checked = node.store.check(manifest, &node.runtimes(), &entry.dropped).await;
    let local = checked.map_err(|error| {
        let api = of_store(&manifest.id, &error);
        if error.is_transient() { Failure::Refused(api) } else { Failure::Corrupt(api) }
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
