//! The time of day, for people and for what is kept.

use std::time::SystemTime;

/// Seconds since 1970; 0 for a clock before that.
pub fn unix_now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}
