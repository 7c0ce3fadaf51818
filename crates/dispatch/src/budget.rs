//! How many retries there may be, of all requests together: a fault that hits everybody must not double the load.

use std::time::Duration;

/// Each so many requests pay for one retry.
pub const RETRY_SHARE: u64 = 5;
/// Retries that may be saved up, and are there at the start: two workers with a hundred requests each.
pub const RETRY_RESERVE: u64 = 256;
/// Comes in besides, so that a quiet router can retry too.
pub const RETRIES_PER_SECOND: u64 = 10;

/// Parts of a retry that are counted.
const PARTS: u64 = 1000;
const _: () = assert!(PARTS.is_multiple_of(RETRY_SHARE));
const PARTS_MAX: u64 = RETRY_RESERVE * PARTS;

/// A token bucket.
#[derive(Debug)]
pub struct RetryBudget {
    parts: u64,
    /// Up to when [`RETRIES_PER_SECOND`] is counted in.
    filled: Duration,
}

impl RetryBudget {
    pub fn new() -> RetryBudget {
        RetryBudget { parts: PARTS_MAX, filled: Duration::ZERO }
    }

    /// A request came.
    pub fn earn(&mut self) {
        self.parts = (self.parts + PARTS / RETRY_SHARE).min(PARTS_MAX);
    }

    /// Takes a retry; false: there is none left.
    pub fn spend(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.filled).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.filled =
            self.filled.max(Duration::from_millis(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)));
        // A thousandth of a retry for each thousandth of a second.
        self.parts = passed.saturating_mul(RETRIES_PER_SECOND).saturating_add(self.parts).min(PARTS_MAX);
        match self.parts.checked_sub(PARTS) {
            Some(left) => {
                self.parts = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
