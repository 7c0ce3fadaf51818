//! Who holds how much memory here, who gets some, and who leaves for others.
//!
//! [`Memory`] is asked for room before a load ([`Memory::reserve`]) and gives a [`Reservation`], whose end gives the room
//! back. Once a second it looks at the machine and at every worker: what is free, what each takes of its grant, who takes
//! more. What it decides with is pure and apart: [`ledger`] (who was granted what), [`victims`] (who leaves), [`fit`] (what a
//! model is loaded with), [`budget`] and [`pressure`] (what is too much).
//!
//! No grant takes a device above the threshold at which idle models leave ([`MemoryLimits::evict_percent`]), so that a model
//! does not leave because of its own load.

mod budget;
mod fit;
mod ledger;
mod limits;
mod machine;
mod monitor;
mod pressure;
mod process;
mod reserve;
mod victims;

pub use fit::{NoRoom, Wanted};
pub use ledger::{GrantId, Sight};
pub use limits::MemoryLimits;
pub use machine::{Machine, RealMachine, ram_total};
pub use reserve::{Ask, Patience, Reservation, Room};
pub use victims::Tenant;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use node_api::{Alert, DeviceInfo, DeviceMemory, MemoryStatus};
use tokio::sync::watch;

use ledger::Ledger;
use monitor::Watch;
use pressure::Pressure;
use reserve::Queue;

/// The device whose memory is the machine's.
pub const CPU: &str = "cpu";

/// What the holder of the models tells and does; [`Memory`] decides who leaves, and never ends a worker of its own accord
/// but for taking more than it was granted.
pub trait Tenants: Send + Sync + Debug {
    /// The models in workers, those that load included.
    fn list(&self) -> Vec<Tenant>;

    /// Ends a model that is idle and takes no request from now on. `false`: it has become busy. Its reservation is dropped
    /// when the worker is gone.
    fn evict(&self, grant: GrantId) -> bool;

    /// Others wait for its room: it takes no new requests, finishes those it has, and leaves. New requests for the model ask
    /// for room like any other load, and wait behind those who were first. Cannot be taken back.
    fn drain(&self, grant: GrantId);
}

/// The memory of this machine and its devices.
#[derive(Debug)]
pub struct Memory {
    limits: MemoryLimits,
    devices: Vec<DeviceInfo>,
    machine: Mutex<Box<dyn Machine>>,
    tenants: OnceLock<Arc<dyn Tenants>>,
    state: Mutex<State>,
    /// Counts everything after which someone who waits should look again.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    sight: Sight,
    ledger: Ledger,
    queue: Queue,
    watches: BTreeMap<GrantId, Watch>,
    /// Told to leave; their grants are still there.
    leaving: BTreeSet<GrantId>,
    pressure: Pressure,
}

impl Memory {
    pub fn new(limits: MemoryLimits, devices: Vec<DeviceInfo>, machine: Box<dyn Machine>) -> Arc<Memory> {
        Arc::new(Memory {
            limits,
            devices,
            machine: Mutex::new(machine),
            tenants: OnceLock::new(),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
        })
    }

    /// Once, before the first reservation. Without tenants nobody is ever asked to leave.
    pub fn set_tenants(&self, tenants: Arc<dyn Tenants>) {
        if self.tenants.set(tenants).is_err() {
            tracing::warn!("the memory has its tenants already");
        }
    }

    /// A replica became idle or began to leave: those who wait for room look again.
    pub fn tenants_changed(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// Bytes that a load could be granted on a device now, as of the last look.
    pub fn free(&self, device: &str) -> u64 {
        let state = self.lock();
        state.ledger.free(&state.sight, device, self.limits.spare_percent())
    }

    /// As sent to routers.
    pub fn status(&self) -> MemoryStatus {
        let state = self.lock();
        let devices = self.devices.iter().filter(|device| device.id != CPU).map(|device| DeviceMemory {
            device: device.id.clone(),
            total: device.memory_total,
            used: state.ledger.device_used(&state.sight, &device.id),
            reserved: state.ledger.granted(&device.id),
        });
        let cpu = self.devices.iter().any(|device| device.id == CPU).then(|| DeviceMemory {
            device: CPU.to_owned(),
            total: state.sight.ram_total,
            used: state.sight.ram_total.saturating_sub(state.sight.ram_available),
            reserved: state.ledger.granted(CPU),
        });
        MemoryStatus {
            ram_total: state.sight.ram_total,
            ram_available: state.sight.ram_available,
            devices: devices.chain(cpu).collect(),
        }
    }

    /// What an operator should look at now.
    pub fn alerts(&self) -> Vec<Alert> {
        let state = self.lock();
        state.pressure.alerts().chain(state.watches.values().flat_map(Watch::alerts)).cloned().collect()
    }

    /// Nothing that holds the lock can panic half way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tenant_list(&self) -> Vec<Tenant> {
        self.tenants.get().map(|tenants| tenants.list()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
