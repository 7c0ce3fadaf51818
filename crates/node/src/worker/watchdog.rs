//! Tells a worker that hangs from one that is slow. Pure: time is an argument.
//!
//! Three things are watched while something is asked of the worker, and nothing while it is idle:
//!
//! - **Signs of life**: any message of the engine's thread (progress, events, answers; log lines may come from any thread
//!   and do not count). None for [`Limits::progress`], or for [`Limits::decode`] while a sequence decodes: it hangs.
//! - **Rises**: progress that comes and says the same for ever. Bounded by [`Limits::stall`].
//! - **Results**: steps that go by and give no event. Bounded by [`Limits::eventless`]; a long prompt on a slow device is
//!   that too, so this one is long.
//!
//! New requests renew no clock, or a hung worker would live as long as clients come.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use engine_protocol::{Phase, SequenceId};
use tokio::time::Instant;

use super::connection::Call;

/// How long a worker may do nothing that can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Without a sign of life while it opens, loads, reads a prompt or answers.
    pub progress: Duration,
    /// Without a sign of life while a sequence gets its tokens.
    pub decode: Duration,
    /// With signs of life whose progress never rises.
    pub stall: Duration,
    /// With steps that give no event.
    pub eventless: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new(PROGRESS_DEFAULT, DECODE_DEFAULT, STALL_DEFAULT)
    }
}

impl Limits {
    pub fn new(progress: Duration, decode: Duration, stall: Duration) -> Limits {
        Limits { progress, decode, stall, eventless: stall.saturating_mul(EVENTLESS_STALLS) }
    }
}

pub const PROGRESS_DEFAULT: Duration = Duration::from_secs(30);
pub const DECODE_DEFAULT: Duration = Duration::from_secs(5);
pub const STALL_DEFAULT: Duration = Duration::from_secs(15 * 60);
/// Two hours at the default: 131,072 tokens of a prompt at 18 a second.
const EVENTLESS_STALLS: u32 = 8;

/// How often [`Watchdog::check`] wants to be called.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// A check that comes later than this says that the node itself stood still (a suspended machine, a stopped process):
/// that time is nobody's fault, and what the worker said meanwhile may not be read yet.
const CHECK_LATE: Duration = Duration::from_secs(1);

/// Why a worker has to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hang {
    pub what: &'static str,
    pub doing: &'static str,
    pub after: Duration,
}

#[derive(Debug)]
pub struct Watchdog {
    limits: Limits,
    /// Asked and not answered, with the words for it.
    calls: BTreeMap<Call, &'static str>,
    /// Not ended by the worker, cancelled ones too; whether it has given a token.
    sequences: HashMap<SequenceId, bool>,
    decoding: usize,
    /// The engine's thread said that it works on a call between steps, and has said nothing since.
    in_call: bool,
    /// The last progress, to see whether the next one rises.
    done: u64,
    sign: Instant,
    rise: Instant,
    result: Instant,
    checked: Instant,
}

impl Watchdog {
    pub fn new(limits: Limits, now: Instant) -> Watchdog {
        Watchdog {
            limits,
            calls: BTreeMap::new(),
            sequences: HashMap::new(),
            decoding: 0,
            in_call: false,
            done: 0,
            sign: now,
            rise: now,
            result: now,
            checked: now,
        }
    }

    pub fn idle(&self) -> bool {
        self.calls.is_empty() && self.sequences.is_empty()
    }

    pub fn asked(&mut self, call: Call, what: &'static str, now: Instant) {
        self.wake(now);
        self.calls.insert(call, what);
    }

    pub fn submitted(&mut self, sequence: SequenceId, now: Instant) {
        self.wake(now);
        self.sequences.insert(sequence, false);
    }

    /// What was to be asked could not be sent, or nobody waits for it any more.
    pub fn forget_call(&mut self, call: Call) {
        self.calls.remove(&call);
    }

    /// An answer, good or bad. One that is only a look at the counters (`result` false) is a sign of life and no result:
    /// they are looked at every second.
    pub fn answered(&mut self, call: Call, result: bool, now: Instant) {
        self.calls.remove(&call);
        self.sign(now);
        if result {
            self.result(now);
        }
    }

    pub fn progress(&mut self, phase: Phase, done: u64, now: Instant) {
        self.sign(now);
        self.in_call = phase == Phase::Call;
        // A fall is the begin of another step.
        if done > self.done {
            self.rise = now;
            // Each byte of a load comes once; the counts of steps begin anew with every step.
            if phase == Phase::Load {
                self.result = now;
            }
        }
        self.done = done;
    }

    /// An event that is a token.
    pub fn token(&mut self, sequence: SequenceId, now: Instant) {
        self.event(now);
        if let Some(decodes @ false) = self.sequences.get_mut(&sequence) {
            *decodes = true;
            self.decoding += 1;
        }
    }

    /// An event of any kind.
    pub fn event(&mut self, now: Instant) {
        self.sign(now);
        self.result(now);
    }

    /// The worker ended it.
    pub fn ended(&mut self, sequence: SequenceId) {
        if let Some(true) = self.sequences.remove(&sequence) {
            self.decoding -= 1;
        }
    }

    pub fn all_ended(&mut self) {
        self.sequences.clear();
        self.decoding = 0;
    }

    /// Whether it hangs. Call it every [`CHECK_INTERVAL`] while it is not [idle](Self::idle).
    pub fn check(&mut self, now: Instant) -> Option<Hang> {
        let since = now.saturating_duration_since(self.checked);
        self.checked = now;
        if since > CHECK_LATE {
            for clock in [&mut self.sign, &mut self.rise, &mut self.result] {
                *clock = (*clock + since).min(now);
            }
        }
        if self.idle() {
            return None;
        }
        let decodes = self.decoding > 0 && !self.in_call;
        let doing = match self.calls.first_key_value() {
            Some((_, what)) if !decodes => what,
            _ if decodes => "give the next tokens",
            _ => "read a prompt",
        };
        let Limits { progress, decode, stall, eventless } = self.limits;
        let silence = if decodes { decode } else { progress };
        let rules = [
            (self.sign, silence, "gave no sign of life"),
            (self.rise, stall, "reported progress that never rose"),
            (self.result, eventless, "gave no result"),
        ];
        rules
            .into_iter()
            .find(|(clock, limit, _)| now.saturating_duration_since(*clock) >= *limit)
            .map(|(_, after, what)| Hang { what, doing, after })
    }

    /// All clocks start when the first thing is asked.
    fn wake(&mut self, now: Instant) {
        if self.idle() {
            (self.sign, self.rise, self.result, self.checked) = (now, now, now, now);
            (self.in_call, self.done) = (false, 0);
        }
    }

    fn sign(&mut self, now: Instant) {
        self.sign = now;
        self.in_call = false;
    }

    fn result(&mut self, now: Instant) {
        (self.rise, self.result, self.done) = (now, now, 0);
    }
}

#[cfg(test)]
mod tests;
