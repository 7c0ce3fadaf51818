//! From one worker to another without a lost request.
//!
//! The new worker loads beside the old one, proves itself with a trial step, and takes all new requests; the old one
//! finishes what it has and leaves. Where both do not fit, new requests wait, the old one finishes and leaves, the new one
//! loads and proves itself; if it cannot, the old one comes back. The pause is measured.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use node_api::{Handover, ReplicaRole};
use tokio::time::Instant;

use super::keeper::{joins, load_failed};
use super::launch::{Failure, Job, launch};
use super::plan::Why;
use super::tenants::grant;
use super::wanted::LoadSettings;
use super::{Entry, Replica, leave};
use crate::engines::Choice;
use crate::memory::{NoRoom, Patience, Wanted};
use crate::node::Node;

/// One replica's. What became of it is in the log, the counters and, of a version that failed, in the engine's summary.
pub(super) async fn hand_over(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    old: &Arc<Replica>,
    why: Why,
) -> Handover {
    old.renew.store(false, Ordering::Relaxed);
    let (places, settings) = {
        let state = entry.lock();
        let settings = LoadSettings::new(&state.settings, &node.config);
        // For age's sake the same version does where no better one is known.
        let places = match state.ways.iter().any(|way| !way.failed) {
            true => state.places(),
            false => vec![old.choice.clone()],
        };
        (places, settings)
    };
    let to = places.first().unwrap_or(&old.choice).clone();
    tracing::info!(
        model = entry.id(),
        from = old.label(),
        to = to.engine.label(),
        ?why,
        "a worker is to take over from another"
    );
    let report = |done, reason: Option<String>, pause_ms| Handover {
        model: entry.id().to_owned(),
        from: old.label(),
        to: to.engine.label(),
        done,
        reason,
        pause_ms,
    };
    // Beside the old one the defaults would come out smaller than they have to be when it has left.
    let wanted = match settings == old.settings {
        true => Wanted {
            context_length: Some(old.loaded.context_length),
            sequences_max: Some(old.loaded.sequences_max),
        },
        false => settings.wanted,
    };
    let job = Job {
        places,
        settings: settings.clone(),
        wanted,
        patience: Patience::Evict,
        ahead: true,
        keep: grant(old).into_iter().collect(),
        trial: true,
        measure: false,
    };
    match launch(node, entry, &job).await {
        Ok(new) => {
            joins(node, entry, new, Some(old));
            leave::later(node, entry, Arc::clone(old));
            node.counters.reloads.one();
            report(true, None, 0)
        }
        Err(Failure::NoRoom(error, no)) if fits_alone(&no, old, &settings) => {
            tracing::info!(
                model = entry.id(),
                "two copies do not fit, new requests wait while they change places: {}",
                error.message
            );
            let job = Job { wanted: settings.wanted, patience: Patience::Wait, keep: Vec::new(), ..job };
            let (done, reason, pause_ms) = one_after_the_other(node, entry, old, &job, &to).await;
            report(done, reason, pause_ms)
        }
        Err(failure) => {
            failed(node, entry, &to, old, &failure);
            entry.change(node, |entry| entry.starting = None);
            report(false, Some(failure.error().message.clone()), 0)
        }
    }
}

async fn one_after_the_other(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    old: &Arc<Replica>,
    job: &Job,
    to: &Choice,
) -> (bool, Option<String>, u64) {
    old.set_role(ReplicaRole::Draining);
    entry.tell(node);
    // With another replica that serves, nobody waits.
    let from = (!entry.lock().serves()).then(Instant::now);
    leave::now(old).await;
    node.memory.tenants_changed();
    let launched = launch(node, entry, job).await;
    let (done, reason) = match launched {
        Ok(new) => {
            joins(node, entry, new, None);
            node.counters.reloads.one();
            (true, None)
        }
        Err(failure) => {
            failed(node, entry, to, old, &failure);
            let back = Job {
                places: vec![old.choice.clone()],
                settings: old.settings.clone(),
                wanted: Wanted {
                    context_length: Some(old.loaded.context_length),
                    sequences_max: Some(old.loaded.sequences_max),
                },
                patience: Patience::Wait,
                ahead: true,
                keep: Vec::new(),
                trial: false,
                measure: false,
            };
            match launch(node, entry, &back).await {
                Ok(new) => joins(node, entry, new, None),
                Err(failure) => load_failed(node, entry, failure),
            }
            (false, Some(failure.error().message.clone()))
        }
    };
    let pause_ms = from.map_or(0, |from| u64::try_from(from.elapsed().as_millis()).unwrap_or(u64::MAX));
    if from.is_some() {
        node.counters.reload_pauses.one();
        node.counters.reload_pause_ms.add(pause_ms);
        tracing::info!(model = entry.id(), pause_ms, "new requests had to wait for the change of workers");
    }
    (done, reason, pause_ms)
}

/// Whether there is a point in ending the old one first. What nobody set becomes smaller where it has to.
fn fits_alone(no: &NoRoom, old: &Replica, settings: &LoadSettings) -> bool {
    let held = old.with_reservation(|reservation| {
        let parts = reservation.fit.budget.iter().filter(|part| part.device == no.device);
        parts.map(|part| part.bytes).fold(0, u64::saturating_add)
    });
    let set = settings.wanted.context_length.is_some() && settings.wanted.sequences_max.is_some();
    !set || no.needed <= no.available.saturating_add(held.unwrap_or(0))
}

/// The new one is not tried again with this model, unless it is the same build that serves.
fn failed(node: &Node, entry: &Entry, to: &Choice, old: &Replica, failure: &Failure) {
    let reason = failure.error().message.as_str();
    node.counters.reload_failures.one();
    tracing::error!(
        model = entry.id(),
        engine_id = to.engine.manifest.id,
        engine_version = to.engine.manifest.version,
        "the new worker cannot take over, the model stays with {}: {reason}",
        old.label()
    );
    if !to.engine.is_same_build(&old.choice.engine) {
        node.engines.note_failed_trial(&to.engine, entry.id(), reason);
        let mut state = entry.lock();
        for way in &mut state.ways {
            way.failed |= way.choice.engine.is_same_build(&to.engine);
        }
    }
}
