//! What can go wrong on the way from a hub, on request and a counted number of times.

use std::sync::Mutex;
use std::time::Duration;

/// One thing that goes wrong with one request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The connection breaks after this many bytes of this answer's body.
    CutAfter(u64),
    /// The lowest bit of the first byte of the answer's body is flipped.
    WrongBytes,
    /// The body stops after this many bytes until [`crate::FixtureHub::release_stalls`].
    StallAfter(u64),
    /// This status and a small JSON error instead of the answer.
    Status(u16),
    /// 429 with `Retry-After` in seconds.
    RateLimited { retry_after_s: u64 },
    /// The body comes in pieces of this size with this pause after each.
    Slow { piece_bytes: usize, pause: Duration },
    /// The body is sent whole with 200 although a range was asked for.
    IgnoreRange,
    /// This body with status 200 instead of the answer.
    Body(String),
}

struct Rule {
    path_end: String,
    fault: Fault,
    left: u32,
}

#[derive(Default)]
pub(crate) struct Faults(Mutex<Vec<Rule>>);

impl Faults {
    pub fn add(&self, path_end: String, fault: Fault, times: u32) {
        self.lock().push(Rule { path_end, fault, left: times });
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    /// The first fault for this path that has uses left, and one use less of it.
    pub fn take(&self, path: &str) -> Option<Fault> {
        let mut rules = self.lock();
        let rule = rules.iter_mut().find(|rule| rule.left > 0 && path.ends_with(&rule.path_end))?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.0.lock().expect("no holder of the lock can panic")
    }
}
