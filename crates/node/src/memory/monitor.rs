//! Once a second: what the machine has, what each worker takes, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use engine_protocol::Stats;
use futures_util::future::{BoxFuture, join_all};
use node_api::{Alert, ReplicaMemory};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::budget::{self, Excess};
use super::machine::Seen;
use super::pressure::{self, Crossing, Use};
use super::process::OWN_IS_EXACT;
use super::victims::{self, Candidate};
use super::{CPU, GrantId, Memory, State};
use crate::clock::unix_now;
use crate::worker::{EndCause, Worker};

/// Between two looks.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// A worker answers between two steps. One that takes longer is asked again the next time; hangs are the watchdog's.
const STATS_TIMEOUT: Duration = Duration::from_millis(800);

/// Looks that pass before a worker is asked again that did not answer: questions must not pile up behind a long step.
const QUIET_ROUNDS: u32 = 10;

/// A worker as the memory sees it.
pub trait Watched: Send + Sync + Debug {
    fn pid(&self) -> u32;
    /// The engine's own figures; `None`: it did not answer.
    fn stats(&self) -> BoxFuture<'_, Option<Stats>>;
    /// Ends it at once: it takes more than it was granted.
    fn end_over_budget(&self, reason: String);
}

impl Watched for Worker {
    fn pid(&self) -> u32 {
        Worker::pid(self)
    }

    fn stats(&self) -> BoxFuture<'_, Option<Stats>> {
        Box::pin(async { Worker::stats(self).await.ok() })
    }

    fn end_over_budget(&self, reason: String) {
        self.kill(EndCause::OverBudget, reason);
    }
}

/// What a replica takes, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    pub memory: Vec<ReplicaMemory>,
    pub kv_bytes_used: u64,
    pub kv_bytes_total: u64,
}

/// One worker that is watched.
#[derive(Debug)]
pub struct Watch {
    worker: Weak<dyn Watched>,
    stats: Option<Stats>,
    /// Looks without a question left, after one that was not answered in time.
    quiet: u32,
    /// Pages of mapped files.
    mapped: u64,
    alerts: Vec<Alert>,
    ended: bool,
}

impl Watch {
    pub fn new(worker: Weak<dyn Watched>) -> Watch {
        Watch { worker, stats: None, quiet: 0, mapped: 0, alerts: Vec::new(), ended: false }
    }

    pub fn alerts(&self) -> impl Iterator<Item = &Alert> {
        self.alerts.iter()
    }

    /// Tells of what is new, and forgets what is over.
    fn tell(&mut self, model: &str, excesses: &[Excess], at: i64) {
        let mut alerts = Vec::with_capacity(excesses.len());
        for excess in excesses {
            let subject = format!("{model} on {}", excess.device);
            let message = excess.message(model);
            let known = self.alerts.iter().find(|alert| alert.subject == subject);
            if known.is_none() {
                tracing::warn!(
                    model,
                    device = excess.device,
                    granted = excess.granted,
                    taken = excess.taken,
                    "a worker takes more than it was granted"
                );
            }
            let since = known.map_or(at, |alert| alert.since);
            alerts.push(Alert { code: "over_budget".to_owned(), subject, message, since });
        }
        self.alerts = alerts;
    }
}

