//! Keeps one model as it should be: loads it when it is asked for, hands over, restarts, lets it go.
//!
//! One task for each model; it does one thing at a time and decides by [`plan`] what comes next. Workers that die and
//! requests that come and go wake it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use node_api::{Handover, ReplicaRole};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::entry::{Order, Trouble};
use super::handover::hand_over;
use super::launch::{Failure, Job, launch};
use super::plan::{Step, Why, plan};
use super::wanted::LoadSettings;
use super::{Entry, Replica, commands, leave, ways};
use crate::api_error::plain;
use crate::engines::Choice;
use crate::memory::Patience;
use crate::node::Node;
use crate::worker::{EndCause, WorkerEnd};

/// Until another attempt at a further replica that found no room, or that made room for others.
pub const EXTRA_PAUSE: Duration = Duration::from_secs(60);
/// Until another attempt at a new worker for an old one, after one that failed.
const UPKEEP_PAUSE: Duration = Duration::from_secs(600);
const CALLED_OFF: &str = "the load was called off: an operator unloaded the model";
/// For workers to end in order when their node ends: as long as a step may stand still.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Until the model is dropped or the node ends; its workers are gone then.
pub async fn run(node: Arc<Node>, entry: Arc<Entry>) {
    tokio::select! {
        () = keep(&node, &entry) => {}
        () = entry.dropped.cancelled() => {
            // Requests that run finish; nobody can send new ones.
            let replicas = entry.lock().replicas.clone();
            let idle = async {
                for replica in &replicas {
                    replica.set_role(ReplicaRole::Draining);
                    replica.idle().await;
                }
            };
            tokio::select! {
                _ = timeout(node.config.drain, idle) => {}
                () = node.end.cancelled() => {}
            }
        }
        () = node.end.cancelled() => {}
    }
    leave::all(&node, &entry, END_PATIENCE).await;
}

async fn keep(node: &Arc<Node>, entry: &Arc<Entry>) {
    let mut replies: Vec<oneshot::Sender<Vec<Handover>>> = Vec::new();
    let mut reports: Vec<Handover> = Vec::new();
    loop {
        let orders = std::mem::take(&mut entry.lock().orders);
        for Order { renew, reply } in orders {
            if renew {
                entry.lock().serving().for_each(|replica| replica.renew.store(true, Ordering::Relaxed));
            }
            replies.push(reply);
        }
        // What is unloaded from here on is not loaded by what is decided here.
        let mut unloads = entry.unloads.subscribe();
        let view = entry.view(node);
        match plan(&view, Instant::now()) {
            Step::Load => {
                let load = async {
                    match unmeasured(entry) {
                        Some(choice) => measure(node, entry, choice).await,
                        None => load(node, entry, false).await,
                    }
                };
                unless_unloaded(node, entry, &mut unloads, load).await;
            }
            Step::LoadMore => {
                unless_unloaded(node, entry, &mut unloads, load(node, entry, true)).await;
            }
            Step::HandOver { place, why } => {
                let Some(old) = serving(entry, place) else { continue };
                let handing_over = hand_over(node, entry, &old, why);
                let report = match unless_unloaded(node, entry, &mut unloads, handing_over).await {
                    Some(report) => report,
                    None => called_off(node, entry, &old),
                };
                if why == Why::Upkeep && !report.done {
                    entry.lock().upkeep_at = Some(Instant::now() + UPKEEP_PAUSE);
                }
                reports.push(report);
            }
            Step::Leave { place } => {
                let Some(replica) = serving(entry, place) else { continue };
                replica.set_role(ReplicaRole::Draining);
                entry.change(node, |entry| entry.resident = entry.serves());
                leave::later(node, entry, replica);
            }
            Step::Expire => expire(node, entry),
            Step::Wait(until) => {
                for reply in replies.drain(..) {
                    // Who asked may be gone.
                    let _ = reply.send(reports.clone());
                }
                reports.clear();
                let until_then = async {
                    match until {
                        Some(until) => sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = entry.wake.notified() => {}
                    () = until_then => {}
                }
            }
        }
    }
}

/// `None`: an operator wanted the model out of memory meanwhile. The worker that was on its way is killed, those who waited
/// for it are told, and their routers send them again.
async fn unless_unloaded<T>(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    unloads: &mut watch::Receiver<u64>,
    load: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        // The sender lives in the entry.
        _ = unloads.changed() => {}
        done = load => {
            // In the very moment in which it was done: what has just joined leaves.
            if unloads.has_changed().unwrap_or(false) {
                commands::retire_all(node, entry, None);
            }
            return Some(done);
        }
    }
    tracing::info!(model = entry.id(), "the load is called off: the model was unloaded");
    entry.change(node, |entry| {
        entry.starting = None;
        entry.load_failures += 1;
        entry.load_error = plain(503, "load_called_off", CALLED_OFF, true);
    });
    None
}

