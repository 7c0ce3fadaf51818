//! Asking for room, waiting for it, holding it.
//!
//! Who comes first is served first, among those who want room on the same devices: a load that waits is not passed by a
//! smaller one, so nobody starves. The answer comes at once where the load fits, and where it would not fit if everybody
//! left.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine_protocol::{Device, Estimate};
use tokio::time::Instant;

use super::fit::{Fit, NoRoom, Wanted, fit};
use super::ledger::GrantId;
use super::monitor::{Figures, Watch, Watched};
use super::victims::{self, Candidate, Next, Tenant};
use super::{Memory, State};

/// Drivers and the system show room that late after a process has ended: until then, what does not fit may yet.
const SETTLE: Duration = Duration::from_secs(2);
/// Loads that wait at once; the next is refused. Each is a model of its own.
pub const WAITING_MAX: usize = 256;

/// A load that wants room.
#[derive(Debug, Clone)]
pub struct Ask {
    /// For logs and refusals.
    pub model: String,
    /// Where it could go, the best first; it gets the first that has room.
    pub rooms: Vec<Room>,
    pub wanted: Wanted,
    pub patience: Patience,
    /// Goes before everybody who waits: for a version of a model that takes the place of another.
    pub ahead: bool,
    /// These stay: the version that is to be replaced, while the new one may yet fail.
    pub keep: Vec<GrantId>,
}

/// One place a load could go.
#[derive(Debug, Clone)]
pub struct Room {
    /// As asked of the engine for these devices.
    pub estimate: Estimate,
    /// What the engine said of its devices when it was opened.
    pub devices: Vec<Device>,
}

/// Who leaves for a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Nobody.
    Now,
    /// Idle models.
    Evict,
    /// Busy models too, when they have finished; at most [`super::MemoryLimits::room_wait_max`].
    Wait,
}

/// Room that was granted; given back by dropping it. Hold it until the worker is gone.
#[derive(Debug)]
pub struct Reservation {
    id: GrantId,
    memory: Arc<Memory>,
    /// Which of [`Ask::rooms`].
    pub room: usize,
    /// What to load with.
    pub fit: Fit,
}

impl Reservation {
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// From now on the worker's real use is held against its grant. Call it before the load.
    pub fn watch(&self, worker: &Arc<impl Watched + 'static>) {
        // By type, so that the unsized pointer does not keep the worker alive.
        let worker: Weak<dyn Watched> = Arc::downgrade(worker) as Weak<dyn Watched>;
        self.memory.lock().watches.insert(self.id, Watch::new(worker));
    }

    /// The model is loaded: its minimum stay begins.
    pub fn loaded(&self) {
        if let Some(grant) = self.memory.lock().ledger.get_mut(self.id) {
            grant.loaded_at = Some(Instant::now());
        }
        self.memory.tenants_changed();
    }

    /// What the worker takes, as last seen.
    pub fn figures(&self) -> Figures {
        self.memory.figures(self.id)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.memory.lock();
        state.ledger.release(self.id, Instant::now());
        state.watches.remove(&self.id);
        state.leaving.remove(&self.id);
        drop(state);
        self.memory.tenants_changed();
    }
}

/// Those who ask, in their order.
#[derive(Debug, Default)]
pub struct Queue {
    next: u64,
    asking: VecDeque<Asking>,
}

#[derive(Debug)]
struct Asking {
    number: u64,
    devices: BTreeSet<String>,
    /// It was looked at, and others have to leave first.
    waits: bool,
}

/// Who is before somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nobody,
    /// Their answer comes at once.
    Asks,
    Waits,
}

impl Queue {
    fn enter(&mut self, devices: BTreeSet<String>, ahead: bool) -> Option<u64> {
        if self.asking.len() >= WAITING_MAX {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let asking = Asking { number, devices, waits: false };
        if ahead {
            self.asking.push_front(asking);
        } else {
            self.asking.push_back(asking);
        }
        Some(number)
    }

    /// Of those who want room on one of its devices.
    fn before(&self, number: u64) -> Before {
        let Some(own) = self.asking.iter().find(|a| a.number == number) else { return Before::Nobody };
        let before = self.asking.iter().take_while(|a| a.number != number);
        let waits = before.filter(|a| !a.devices.is_disjoint(&own.devices)).map(|a| a.waits).max();
        match waits {
            None => Before::Nobody,
            Some(false) => Before::Asks,
            Some(true) => Before::Waits,
        }
    }

    /// `true`: that is new.
    fn note_waits(&mut self, number: u64) -> bool {
        let asking = self.asking.iter_mut().find(|a| a.number == number);
        asking.is_some_and(|a| !std::mem::replace(&mut a.waits, true))
    }

    fn leave(&mut self, number: u64) {
        self.asking.retain(|a| a.number != number);
    }
}

/// A place in the queue, given up by dropping it.
struct Place<'a> {
    memory: &'a Memory,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.memory.lock().queue.leave(self.number);
        self.memory.tenants_changed();
    }
}

