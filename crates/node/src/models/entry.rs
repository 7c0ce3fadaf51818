//! One wanted model: its files, its replicas, what is wrong with it, and who waits for it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_api::{
    ApiError, Candidate, DesiredModel, Handover, ModelSettings, ModelState, ModelStatus, ReplicaRole,
    ReplicaStatus,
};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Replica;
use super::forms;
use super::plan::{Serving, View};
use super::restart::Failures;
use super::wanted::{self, LoadSettings};
use crate::api_error::plain;
use crate::engines::Choice;
use crate::memory::GrantId;
use crate::node::Node;

/// Operators' orders that wait for a model.
const ORDERS_MAX: usize = 64;

#[derive(Debug)]
pub struct Entry {
    /// What it is. Its settings here are those of the beginning: [`Entry::settings`] has those of now.
    pub desired: DesiredModel,
    /// Nobody wants it any more, or in another form.
    pub dropped: CancellationToken,
    /// For its keeper: something has changed.
    pub(super) wake: Notify,
    /// For those who prepare its files: engines or settings have changed, or the files are suspect.
    pub(super) look_again: Notify,
    /// For a load that goes on: counts the times an operator wanted the model out of memory.
    pub(super) unloads: watch::Sender<u64>,
    /// For requests that wait: counts the changes they should look at.
    pub(super) changed: watch::Sender<u64>,
    state: Mutex<EntryState>,
}

#[derive(Debug)]
pub(super) struct EntryState {
    pub settings: Arc<ModelSettings>,
    pub files: Files,
    /// An engine said that something is wrong with them.
    pub suspect: bool,
    pub notes: Vec<String>,
    /// Which form of its weights the engine that was loaded last runs, and why, where the engine tells.
    pub runs: Option<String>,
    /// Engines that could run it, the best first.
    pub ways: Vec<Way>,
    /// Engines to be measured before one of them is chosen.
    pub unmeasured: Vec<Choice>,
    /// Those that serve and those that leave; the ones that serve in the order of their load.
    pub replicas: Vec<Arc<Replica>>,
    pub starting: Option<Starting>,
    pub trouble: Option<Trouble>,
    pub failures: Failures,
    /// Requests without a replica.
    pub waiting: u32,
    /// Loads that came to nothing, and what the last one said: those who waited for it are told.
    pub load_failures: u64,
    pub load_error: ApiError,
    /// It should be in a worker although nobody waits.
    pub resident: bool,
    pub orders: Vec<Order>,
    pub extra_at: Option<Instant>,
    pub upkeep_at: Option<Instant>,
    /// Names of the files that the engines here can use, as they were last fetched.
    pub fetched_for: Vec<String>,
}

/// How far the files are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Files {
    Here,
    /// The state says how far, or why not.
    Not(ModelState),
}

/// A load that goes on.
#[derive(Debug, Clone)]
pub(super) struct Starting {
    pub choice: Choice,
    /// Process id; 0: not started yet.
    pub worker: u32,
    /// 0 to 1.
    pub progress: f32,
    pub grant: Option<GrantId>,
}

impl Starting {
    /// What is known of it already.
    fn status(&self) -> ReplicaStatus {
        let manifest = &self.choice.engine.manifest;
        ReplicaStatus {
            worker: self.worker,
            role: ReplicaRole::Starting,
            engine: manifest.id.clone(),
            engine_version: manifest.version.clone(),
            library_sha256: self.choice.engine.sha256.clone(),
            devices: vec![self.choice.device.id.clone()],
            context_length: 0,
            sequences_max: 0,
            requests_running: 0,
            requests_total: 0,
            loaded_at: 0,
            last_used: 0,
            memory: Vec::new(),
            kv_bytes_used: 0,
            kv_bytes_total: 0,
        }
    }
}

/// Why a model whose files are here is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub reason: String,
    /// A timer starts the next worker; otherwise somebody has to do something.
    pub retrying: bool,
}

/// What an operator asks of the keeper; the answer says what was handed over to what.
#[derive(Debug)]
pub(super) struct Order {
    pub renew: bool,
    pub reply: oneshot::Sender<Vec<Handover>>,
}

/// An engine on a device that could run the model.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub choice: Choice,
    /// As routers are told.
    pub candidate: Candidate,
    /// This build failed with this model.
    pub failed: bool,
}