/// Of a hand-over in whose middle the model was unloaded. The old worker leaves too, however far it was.
fn called_off(node: &Arc<Node>, entry: &Arc<Entry>, old: &Arc<Replica>) -> Handover {
    leave::later(node, entry, Arc::clone(old));
    Handover {
        model: entry.id().to_owned(),
        from: old.label(),
        to: old.label(),
        done: false,
        reason: Some(CALLED_OFF.to_owned()),
        pause_ms: 0,
    }
}

/// The place is one of a view that may be old by now: then the next view says so.
fn serving(entry: &Entry, place: usize) -> Option<Arc<Replica>> {
    entry.lock().serving().nth(place).cloned()
}

fn unmeasured(entry: &Entry) -> Option<Choice> {
    entry.lock().unmeasured.first().cloned()
}

/// Several engines could run the model: one of which nobody knows how fast it is loads it, and is measured. If it is the
/// best of all then, it stays.
async fn measure(node: &Arc<Node>, entry: &Arc<Entry>, choice: Choice) {
    let job = {
        let state = entry.lock();
        let settings = LoadSettings::new(&state.settings, &node.config);
        Job {
            places: state.places_of(&choice),
            wanted: settings.wanted,
            settings,
            patience: Patience::Wait,
            ahead: false,
            keep: Vec::new(),
            trial: false,
            measure: true,
        }
    };
    match launch(node, entry, &job).await {
        Ok(replica) => {
            ways::refresh(node, entry);
            let stays = {
                let state = entry.lock();
                let best = state.best().is_some_and(|best| best.engine.is_same_build(&choice.engine));
                best && state.unmeasured.is_empty()
            };
            if stays {
                return joins(node, entry, replica, None);
            }
            replica.worker.shut_down().await;
            drop(replica.release());
        }
        Err(failure) => {
            // It is no choice for this model, until somebody looks at it.
            let reason = failure.error().message.clone();
            tracing::warn!(
                model = entry.id(),
                engine = choice.engine.label(),
                reason,
                "an engine cannot be measured"
            );
            node.counters.load_failures.one();
            node.engines.note_failed_trial(&choice.engine, entry.id(), &reason);
            ways::refresh(node, entry);
        }
    }
    // A build that is measured or failed is measured no more, whatever the order says.
    entry.change(node, |entry| {
        entry.starting = None;
        entry.unmeasured.retain(|open| !open.engine.is_same_build(&choice.engine));
    });
}

async fn load(node: &Arc<Node>, entry: &Arc<Entry>, more: bool) {
    let job = {
        let state = entry.lock();
        let settings = LoadSettings::new(&state.settings, &node.config);
        let mut places = state.places();
        // A further replica goes to a device that has none yet, where there is one.
        let has_one = |id: &str| state.serving().filter(|replica| replica.choice.device.id == id).count();
        places.sort_by_key(|place| has_one(&place.device.id));
        Job {
            places,
            wanted: settings.wanted,
            settings,
            // A further replica is worth nobody's place.
            patience: if more { Patience::Now } else { Patience::Wait },
            ahead: false,
            keep: Vec::new(),
            // After a death it has to show that it lives: then the next death is known not to be its own fault.
            trial: state.failures.any(),
            measure: false,
        }
    };
    match launch(node, entry, &job).await {
        Ok(replica) => joins(node, entry, replica, None),
        Err(failure) if more => {
            if !matches!(failure, Failure::NoRoom(..)) {
                node.counters.load_failures.one();
            }
            tracing::info!(model = entry.id(), "no further replica: {}", failure.error().message);
            entry.change(node, |entry| {
                entry.starting = None;
                entry.extra_at = Some(Instant::now() + EXTRA_PAUSE);
            });
        }
        Err(failure) => load_failed(node, entry, failure),
    }
}

