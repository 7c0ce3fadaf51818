//! Steps at a fixed pace, for tests and benchmarks that want an engine with a known speed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine_sdk::{Status, reason};
use serde::Deserialize;

/// A slower engine would look like one that hangs.
pub const STEP_MAX: Duration = Duration::from_secs(2);
/// The system wakes a sleeper late by less than this; the rest is waited for awake.
const SLEEP_MARGIN: Duration = Duration::from_micros(300);

/// The engine's options.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Every step begins at a whole multiple of so many microseconds of the system's clock; 0: as soon as it can.
    #[serde(default)]
    step_us: u64,
}

/// When steps may begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    step: Duration,
}

impl Pace {
    /// From the options of a load; empty: none.
    ///
    /// # Errors
    /// `UNSUPPORTED` with `invalid_settings` or, for a key that is no option, `unknown_option`.
    pub fn from_options(options_json: &str) -> Result<Pace, Status> {
        if options_json.is_empty() {
            return Ok(Pace::default());
        }
        let invalid = |what: String| Status::unsupported(reason::INVALID_SETTINGS, what);
        let options: serde_json::Map<String, serde_json::Value> = serde_json::from_str(options_json)
            .map_err(|error| invalid(format!("options are not a JSON object: {error}")))?;
        if let Some(key) = options.keys().find(|key| *key != "step_us") {
            let message = format!("option {key}: the only option of this engine is step_us");
            return Err(Status::unsupported(reason::UNKNOWN_OPTION, message));
        }
        let options: Options = serde_json::from_value(options.into())
            .map_err(|error| invalid(format!("option step_us: {error}")))?;
        let step = Duration::from_micros(options.step_us);
        if step > STEP_MAX {
            return Err(invalid(format!(
                "option step_us is {}, and {} is the most",
                options.step_us,
                STEP_MAX.as_micros()
            )));
        }
        Ok(Pace { step })
    }

    /// Returns when the next step may begin.
    pub fn wait(self) {
        if self.step.is_zero() {
            return;
        }
        let since = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = since();
        let left = self.left(start);
        if let Some(asleep) = left.checked_sub(SLEEP_MARGIN) {
            #[expect(clippy::disallowed_methods, reason = "to take time is what the caller asked for")]
            std::thread::sleep(asleep);
        }
        // Also over when the clock was set back.
        while since().checked_sub(start).is_some_and(|waited| waited < left) {
            std::hint::spin_loop();
        }
    }

    /// From `now` to the next multiple of a step.
    fn left(self, now: Duration) -> Duration {
        let into = now.as_nanos() % self.step.as_nanos();
        self.step - Duration::from_nanos(u64::try_from(into).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_refused_by_name() {
        assert_eq!(Pace::from_options(""), Ok(Pace::default()));
        assert_eq!(Pace::from_options("{}"), Ok(Pace::default()));
        let pace = Pace::from_options(r#"{"step_us": 10000}"#).expect("an option");
        assert_eq!(pace.step, Duration::from_millis(10));
        for (options, reason, word) in [
            ("[]", "invalid_settings", "object"),
            (r#"{"step_us": -1}"#, "invalid_settings", "step_us"),
            (r#"{"step_us": "1"}"#, "invalid_settings", "step_us"),
            (r#"{"step_us": 2000001}"#, "invalid_settings", "2000000"),
            (r#"{"speed": 1}"#, "unknown_option", "speed"),
        ] {
            let status = Pace::from_options(options).expect_err(options);
            assert_eq!(status.reason, reason, "{options}");
            assert!(status.to_string().contains(word), "{status}");
        }
    }

    #[test]
    fn steps_begin_at_multiples() {
        let pace = Pace { step: Duration::from_millis(10) };
        for (now_us, left_us) in [(0, 10_000), (1, 9_999), (9_999, 1), (10_000, 10_000), (123_456, 6_544)] {
            assert_eq!(pace.left(Duration::from_micros(now_us)), Duration::from_micros(left_us), "{now_us}");
        }
    }

    #[test]
    fn a_wait_ends_after_the_next_multiple() {
        let step = Duration::from_millis(2);
        let number = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            since.as_nanos() / step.as_nanos()
        };
        let before = number();
        Pace { step }.wait();
        assert!(number() > before);
    }
}
