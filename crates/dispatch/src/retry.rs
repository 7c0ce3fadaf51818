//! Whether a request that failed before its first token is sent again. The only place that decides it.

use std::time::Duration;

/// A request that was on so many dying workers fails alone.
pub const WORKER_DEATHS_MAX: u32 = 2;
/// After failures that killed nobody a request is sent so many times more.
pub const RETRIES_MAX: u32 = 4;
/// Before the first of them; doubled each time.
pub const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How a request failed on a node, before anything of it was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A worker died with it on board.
    WorkerDied,
    /// A failed load, a lost connection, a full device: nobody died.
    NobodyDied,
}

/// What becomes of it. All but `Again` end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Again,
    /// It was on [`WORKER_DEATHS_MAX`] dying workers.
    Quarantined,
    /// All requests together were sent again too often.
    OverBudget,
    /// This one was.
    TriedOften,
}

/// What a request has been through.
#[derive(Debug, Clone, Copy, Default)]
pub struct History {
    pub worker_deaths: u32,
    failures: u32,
}

impl History {
    /// The pause before it is sent again.
    pub fn failed(&mut self, failure: Failure) -> Result<Duration, Verdict> {
        match failure {
            Failure::WorkerDied => {
                self.worker_deaths += 1;
                // At once: the death is over, and most likely another request's doing.
                if self.worker_deaths < WORKER_DEATHS_MAX {
                    Ok(Duration::ZERO)
                } else {
                    Err(Verdict::Quarantined)
                }
            }
            Failure::NobodyDied => {
                self.failures += 1;
                if self.failures > RETRIES_MAX {
                    return Err(Verdict::TriedOften);
                }
                Ok(RETRY_PAUSE * (1 << (self.failures - 1)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