enum Decision {
    Granted { id: GrantId, room: usize, fit: Fit },
    Refused(NoRoom),
    Evict { grant: GrantId, missing: NoRoom },
    Drain { grants: Vec<GrantId>, missing: NoRoom },
    Wait { until: Option<Instant>, missing: NoRoom },
}

impl Memory {
    /// Room for a load, or why there is none, with both numbers: [`NoRoom::waited`] tells a refusal for good from one that
    /// waited in vain. Dropping the future gives up the place in the queue.
    pub async fn reserve(self: &Arc<Self>, ask: Ask) -> Result<Reservation, NoRoom> {
        let started = Instant::now();
        let deadline = started + self.limits.room_wait_max;
        let devices =
            ask.rooms.iter().flat_map(|room| &room.estimate.devices).map(|need| need.device.clone());
        let number = self.lock().queue.enter(devices.collect(), ask.ahead);
        let Some(number) = number else { return Err(self.crowded(&ask)) };
        let _place = Place { memory: self, number };
        self.look().await;
        let foreign: Vec<_> = ask.rooms.iter().map(|room| self.foreign(room)).collect();
        let mut changed = self.changed.subscribe();
        let mut asked_to_leave = false;
        loop {
            changed.mark_unchanged();
            self.look().await;
            // Before the lock: the holder of the models has a lock of its own.
            let tenants = self.tenant_list();
            let (until, missing) = match self.decide(&ask, number, &foreign, &tenants) {
                Decision::Granted { id, room, fit } => {
                    return Ok(Reservation { id, memory: Arc::clone(self), room, fit });
                }
                Decision::Refused(no) => {
                    let waited = asked_to_leave.then(|| started.elapsed());
                    return Err(NoRoom { waited, ..no });
                }
                Decision::Evict { grant, missing } => {
                    asked_to_leave = true;
                    self.evict(grant, &format!("{} needs the room", ask.model));
                    (None, missing)
                }
                Decision::Drain { grants, missing } => {
                    asked_to_leave = true;
                    self.drain(&grants, &ask.model);
                    (None, missing)
                }
                Decision::Wait { until, missing } => (until, missing),
            };
            let now = Instant::now();
            if now >= deadline {
                return Err(NoRoom { waited: Some(now - started), ..missing });
            }
            let until = until.unwrap_or(deadline).min(deadline);
            tokio::select! {
                // The sender lives as long as this memory.
                _ = changed.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    fn decide(
        &self,
        ask: &Ask,
        number: u64,
        foreign: &[BTreeMap<String, u64>],
        tenants: &[Tenant],
    ) -> Decision {
        let (now, spare) = (Instant::now(), self.limits.spare_percent());
        let mut state = self.lock();
        let before = state.queue.before(number);
        let waits = before != Before::Nobody;
        let mut best: Option<(u8, usize, Decision)> = None;
        for (index, room) in ask.rooms.iter().enumerate() {
            let free = |gone: &[GrantId], device: &str| {
                let foreign = foreign[index].get(device).copied().unwrap_or(0);
                state.ledger.free_without(&state.sight, device, spare, gone, foreign)
            };
            let fits = |gone: &[GrantId]| fit(&room.estimate, ask.wanted, |device| free(gone, device));
            let missing = match fits(&[]) {
                Ok(fit) if !waits => {
                    let on_cpu = room.estimate.devices.iter().filter(|need| need.device == super::CPU);
                    let maps = on_cpu.map(|need| need.weights_mapped).fold(0, u64::saturating_add);
                    let id = state.ledger.grant(&ask.model, &fit.budget, maps);
                    return Decision::Granted { id, room: index, fit };
                }
                Ok(fit) => fit.refused_for_others(),
                Err(missing) => NoRoom { holders: holders(&state, &missing.device), ..missing },
            };
            let candidates: Vec<Candidate> = candidates(&state, room, ask, tenants);
            let all: Vec<GrantId> = candidates.iter().map(|c| c.tenant.grant).collect();
            let next = victims::next(candidates, now, self.limits.minimum_stay, |gone| fits(gone).is_ok());
            let settles =
                (state.ledger.released_at(&missing.device).map(|at| at + SETTLE)).filter(|at| *at > now);
            let (rank, cost, decision) = match next {
                _ if before == Before::Asks => (3, 0, Decision::Wait { until: None, missing }),
                _ if ask.patience == Patience::Now => (9, 0, Decision::Refused(missing)),
                // Whoever is before it waits for busy models, which it is not to do.
                _ if waits && ask.patience == Patience::Evict => (9, 0, Decision::Refused(missing)),
                _ if waits && fits(&all).is_ok() => (3, 0, Decision::Wait { until: None, missing }),
                Next::Evict { grant, remaining } => (0, remaining, Decision::Evict { grant, missing }),
                Next::Drain(grants) => (1, grants.len(), Decision::Drain { grants, missing }),
                Next::Wait(until) => (2, 0, Decision::Wait { until, missing }),
                Next::Never if settles.is_some() => (3, 0, Decision::Wait { until: settles, missing }),
                // What there would be if everybody left is the number that says why it is refused.
                Next::Never => match fits(&all) {
                    Err(alone) => (9, 0, Decision::Refused(NoRoom { holders: missing.holders, ..alone })),
                    Ok(_) => (3, 0, Decision::Wait { until: None, missing }),
                },
            };
            if best.as_ref().is_none_or(|(r, c, _)| (rank, cost) < (*r, *c)) {
                best = Some((rank, cost, decision));
            }
        }
        let waits_now =
            best.as_ref().is_some_and(|(_, _, decision)| !matches!(decision, Decision::Refused(_)));
        if waits_now && !waits && state.queue.note_waits(number) {
            // Those behind it who are not to wait learn it.
            self.tenants_changed();
        }
        drop(state);
        best.map(|(_, _, decision)| decision).unwrap_or_else(|| Decision::Refused(NoRoom::nowhere()))
    }

    pub(super) fn evict(&self, grant: GrantId, why: &str) {
        let model = self.lock().ledger.get(grant).map(|grant| grant.model.clone());
        let (Some(tenants), Some(model)) = (self.tenants.get(), model) else { return };
        // It may have become busy; the next look sees that.
        if tenants.evict(grant) {
            let mut state = self.lock();
            if state.ledger.get(grant).is_some() {
                state.leaving.insert(grant);
            }
            drop(state);
            tracing::info!(model, why, "an idle model leaves");
        }
    }

    fn drain(&self, grants: &[GrantId], for_model: &str) {
        let Some(tenants) = self.tenants.get() else { return };
        for grant in grants {
            let mut state = self.lock();
            let Some(model) = state.ledger.get(*grant).map(|grant| grant.model.clone()) else { continue };
            state.leaving.insert(*grant);
            drop(state);
            tracing::info!(
                model,
                for_model,
                "a busy model takes no new requests: another waits for its room"
            );
            tenants.drain(*grant);
        }
    }

    /// What other programs take where only the engine can tell: what is neither free nor ours.
    fn foreign(&self, room: &Room) -> BTreeMap<String, u64> {
        let state = self.lock();
        let said = room.devices.iter().filter(|device| device.memory_free > 0);
        let taken = |device: &Device| {
            let seen = state.sight.devices.get(&device.id)?;
            let ours = state.ledger.device_used(&state.sight, &device.id);
            Some((device.id.clone(), seen.total.saturating_sub(device.memory_free).saturating_sub(ours)))
        };
        said.filter_map(taken).collect()
    }

    fn crowded(&self, ask: &Ask) -> NoRoom {
        tracing::warn!(model = ask.model, "{WAITING_MAX} loads wait for room already");
        NoRoom { waited: Some(Duration::ZERO), ..NoRoom::nowhere() }
    }
}

/// Whoever holds something where this load could go, but for those it must not displace.
fn candidates(state: &State, room: &Room, ask: &Ask, tenants: &[Tenant]) -> Vec<Candidate> {
    let now = Instant::now();
    let devices = room.estimate.devices.iter().map(|need| need.device.as_str());
    let holders: BTreeMap<GrantId, _> = devices.flat_map(|device| state.holders_of(device)).collect();
    let mut candidates: Vec<Candidate> = holders
        .into_iter()
        .filter(|(id, _)| !ask.keep.contains(id))
        .map(|(id, loaded_at)| state.candidate(id, loaded_at, tenants, now))
        .collect();
    if ask.patience == Patience::Evict {
        candidates.retain(|c| c.tenant.leaving || !c.tenant.busy);
    }
    candidates
}

impl State {
    /// Those with a share of a device, or of the memory it shares with the machine.
    pub(super) fn holders_of(&self, device: &str) -> Vec<(GrantId, Option<Instant>)> {
        let shares = |id: &str| self.sight.devices.get(id).is_some_and(|seen| seen.shares_ram);
        let mut devices = vec![device];
        if shares(device) {
            devices.push(super::CPU);
        }
        if device == super::CPU || shares(device) {
            devices.extend(self.sight.devices.keys().map(String::as_str).filter(|id| shares(id)));
        }
        devices
            .into_iter()
            .flat_map(|device| self.ledger.holders(device))
            .map(|(id, grant)| (id, grant.loaded_at))
            .collect()
    }

    /// One that its holder has not told of yet is on its way into a worker.
    pub(super) fn candidate(
        &self,
        id: GrantId,
        loaded_at: Option<Instant>,
        tenants: &[Tenant],
        now: Instant,
    ) -> Candidate {
        let told = tenants.iter().find(|tenant| tenant.grant == id).copied();
        let mut tenant = told.unwrap_or(Tenant { grant: id, busy: true, leaving: false, last_used: now });
        tenant.leaving |= self.leaving.contains(&id);
        Candidate { tenant, loaded_at }
    }
}

fn holders(state: &State, device: &str) -> Vec<String> {
    let ids: BTreeSet<GrantId> = state.holders_of(device).into_iter().map(|(id, _)| id).collect();
    ids.into_iter().filter_map(|id| state.ledger.get(id)).map(|grant| grant.model.clone()).collect()
}
