//! A model in a worker, and how much it is used.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine_protocol::Loaded;
use node_api::{ReplicaRole, ReplicaStatus};
use tokio::sync::{RwLock, watch};
use tokio::time::Instant;

use super::pick::Seat;
use super::wanted::LoadSettings;
use crate::engines::Choice;
use crate::memory::Reservation;
use crate::worker::Worker;

/// Beginnings of prompts a replica is remembered for: more than it can hold in its cache, few enough to look through.
const PREFIXES_MAX: usize = 128;

#[derive(Debug)]
pub struct Replica {
    pub worker: Arc<Worker>,
    pub loaded: Loaded,
    pub engine: String,
    pub engine_version: String,
    /// Held shared by a request from its submit until its first token, alone by one that has seen workers die: the next
    /// death then names the culprit. Fair: who waits is overtaken by nobody.
    pub gate: Arc<RwLock<()>>,
    /// Deaths that the request which is alone before its first token has seen; 0: no request is.
    suspect: Arc<AtomicU32>,
    /// It has given a token.
    works: AtomicBool,
    pub(super) choice: Choice,
    /// What it was loaded with, to see whether new settings need a new load.
    pub(super) settings: LoadSettings,
    pub(super) loaded_at: Instant,
    /// Its share of the memory; given back when the process is gone.
    reservation: Mutex<Option<Reservation>>,
    loaded_at_unix: i64,
    /// An operator wants a new worker in its place.
    pub(super) renew: AtomicBool,
    running: watch::Sender<u32>,
    total: AtomicU64,
    usage: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    role: ReplicaRole,
    last_used: Option<(Instant, i64)>,
    prefixes: VecDeque<u64>,
}

/// What a new replica is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub worker: Arc<Worker>,
    pub loaded: Loaded,
    pub choice: Choice,
    pub settings: LoadSettings,
    pub reservation: Reservation,
    /// It has given a token already.
    pub works: bool,
}

/// A request that has seen workers die is on a worker, and nobody else there has yet to begin. If the worker dies before this
/// is dropped, the request is to blame.
#[derive(Debug)]
pub struct Suspect {
    deaths: Arc<AtomicU32>,
    worker: Arc<Worker>,
}

impl Drop for Suspect {
    fn drop(&mut self) {
        // Whoever looks at the death may come later.
        if self.worker.ended().borrow().is_none() {
            self.deaths.store(0, Ordering::Relaxed);
        }
    }
}

impl Replica {
    pub(super) fn new(parts: Parts) -> Replica {
        let manifest = &parts.choice.engine.manifest;
        Replica {
            worker: parts.worker,
            loaded: parts.loaded,
            engine: manifest.id.clone(),
            engine_version: manifest.version.clone(),
            gate: Arc::default(),
            suspect: Arc::default(),
            works: AtomicBool::new(parts.works),
            choice: parts.choice,
            settings: parts.settings,
            loaded_at: Instant::now(),
            reservation: Mutex::new(Some(parts.reservation)),
            loaded_at_unix: unix_now(),
            renew: AtomicBool::new(false),
            running: watch::Sender::new(0),
            total: AtomicU64::new(0),
            usage: Mutex::new(Usage {
                role: ReplicaRole::Serving,
                last_used: None,
                prefixes: VecDeque::with_capacity(PREFIXES_MAX),
            }),
        }
    }

    /// Nothing that holds the lock can panic half way through a change.
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn role(&self) -> ReplicaRole {
        self.usage().role
    }

    pub(super) fn set_role(&self, role: ReplicaRole) {
        self.usage().role = role;
    }

    pub fn is_dead(&self) -> bool {
        self.worker.ended().borrow().is_some()
    }

    /// A request that has seen so many workers die was just submitted, alone in its probation; kept until it has begun.
    pub fn suspect(&self, worker_deaths: u32) -> Suspect {
        self.suspect.store(worker_deaths, Ordering::Relaxed);
        Suspect { deaths: Arc::clone(&self.suspect), worker: Arc::clone(&self.worker) }
    }

