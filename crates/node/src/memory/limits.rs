//! The thresholds, all of them settings.

use std::time::Duration;

/// Used share of a device or of the machine's memory at which an operator is told.
pub const ALERT_PERCENT: u8 = 90;
/// Used share above which idle models leave.
pub const EVICT_PERCENT: u8 = 95;
/// A model that was just loaded stays at least so long, whoever waits: loads of two models that do not fit together are at
/// least so far apart.
pub const MINIMUM_STAY: Duration = Duration::from_secs(10);
/// How long a load waits for busy models to leave. Long answers take minutes.
pub const ROOM_WAIT_MAX: Duration = Duration::from_secs(300);
/// A worker may take so much more than it was granted before it is ended, in percent of the grant …
pub const OVERRUN_MARGIN_PERCENT: u8 = 10;
/// … and in bytes: the program itself, its threads, and what a driver keeps for each process.
pub const OVERRUN_MARGIN_BYTES: u64 = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// [`ALERT_PERCENT`]
    pub alert_percent: u8,
    /// [`EVICT_PERCENT`]; 100: nobody leaves but for a load.
    pub evict_percent: u8,
    /// [`MINIMUM_STAY`]
    pub minimum_stay: Duration,
    /// [`ROOM_WAIT_MAX`]
    pub room_wait_max: Duration,
    /// [`OVERRUN_MARGIN_PERCENT`]
    pub overrun_margin_percent: u8,
    /// [`OVERRUN_MARGIN_BYTES`]
    pub overrun_margin_bytes: u64,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        MemoryLimits {
            alert_percent: ALERT_PERCENT,
            evict_percent: EVICT_PERCENT,
            minimum_stay: MINIMUM_STAY,
            room_wait_max: ROOM_WAIT_MAX,
            overrun_margin_percent: OVERRUN_MARGIN_PERCENT,
            overrun_margin_bytes: OVERRUN_MARGIN_BYTES,
        }
    }
}

impl MemoryLimits {
    /// Percent of a device that is never granted.
    pub fn spare_percent(&self) -> u8 {
        100_u8.saturating_sub(self.evict_percent)
    }
}
