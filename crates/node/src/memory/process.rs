//! What a worker's process takes of the machine's memory: its own, and pages of mapped files apart.
//!
//! | system | own | mapped |
//! |---|---|---|
//! | Linux | anonymous, shared and swapped pages | resident pages of files |
//! | Windows | committed private bytes | the rest of the working set |
//! | macOS | resident pages, mapped ones among them | 0 |
//!
//! macOS tells more only through calls that no well-kept safe crate has. There the weights that the engine said it maps are
//! taken off, all of them: what is left is too low while some are not in memory, and nobody is ended wrongly
//! (see [`OWN_IS_EXACT`]).

#[cfg(target_os = "linux")]
mod linux;

use std::collections::BTreeMap;

use sysinfo::System;

/// Whether a process's own memory is told apart from what it maps.
pub const OWN_IS_EXACT: bool = cfg!(any(target_os = "linux", windows));

/// In bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    pub own: u64,
    pub mapped: u64,
    /// On GPUs, by device, where the driver tells.
    pub devices: BTreeMap<String, u64>,
}

/// By process id. Those that have ended are missing.
#[cfg(target_os = "linux")]
pub fn read(_system: &mut System, pids: &[u32]) -> BTreeMap<u32, ProcessMemory> {
    pids.iter().filter_map(|pid| Some((*pid, linux::read(*pid)?))).collect()
}

/// By process id. Those that have ended are missing.
#[cfg(not(target_os = "linux"))]
pub fn read(system: &mut System, pids: &[u32]) -> BTreeMap<u32, ProcessMemory> {
    use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate};

    let asked: Vec<Pid> = pids.iter().map(|pid| Pid::from_u32(*pid)).collect();
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&asked), true, memory);
    let read = |pid: &u32| {
        let process = system.process(Pid::from_u32(*pid))?;
        // On Windows this crate's `virtual_memory` is what the process committed for itself.
        let own = if cfg!(windows) { process.virtual_memory() } else { process.memory() };
        let mapped = process.memory().saturating_sub(own);
        Some((*pid, ProcessMemory { own, mapped, devices: BTreeMap::new() }))
    };
    pids.iter().filter_map(read).collect()
}
