//! How much processor time a child has used: what a template is charged with, however busy the machine is.

use std::time::Duration;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Since the process started, in the system's resolution (10 ms on Linux). `None`: the process is gone, or the system
/// does not say.
pub fn cpu_time(process_id: u32) -> Option<Duration> {
    let pid = Pid::from_u32(process_id);
    let mut system = System::new().ok()?;
    let what = ProcessRefreshKind::nothing().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
    system.process(pid).map(|process| Duration::from_millis(process.accumulated_cpu_time()))
}
