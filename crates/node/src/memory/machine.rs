//! What is read of the machine: its memory, its devices, its workers' processes. Blocks.

use std::collections::BTreeMap;
use std::fmt::Debug;

use node_api::DeviceInfo;
use sysinfo::System;

use super::ledger::{DeviceSight, Sight};
use super::process::{self, ProcessMemory};
use crate::devices;

/// One look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    pub sight: Sight,
    /// By process id; those that have ended are missing.
    pub processes: BTreeMap<u32, ProcessMemory>,
}

/// A machine to look at. Tests play their own.
pub trait Machine: Send + Debug {
    fn look(&mut self, pids: &[u32]) -> Seen;
}

/// This one.
#[derive(Debug)]
pub struct RealMachine {
    devices: Vec<DeviceInfo>,
    system: Option<System>,
}

impl RealMachine {
    /// `devices`: those the node serves with.
    pub fn new(devices: Vec<DeviceInfo>) -> RealMachine {
        let system = System::new();
        if let Err(error) = &system {
            tracing::warn!(%error, "the machine's memory cannot be read: it counts as none");
        }
        RealMachine { devices, system: system.ok() }
    }
}

impl Machine for RealMachine {
    fn look(&mut self, pids: &[u32]) -> Seen {
        let mut sight = Sight::default();
        let mut processes = BTreeMap::new();
        if let Some(system) = &mut self.system {
            system.refresh_memory();
            sight.ram_total = ram_total(system);
            sight.ram_available = ram_available(system);
            processes = process::read(system, pids);
        }
        let used: BTreeMap<String, u64> =
            devices::memory(&self.devices).into_iter().map(|memory| (memory.device, memory.used)).collect();
        for device in self.devices.iter().filter(|device| device.id != super::CPU) {
            let seen = DeviceSight {
                total: device.memory_total,
                used: used.get(&device.id).copied(),
                shares_ram: device.kind == "metal" || devices::is_software(&device.id, &device.kind),
            };
            sight.devices.insert(device.id.clone(), seen);
        }
        for (pid, device, bytes) in devices::memory_of_processes(&self.devices) {
            if let Some(process) = processes.get_mut(&pid) {
                process.devices.insert(device, bytes);
            }
        }
        Seen { sight, processes }
    }
}

/// The machine's memory, or the container's where that is less.
pub fn ram_total(system: &System) -> u64 {
    system
        .cgroup_limits()
        .map_or(system.total_memory(), |limits| limits.total_memory.min(system.total_memory()))
}

/// What programs could still take. In a container its page cache counts as free, as it does outside: mapped weights are
/// dropped when somebody needs the room.
fn ram_available(system: &System) -> u64 {
    let available = system.available_memory();
    match system.cgroup_limits() {
        Some(limits) if limits.total_memory < system.total_memory() => {
            available.min(limits.total_memory.saturating_sub(limits.rss))
        }
        _ => available,
    }
}
