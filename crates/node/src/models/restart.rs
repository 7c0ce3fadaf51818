//! When a worker is started again after one that died or could not load its model. Pure: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row are followed by an immediate start: a request that kills two workers is found out by the
/// second death, and costs the others no pause.
pub const FREE: u32 = 2;
/// The pause after one more; doubled each time up to [`PAUSE_MAX`].
pub const PAUSE_MIN: Duration = Duration::from_secs(1);
pub const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A failure this long ago is no part of a row.
pub const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Failures of one model's workers in a row: a request that came to its end in order breaks it. A death that one request is to
/// blame for is none of the workers'.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    pub fn note(&mut self, now: Instant) {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= FORGET_AFTER) {
            self.count = 0;
        }
        *self = Failures { count: self.count.saturating_add(1), last: Some(now) };
    }

    /// A request was alone on a worker that had worked, and the worker died: this death does not count, and those of the
    /// workers that died with the same request before count no longer.
    pub fn blame(&mut self, deaths_before: u32) {
        self.count = self.count.saturating_sub(deaths_before);
    }

    /// A worker failed, and none has proved since that it was for no reason of its own.
    pub fn any(&self) -> bool {
        self.count > 0
    }

    /// So many that the model is not ready until a worker has proved itself.
    pub fn is_loop(&self) -> bool {
        self.count > FREE
    }

    /// When the next start may be; `None`: now.
    pub fn next_start(&self) -> Option<Instant> {
        let beyond = self.count.checked_sub(FREE + 1)?;
        Some(self.last? + PAUSE_MIN.saturating_mul(1 << beyond.min(16)).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests;