    /// It gave a token.
    pub fn worked(&self) {
        self.works.store(true, Ordering::Relaxed);
    }

    /// Of a dead one: how many deaths the request had seen before that is to blame for this one. `None`: nobody is, or the
    /// worker has never done anything else than die.
    pub(super) fn blamed(&self) -> Option<u32> {
        let deaths = Some(self.suspect.load(Ordering::Relaxed)).filter(|deaths| *deaths > 0);
        deaths.filter(|_| self.works.load(Ordering::Relaxed))
    }

    /// Requests that hold a lease on it.
    pub fn running(&self) -> u32 {
        *self.running.borrow()
    }

    /// Requests since it was loaded.
    pub fn requests(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Of its last request, or of its load.
    pub fn last_used(&self) -> Instant {
        self.usage().last_used.map_or(self.loaded_at, |(at, _)| at)
    }

    pub(super) fn seat(&self, prefix_hash: Option<u64>) -> Seat {
        let knows_prefix = prefix_hash.is_some_and(|hash| self.usage().prefixes.contains(&hash));
        Seat { running: self.running(), sequences_max: self.loaded.sequences_max, knows_prefix }
    }

    /// A request takes a place. Called with the entry locked, so that nobody evicts it meanwhile.
    pub(super) fn enter(&self, prefix_hash: Option<u64>) {
        self.running.send_modify(|running| *running += 1);
        self.total.fetch_add(1, Ordering::Relaxed);
        let mut usage = self.usage();
        usage.last_used = Some((Instant::now(), unix_now()));
        if let Some(hash) = prefix_hash {
            usage.prefixes.retain(|known| *known != hash);
            if usage.prefixes.len() == PREFIXES_MAX {
                usage.prefixes.pop_front();
            }
            usage.prefixes.push_back(hash);
        }
    }

    /// It gives the place back. Whether it was the last one.
    pub(super) fn leave(&self) -> bool {
        self.usage().last_used = Some((Instant::now(), unix_now()));
        let mut last = false;
        self.running.send_modify(|running| {
            *running = running.saturating_sub(1);
            last = *running == 0;
        });
        last
    }

    /// Returns when no request is on it, or its worker has ended.
    pub(super) async fn idle(&self) {
        let (mut running, mut ended) = (self.running.subscribe(), self.worker.ended());
        // The senders live as long as the replica.
        tokio::select! {
            _ = running.wait_for(|running| *running == 0) => {}
            _ = ended.wait_for(Option::is_some) => {}
        }
    }

    /// Takes the reservation out, so that dropping it gives the memory back: the process is gone.
    pub(super) fn release(&self) -> Option<Reservation> {
        self.reservation.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn with_reservation<T>(&self, look: impl FnOnce(&Reservation) -> T) -> Option<T> {
        self.reservation.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(look)
    }

    /// `echo 0.1.0`
    pub fn label(&self) -> String {
        format!("{} {}", self.engine, self.engine_version)
    }

    pub fn status(&self) -> ReplicaStatus {
        let figures = self.with_reservation(Reservation::figures).unwrap_or_default();
        let usage = self.usage();
        ReplicaStatus {
            worker: self.worker.pid(),
            role: usage.role,
            engine: self.engine.clone(),
            engine_version: self.engine_version.clone(),
            library_sha256: self.choice.engine.sha256.clone(),
            devices: vec![self.choice.device.id.clone()],
            context_length: self.loaded.context_length,
            sequences_max: self.loaded.sequences_max,
            requests_running: self.running(),
            requests_total: self.requests(),
            loaded_at: self.loaded_at_unix,
            last_used: usage.last_used.map_or(0, |(_, unix)| unix),
            memory: figures.memory,
            kv_bytes_used: figures.kv_bytes_used,
            kv_bytes_total: figures.kv_bytes_total,
        }
    }
}

/// Seconds since 1970; 0 where the clock stands before it.
pub(super) fn unix_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|since| i64::try_from(since.as_secs()).ok()).unwrap_or(0)
}