impl EntryState {
    pub fn serving(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.replicas.iter().filter(|replica| replica.role() == ReplicaRole::Serving && !replica.is_dead())
    }

    pub fn serves(&self) -> bool {
        self.serving().next().is_some()
    }

    /// The best one that has not failed with this model; where all have, the best of them.
    pub fn best(&self) -> Option<&Choice> {
        let good = self.ways.iter().find(|way| !way.failed);
        good.or(self.ways.first()).map(|way| &way.choice)
    }

    /// The engine of the best way, on every device it could use.
    pub fn places(&self) -> Vec<Choice> {
        self.best().map(|best| self.places_of(best)).unwrap_or_default()
    }

    pub fn places_of(&self, wanted: &Choice) -> Vec<Choice> {
        let same = |choice: &&Choice| choice.engine.is_same_build(&wanted.engine);
        self.ways.iter().map(|way| &way.choice).filter(same).cloned().collect()
    }

    /// Another engine than would be chosen now, a device it may no longer use, or other settings.
    pub fn is_outdated(&self, replica: &Replica, settings: &LoadSettings) -> bool {
        // What failed is not handed over to.
        let Some(best) = self.ways.iter().find(|way| !way.failed).map(|way| &way.choice) else {
            return false;
        };
        let engine = !best.engine.is_same_build(&replica.choice.engine);
        let device = self.places_of(best).iter().all(|place| place.device.id != replica.choice.device.id);
        engine || device || *settings != replica.settings
    }

    fn model_state(&self) -> ModelState {
        if let Some(Trouble { reason, retrying }) = &self.trouble {
            return ModelState::Failed { reason: reason.clone(), retrying: *retrying };
        }
        if let Some(replica) = self.serving().next() {
            return ModelState::Loaded {
                engine: replica.engine.clone(),
                engine_version: replica.engine_version.clone(),
                device: replica.choice.device.id.clone(),
                context_length: replica.loaded.context_length,
                sequences_max: replica.loaded.sequences_max,
                worker: replica.worker.pid(),
            };
        }
        if let Files::Not(state) = &self.files {
            return state.clone();
        }
        let words = |choice: &Choice| {
            let manifest = &choice.engine.manifest;
            (manifest.id.clone(), manifest.version.clone(), choice.device.id.clone())
        };
        if let Some(starting) = &self.starting {
            let (engine, engine_version, device) = words(&starting.choice);
            return ModelState::Loading { engine, engine_version, device, progress: starting.progress };
        }
        match self.best() {
            Some(choice) => {
                let (engine, engine_version, device) = words(choice);
                ModelState::Ready { engine, engine_version, device }
            }
            None => ModelState::Waiting,
        }
    }
}

impl Entry {
    pub fn new(desired: DesiredModel) -> Entry {
        let settings = Arc::new(desired.settings.clone());
        Entry {
            desired,
            dropped: CancellationToken::new(),
            wake: Notify::new(),
            look_again: Notify::new(),
            unloads: watch::Sender::new(0),
            changed: watch::Sender::new(0),
            state: Mutex::new(EntryState {
                settings,
                files: Files::Not(ModelState::Waiting),
                suspect: false,
                notes: Vec::new(),
                runs: None,
                ways: Vec::new(),
                unmeasured: Vec::new(),
                replicas: Vec::new(),
                starting: None,
                trouble: None,
                failures: Failures::default(),
                waiting: 0,
                load_failures: 0,
                load_error: ApiError::default(),
                resident: false,
                orders: Vec::new(),
                extra_at: None,
                upkeep_at: None,
                fetched_for: Vec::new(),
            }),
        }
    }

    pub fn id(&self) -> &str {
        &self.desired.manifest.id
    }

    /// What the operator wants of it now.
    pub fn settings(&self) -> Arc<ModelSettings> {
        Arc::clone(&self.lock().settings)
    }

    /// Nothing that holds the lock can panic half way through a change.
    pub(super) fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and tells everybody who looks at it: its keeper, requests that wait, routers.
    pub(super) fn change<T>(&self, node: &Node, change: impl FnOnce(&mut EntryState) -> T) -> T {
        let done = change(&mut self.lock());
        self.tell(node);
        done
    }

    pub(super) fn tell(&self, node: &Node) {
        self.wake.notify_one();
        self.changed.send_modify(|n| *n += 1);
        node.touch();
    }

