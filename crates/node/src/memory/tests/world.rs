//! A machine with one simulated device, workers that take what they are told, and a holder of models.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine_protocol::{DeviceBytes, DeviceNeed, Estimate, Stats};
use futures_util::future::BoxFuture;
use node_api::DeviceInfo;
use tokio::time::Instant;

use crate::memory::ledger::DeviceSight;
use crate::memory::machine::{Machine, Seen};
use crate::memory::monitor::Watched;
use crate::memory::process::ProcessMemory;
use crate::memory::{
    Ask, GrantId, Memory, MemoryLimits, NoRoom, Patience, Reservation, Room, Sight, Tenant, Tenants, Wanted,
};

/// Bytes of the device and of the machine's memory.
pub const TOTAL: u64 = 1000;
pub const STAY: Duration = Duration::from_secs(10);
pub const ROOM_WAIT: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub struct Played {
    /// Available of [`TOTAL`] bytes of the machine's memory.
    pub ram_used: u64,
    /// Own bytes by process id.
    pub processes: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Default)]
pub struct PlayedMachine(pub Arc<Mutex<Played>>);

impl Machine for PlayedMachine {
    fn look(&mut self, pids: &[u32]) -> Seen {
        let played = self.0.lock().unwrap();
        let device = DeviceSight { total: TOTAL, used: None, shares_ram: false };
        let sight = Sight {
            ram_total: TOTAL,
            ram_available: TOTAL - played.ram_used,
            devices: ["sim:0", "sim:1"].map(|id| (id.to_owned(), device)).into(),
        };
        let process = |pid: &u32| {
            let own = *played.processes.get(pid)?;
            Some((*pid, ProcessMemory { own, ..ProcessMemory::default() }))
        };
        Seen { sight, processes: pids.iter().filter_map(process).collect() }
    }
}

/// A worker that says it takes so much of `sim:0`.
#[derive(Debug)]
pub struct PlayedWorker {
    pub pid: u32,
    pub takes: Mutex<u64>,
    pub ended: Mutex<Vec<String>>,
}

impl PlayedWorker {
    pub fn new(pid: u32, takes: u64) -> Arc<PlayedWorker> {
        Arc::new(PlayedWorker { pid, takes: Mutex::new(takes), ended: Mutex::default() })
    }
}

impl Watched for PlayedWorker {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn stats(&self) -> BoxFuture<'_, Option<Stats>> {
        let bytes = *self.takes.lock().unwrap();
        let memory = vec![DeviceBytes { device: "sim:0".into(), bytes }];
        Box::pin(async { Some(Stats { memory, kv_bytes_used: 3, kv_bytes_total: 5, ..Stats::default() }) })
    }

    fn end_over_budget(&self, reason: String) {
        self.ended.lock().unwrap().push(reason);
    }
}

/// A loaded model.
#[derive(Debug)]
struct Held {
    room: Reservation,
    busy: bool,
    leaving: bool,
    last_used: Instant,
}

/// Who holds the models. Idle ones that are told to leave are gone at once; busy ones when they finish.
#[derive(Debug, Default)]
pub struct Holder {
    held: Mutex<BTreeMap<String, Held>>,
    /// Models in the order in which they left.
    pub left: Mutex<Vec<String>>,
}

impl Tenants for Holder {
    fn list(&self) -> Vec<Tenant> {
        let tenant = |held: &Held| Tenant {
            grant: held.room.id(),
            busy: held.busy,
            leaving: held.leaving,
            last_used: held.last_used,
        };
        self.held.lock().unwrap().values().map(tenant).collect()
    }

    fn evict(&self, grant: GrantId) -> bool {
        let mut held = self.held.lock().unwrap();
        let model =
            held.iter().find(|(_, h)| h.room.id() == grant && !h.busy).map(|(model, _)| model.clone());
        let Some(model) = model else { return false };
        let room = held.remove(&model).unwrap();
        drop(held);
        self.left.lock().unwrap().push(model);
        // As a worker ends: later, and elsewhere.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(room);
        });
        true
    }

    fn drain(&self, grant: GrantId) {
        let mut held = self.held.lock().unwrap();
        let one = held.values_mut().find(|h| h.room.id() == grant).unwrap();
        assert!(one.busy, "an idle model is evicted");
        one.leaving = true;
    }
}

