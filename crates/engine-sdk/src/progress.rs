//! How an engine says that it is getting on, and learns that it should stop.

use crate::Status;

/// Given to everything that takes long. The host watches for reports: 30 s without one and the process is ended, so
/// report at least every second or so (each file of a load, each layer of a long prefill).
///
/// Reports are cheap for the engine and may be frequent; they come from the thread that was called.
pub struct Progress<'a> {
    report: &'a mut dyn FnMut(u64, u64) -> bool,
    cancelled: bool,
}

impl<'a> Progress<'a> {
    /// `report(done, total)` answers whether to go on.
    pub fn new(report: &'a mut dyn FnMut(u64, u64) -> bool) -> Progress<'a> {
        Progress { report, cancelled: false }
    }

    /// Tells the host that `done` of `total` is finished, in any unit; `total` 0: unknown.
    ///
    /// # Errors
    /// `CANCELLED` when the host wants the work to stop. Hand it on with `?`; every later report gives it again.
    pub fn report(&mut self, done: u64, total: u64) -> Result<(), Status> {
        if !self.cancelled && !(self.report)(done, total) {
            self.cancelled = true;
        }
        if self.cancelled { Err(Status::cancelled("the host asked to stop")) } else { Ok(()) }
    }

    /// Whether a report was answered with "stop".
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

impl std::fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}
