//! Keeps the measured program on one core and everything else on another.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use core_affinity::CoreId;

use crate::process::Process;

/// Two cores of this machine that are not the same: the first for what is measured, the last for all else.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    pub measured: CoreId,
    pub others: CoreId,
}

impl Cores {
    /// `None` on a machine with one core, or one that does not let programs choose.
    pub fn find() -> Option<Cores> {
        let all = core_affinity::get_core_ids()?;
        let (first, last) = (*all.first()?, *all.last()?);
        (first != last).then_some(Cores { measured: first, others: last })
    }
}

/// From here on this thread, and what it starts, runs on `core` alone; false: the system refused.
pub fn pin(core: CoreId) -> bool {
    core_affinity::set_for_current(core)
}

impl Cores {
    /// Starts a process on the core of what is measured; this thread is back on the other one afterwards.
    pub fn start_measured(&self, command: Command, dir: &Path, name: &str) -> Result<Process> {
        // A child begins with the affinity of the thread that started it.
        pin(self.measured);
        let started = Process::start(command, dir, name);
        pin(self.others);
        started
    }
}