    pub fn status(&self) -> ModelStatus {
        let entry = self.lock();
        let (serving, leaving): (Vec<_>, Vec<_>) =
            entry.replicas.iter().partition(|replica| replica.role() == ReplicaRole::Serving);
        let known = serving.into_iter().chain(leaving).map(|replica| replica.status());
        let starting = entry.starting.as_ref().filter(|starting| starting.worker != 0).map(Starting::status);
        ModelStatus {
            id: self.desired.manifest.id.clone(),
            fingerprint: self.desired.fingerprint.clone(),
            state: entry.model_state(),
            notes: entry.notes.iter().cloned().chain(self.runs(&entry)).collect(),
            replicas: known.chain(starting).collect(),
            candidates: entry.ways.iter().map(|way| way.candidate.clone()).collect(),
            requests_waiting: entry.waiting,
        }
    }

    /// Which form of the weights runs. Before the first load: what there is to choose from on the devices it could run on.
    fn runs(&self, entry: &EntryState) -> Option<String> {
        if entry.runs.is_some() {
            return entry.runs.clone();
        }
        let place = |way: &Way| format!("{}/{}", way.choice.runtime, way.choice.device.kind);
        let places: Vec<String> = entry.ways.iter().map(place).collect();
        forms::undecided(&self.desired.manifest, &places)
    }

    /// A request came to its end in order: failures before it do not count.
    pub fn worked(&self) {
        self.lock().failures = Failures::default();
    }

    /// 503 with the reason unless a request may be sent to it.
    pub(super) fn check_ready(&self) -> Result<(), ApiError> {
        not_ready(self.id(), &self.lock().model_state())
    }

    /// The same for a request that may wait for the end of a crash loop's pause.
    pub(super) fn check_ready_or_restarts(&self) -> Result<(), ApiError> {
        match self.lock().model_state() {
            ModelState::Failed { retrying: true, .. } => Ok(()),
            state => not_ready(self.id(), &state),
        }
    }

    /// As its keeper sees it.
    pub(super) fn view(&self, node: &Node) -> View {
        let registry = node.engines.current();
        let enabled = |replica: &Arc<Replica>| registry.is_enabled(&replica.choice.engine);
        let entry = self.lock();
        let (settings, config) = (&entry.settings, &node.config);
        let load_settings = LoadSettings::new(settings, config);
        let serving = |replica: &Arc<Replica>| Serving {
            outdated: entry.is_outdated(replica, &load_settings),
            renew: replica.renew.load(Ordering::Relaxed),
            retired: entry.ways.is_empty() && !enabled(replica),
            running: replica.running(),
            requests: replica.requests(),
            loaded_at: replica.loaded_at,
        };
        let retrying = entry.trouble.as_ref().is_some_and(|trouble| trouble.retrying);
        let last_used = entry.replicas.iter().map(|replica| replica.last_used()).max();
        View {
            runnable: entry.files == Files::Here && entry.best().is_some(),
            barred: entry.trouble.as_ref().is_some_and(|trouble| !trouble.retrying),
            demanded: entry.waiting > 0 || entry.resident || retrying,
            waiting: entry.waiting > 0,
            start_at: entry.failures.next_start(),
            replicas: entry.serving().map(serving).collect(),
            replicas_wanted: wanted::replicas(settings),
            extra_at: entry.extra_at,
            upkeep_at: entry.upkeep_at,
            last_used: last_used.unwrap_or_else(Instant::now),
            keep_alive: wanted::keep_alive(settings, config),
            restart_after: config.worker_restart_after,
            restart_after_requests: config.worker_restart_after_requests,
        }
    }

    /// Gives its keeper an order; the answer comes when everything it brings about has happened.
    pub(super) fn order(&self, renew: bool) -> Result<oneshot::Receiver<Vec<Handover>>, ApiError> {
        let (reply, answer) = oneshot::channel();
        let mut entry = self.lock();
        if entry.orders.len() >= ORDERS_MAX {
            let message = format!("{ORDERS_MAX} commands for {} wait already", self.id());
            return Err(plain(503, "commands_full", message, true));
        }
        entry.orders.push(Order { renew, reply });
        drop(entry);
        self.wake.notify_one();
        Ok(answer)
    }
}

fn not_ready(id: &str, state: &ModelState) -> Result<(), ApiError> {
    let not = |code, reason: String| {
        Err(plain(503, code, format!("{id} is not ready on this node: {reason}"), true))
    };
    match state {
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