pub struct World {
    pub memory: Arc<Memory>,
    pub machine: PlayedMachine,
    pub holder: Arc<Holder>,
}

impl World {
    /// Nothing is kept back of the device; 100 bytes over the grant end a worker.
    pub async fn new() -> World {
        let limits = MemoryLimits {
            evict_percent: 100,
            minimum_stay: STAY,
            room_wait_max: ROOM_WAIT,
            overrun_margin_percent: 0,
            overrun_margin_bytes: 100,
            ..MemoryLimits::default()
        };
        World::with(limits).await
    }

    pub async fn with(limits: MemoryLimits) -> World {
        let machine = PlayedMachine::default();
        let device = |id: &str| DeviceInfo {
            id: id.into(),
            kind: "sim".into(),
            name: "played".into(),
            memory_total: TOTAL,
            driver: None,
        };
        let devices = vec![device("sim:0"), device("sim:1")];
        let memory = Memory::new(limits, devices, Box::new(machine.clone()));
        let holder = Arc::new(Holder::default());
        memory.set_tenants(Arc::clone(&holder) as Arc<dyn Tenants>);
        memory.look().await;
        World { memory, machine, holder }
    }

    pub async fn reserve(&self, model: &str, bytes: u64, patience: Patience) -> Result<Reservation, NoRoom> {
        self.memory.reserve(ask(model, &[("sim:0", bytes)], patience)).await
    }

    /// Loads a model, which is idle then and past its stay.
    pub async fn load_idle(&self, model: &str, bytes: u64) {
        self.load(model, bytes, false).await;
        tokio::time::advance(STAY).await;
    }

    pub async fn load(&self, model: &str, bytes: u64, busy: bool) {
        let room = self.reserve(model, bytes, Patience::Wait).await.unwrap();
        self.hold(model, room, busy);
    }

    pub fn hold(&self, model: &str, room: Reservation, busy: bool) {
        room.loaded();
        let held = Held { room, busy, leaving: false, last_used: Instant::now() };
        assert!(self.holder.held.lock().unwrap().insert(model.into(), held).is_none());
    }

    /// Its requests are done: who was to leave leaves.
    pub fn finish(&self, model: &str) {
        let mut held = self.holder.held.lock().unwrap();
        let one = held.get_mut(model).unwrap();
        one.busy = false;
        let leaving = one.leaving.then(|| held.remove(model).unwrap());
        drop(held);
        if leaving.is_some() {
            self.holder.left.lock().unwrap().push(model.into());
        }
        drop(leaving);
        self.memory.tenants_changed();
    }

    /// Nobody wants it any more.
    pub fn forget(&self, model: &str) {
        let held = self.holder.held.lock().unwrap().remove(model);
        drop(held);
    }

    pub fn is_leaving(&self, model: &str) -> bool {
        self.holder.held.lock().unwrap().get(model).is_some_and(|held| held.leaving)
    }

    pub fn holds(&self, model: &str) -> bool {
        self.holder.held.lock().unwrap().contains_key(model)
    }

    pub fn left(&self) -> Vec<String> {
        self.holder.left.lock().unwrap().clone()
    }

    /// Lets everything that can happen now happen.
    pub async fn settle(&self) {
        for _ in 0..20 {
            self.memory.look().await;
            tokio::task::yield_now().await;
        }
    }
}

/// A load that needs so many bytes, on the first of these devices that has them.
pub fn ask(model: &str, rooms: &[(&str, u64)], patience: Patience) -> Ask {
    let room = |(device, bytes): &(&str, u64)| Room {
        estimate: Estimate {
            devices: vec![DeviceNeed { device: (*device).into(), weights: *bytes, ..DeviceNeed::default() }],
            context_length_max: 4096,
        },
        devices: Vec::new(),
    };
    Ask {
        model: model.into(),
        rooms: rooms.iter().map(room).collect(),
        wanted: Wanted::default(),
        patience,
        ahead: false,
        keep: Vec::new(),
    }
}
