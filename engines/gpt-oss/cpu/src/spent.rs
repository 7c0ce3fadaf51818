//! Where the time of forward passes went, counted since the load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a forward pass does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Products with weights; with the experts also what chooses them and brings tokens together.
    Matrices,
    /// Keys and values stored and looked at.
    Attention,
    /// The whole pass.
    All,
}

/// Seconds of all forward passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent {
    pub matrices: f64,
    pub attention: f64,
    /// Norms, embedding, and what lies between pieces of work.
    pub rest: f64,
}

/// Counts. A look at the clock takes some 20 ns, and a layer has ten.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Nanoseconds of each [`Part`].
    nanoseconds: [AtomicU64; 3],
}

impl Clock {
    pub(crate) fn timed<T>(&self, part: Part, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        // 2^64 nanoseconds are five hundred years.
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds[part as usize].fetch_add(nanoseconds, Ordering::Relaxed);
        result
    }

    pub(crate) fn spent(&self) -> Spent {
        let seconds = |part: Part| {
            Duration::from_nanos(self.nanoseconds[part as usize].load(Ordering::Relaxed)).as_secs_f64()
        };
        let (matrices, attention) = (seconds(Part::Matrices), seconds(Part::Attention));
        Spent { matrices, attention, rest: (seconds(Part::All) - matrices - attention).max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_what_neither_part_took() {
        let clock = Clock::default();
        for (part, nanoseconds) in [(Part::Matrices, 5), (Part::Attention, 3), (Part::All, 10)] {
            clock.nanoseconds[part as usize].store(nanoseconds * 1_000_000_000, Ordering::Relaxed);
        }
        assert_eq!(clock.spent(), Spent { matrices: 5.0, attention: 3.0, rest: 2.0 });
        assert_eq!(clock.timed(Part::All, || 7), 7);
        assert!(clock.spent().rest >= 2.0);
    }
}