/// A loaded replica takes requests from now on, instead of `old` if there is one.
pub(super) fn joins(node: &Arc<Node>, entry: &Arc<Entry>, replica: Replica, old: Option<&Replica>) {
    let replica = Arc::new(replica);
    node.counters.loads.one();
    entry.change(node, |entry| {
        if let Some(old) = old {
            old.set_role(ReplicaRole::Draining);
        }
        entry.replicas.push(Arc::clone(&replica));
        entry.starting = None;
        entry.resident = true;
        if entry.trouble.as_ref().is_some_and(|trouble| trouble.retrying) {
            entry.trouble = None;
        }
    });
    let (of_task, entry) = (Arc::clone(node), Arc::clone(entry));
    node.tasks.spawn(async move {
        let mut ended = replica.worker.ended();
        // The sender lives as long as the replica.
        if let Ok(Some(end)) = ended.wait_for(Option::is_some).await.map(|end| end.clone()) {
            died(&of_task, &entry, &replica, &end);
        }
    });
}

/// The process is gone; its memory is given back.
fn died(node: &Arc<Node>, entry: &Arc<Entry>, replica: &Arc<Replica>, end: &WorkerEnd) {
    count(node, end.cause);
    entry.change(node, |entry| {
        entry.replicas.retain(|other| !Arc::ptr_eq(other, replica));
        // One that was leaving anyway has a successor.
        if end.cause == EndCause::Asked || replica.role() != ReplicaRole::Serving {
            return;
        }
        if let Some(deaths_before) = replica.blamed() {
            return entry.failures.blame(deaths_before);
        }
        entry.failures.note(Instant::now());
        if entry.failures.is_loop() {
            entry.trouble = Some(Trouble { reason: end.reason.to_string(), retrying: true });
        }
    });
    drop(replica.release());
}

/// What ended a worker, for the figures.
pub(super) fn count(node: &Node, cause: EndCause) {
    match cause {
        EndCause::Asked => {}
        EndCause::Crashed | EndCause::Garbage => node.counters.worker_crashes.one(),
        EndCause::Hung => node.counters.worker_hangs.one(),
        EndCause::OverBudget => node.counters.worker_overruns.one(),
    }
}

/// Those who waited for the load are told; what comes next depends on whose fault it is.
pub(super) fn load_failed(node: &Arc<Node>, entry: &Arc<Entry>, failure: Failure) {
    let error = failure.error().clone();
    tracing::error!(model = entry.id(), code = error.code, "the model cannot be loaded: {}", error.message);
    node.counters.load_failures.one();
    if let Failure::Abi(error) = &failure {
        let engine = entry.lock().best().map(|choice| choice.engine.clone());
        if let Some(engine) = engine {
            node.engines.note_failed_trial(&engine, entry.id(), &error.message);
        }
    }
    entry.change(node, |entry| {
        entry.starting = None;
        entry.load_failures += 1;
        entry.load_error = error.clone();
        match failure {
            Failure::Corrupt(_) => {
                entry.resident = false;
                entry.suspect = true;
                entry.trouble = Some(Trouble { reason: error.message, retrying: false });
            }
            Failure::Broken(_) => {
                entry.failures.note(Instant::now());
                if entry.failures.is_loop() {
                    entry.trouble = Some(Trouble { reason: error.message, retrying: true });
                }
            }
            // It has to be asked for again: it would only happen once more.
            Failure::Abi(_) | Failure::NoRoom(..) | Failure::Refused(_) => {
                entry.resident = false;
                if entry.trouble.as_ref().is_some_and(|trouble| trouble.retrying) {
                    entry.failures.note(Instant::now());
                }
            }
        }
    });
    entry.look_again.notify_one();
}

/// Nobody used it for its time.
fn expire(node: &Arc<Node>, entry: &Arc<Entry>) {
    let leaving = entry.change(node, |entry| {
        let serving: Vec<Arc<Replica>> = entry.serving().cloned().collect();
        // A request may have come in between.
        if entry.waiting > 0 || serving.iter().any(|replica| replica.running() > 0) {
            return Vec::new();
        }
        entry.resident = false;
        serving.iter().for_each(|replica| replica.set_role(ReplicaRole::Draining));
        serving
    });
    if leaving.is_empty() {
        return;
    }
    tracing::info!(model = entry.id(), "nobody uses the model; it leaves memory");
    node.counters.expiries.one();
    for replica in leaving {
        leave::later(node, entry, replica);
    }
}