impl Memory {
    /// Looks once a second until the token is cancelled.
    pub async fn run(self: Arc<Self>, end: CancellationToken) {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => self.round().await,
                () = end.cancelled() => return,
            }
        }
    }

    /// One look, and what follows: alerts, overruns, idle models that leave.
    pub(super) async fn round(self: &Arc<Self>) {
        let workers: Vec<_> = {
            let state = self.lock();
            let askable = state.watches.iter().filter(|(_, watch)| watch.quiet == 0);
            askable.map(|(id, watch)| (*id, Weak::clone(&watch.worker))).collect()
        };
        let asked = workers.into_iter().map(|(id, worker)| async move {
            let worker = worker.upgrade()?;
            // `Err`: not in time, and the question is still open.
            let stats = timeout(STATS_TIMEOUT, worker.stats()).await.map_err(|_| ());
            Some((id, stats))
        });
        let stats = join_all(asked).await;
        {
            let mut state = self.lock();
            state.watches.values_mut().for_each(|watch| watch.quiet = watch.quiet.saturating_sub(1));
            for (id, stats) in stats.into_iter().flatten() {
                let Some(watch) = state.watches.get_mut(&id) else { continue };
                match stats {
                    Ok(stats) => watch.stats = stats.or(watch.stats.take()),
                    Err(()) => watch.quiet = QUIET_ROUNDS,
                }
            }
        }
        self.look().await;
        self.enforce();
        self.relieve();
        self.tenants_changed();
    }

    /// Reads the machine and the workers' processes, off the event loop.
    pub async fn look(self: &Arc<Self>) {
        let memory = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            // Held to the end, so that of two looks the later one stays.
            let mut machine = memory.machine.lock().unwrap_or_else(PoisonError::into_inner);
            let pids: Vec<u32> = memory.lock().pids();
            let seen = machine.look(&pids);
            memory.lock().apply(seen);
        });
        if let Err(error) = read.await {
            tracing::warn!(%error, "memory cannot be read");
        }
    }

    /// Tells of workers that take too much, and ends those past the margin.
    fn enforce(&self) {
        let at = unix_now();
        let mut ends = Vec::new();
        let mut state = self.lock();
        let State { ledger, watches, .. } = &mut *state;
        for (id, watch) in watches.iter_mut() {
            let Some(grant) = ledger.get(*id) else { continue };
            let excesses = budget::excesses(&grant.granted, &grant.taken, &self.limits);
            watch.tell(&grant.model, &excesses, at);
            let Some(worst) = excesses.iter().find(|excess| excess.ends) else { continue };
            if let Some(worker) = watch.worker.upgrade().filter(|_| !watch.ended) {
                watch.ended = true;
                ends.push((worker, worst.message(&grant.model)));
            }
        }
        drop(state);
        for (worker, reason) in ends {
            tracing::error!(
                worker = worker.pid(),
                reason,
                "the worker is ended: it takes far more than it was granted"
            );
            worker.end_over_budget(reason);
        }
    }

    /// Alerts of memory that is nearly full, and one idle model that leaves for each that is too full.
    fn relieve(&self) {
        let tenants = self.tenant_list();
        let now = Instant::now();
        let mut state = self.lock();
        let uses = state.uses();
        for crossing in state.pressure.look(&uses, &self.limits, unix_now()) {
            match crossing {
                Crossing::Up(alert) => tracing::warn!(subject = alert.subject, "{}", alert.message),
                Crossing::Down(alert) => {
                    tracing::info!(subject = alert.subject, "it is no longer nearly full")
                }
            }
        }
        let mut leave: Vec<(GrantId, String)> = Vec::new();
        for full in pressure::too_full(&uses, &self.limits) {
            let device = if full.subject == RAM { CPU } else { &full.subject };
            let candidates: Vec<Candidate> = state
                .holders_of(device)
                .into_iter()
                .map(|(id, loaded_at)| state.candidate(id, loaded_at, &tenants, now))
                .collect();
            // One after the other: the next only when this one's memory is back.
            if candidates.iter().any(|c| state.leaving.contains(&c.tenant.grant)) {
                continue;
            }
            let victim = victims::least_recently_used(&candidates, now, self.limits.minimum_stay);
            if let Some(victim) = victim.filter(|victim| leave.iter().all(|(id, _)| id != victim)) {
                leave.push((victim, format!("{} is too full", full.subject)));
            }
        }
        drop(state);
        for (victim, why) in leave {
            self.evict(victim, &why);
        }
    }

    pub(super) fn figures(&self, id: GrantId) -> Figures {
        let state = self.lock();
        let Some(grant) = state.ledger.get(id) else { return Figures::default() };
        let watch = state.watches.get(&id);
        let devices: BTreeSet<&String> = grant.granted.keys().chain(grant.taken.keys()).collect();
        let bytes = |of: &BTreeMap<String, u64>, device| of.get(device).copied().unwrap_or(0);
        let memory = devices.into_iter().map(|device| ReplicaMemory {
            device: device.clone(),
            estimated: bytes(&grant.estimated, device),
            granted: bytes(&grant.granted, device),
            used: bytes(&grant.taken, device),
            mapped: watch.filter(|_| device == CPU).map_or(0, |watch| watch.mapped),
        });
        let memory = memory.collect();
        let kv = watch.and_then(|watch| watch.stats.as_ref());
        Figures {
            memory,
            kv_bytes_used: kv.map_or(0, |stats| stats.kv_bytes_used),
            kv_bytes_total: kv.map_or(0, |stats| stats.kv_bytes_total),
        }
    }
}

/// The machine's memory in alerts; `cpu` is a device.
const RAM: &str = "ram";

impl State {
    fn pids(&self) -> Vec<u32> {
        self.watches.values().filter_map(|watch| watch.worker.upgrade()).map(|worker| worker.pid()).collect()
    }

    /// What was seen becomes what is known, of the machine and of every worker.
    fn apply(&mut self, seen: Seen) {
        for (id, watch) in &mut self.watches {
            let Some(grant) = self.ledger.get_mut(*id) else { continue };
            let Some(worker) = watch.worker.upgrade() else { continue };
            let process = seen.processes.get(&worker.pid());
            if let Some(process) = process {
                let (own, mapped) = if OWN_IS_EXACT {
                    (process.own, process.mapped)
                } else {
                    (process.own.saturating_sub(grant.maps), process.own.min(grant.maps))
                };
                watch.mapped = mapped;
                grant.taken.insert(CPU.to_owned(), own);
            }
            // The driver's word counts before the engine's; where it has none, the engine's own figures do.
            for part in watch.stats.iter().flat_map(|stats| &stats.memory).filter(|part| part.device != CPU) {
                let by_driver = process.and_then(|process| process.devices.get(&part.device));
                grant.taken.insert(part.device.clone(), by_driver.copied().unwrap_or(part.bytes));
            }
            for (device, bytes) in process.iter().flat_map(|process| &process.devices) {
                grant.taken.insert(device.clone(), *bytes);
            }
        }
        self.sight = seen.sight;
    }

    /// The machine's memory and every device.
    fn uses(&self) -> Vec<Use> {
        let ram = Use {
            subject: RAM.to_owned(),
            used: self.sight.ram_total.saturating_sub(self.sight.ram_available),
            total: self.sight.ram_total,
        };
        let devices = self.sight.devices.iter().map(|(device, seen)| Use {
            subject: device.clone(),
            used: self.ledger.device_used(&self.sight, device),
            total: seen.total,
        });
        std::iter::once(ram).chain(devices).collect()
    }
}
