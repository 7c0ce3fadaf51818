//! What has happened on this node since it started, counted where it happens.

use std::sync::atomic::{AtomicU64, Ordering};

/// One figure. It only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn one(&self) {
        self.add(1);
    }

    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// The figures of [`node_api::Counters`], which says what each of them counts.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub $name: Counter,)*
        }

        impl Counters {
            /// As routers are told.
            pub fn snapshot(&self) -> node_api::Counters {
                node_api::Counters { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters!(
    worker_starts,
    worker_crashes,
    worker_hangs,
    worker_overruns,
    loads,
    load_failures,
    reloads,
    reload_failures,
    reload_pauses,
    reload_pause_ms,
    evictions,
    expiries,
    requests,
    requests_cancelled,
    requests_interrupted,
);

#[cfg(test)]
mod tests {
    use super::Counters;

    #[test]
    fn a_snapshot_says_what_was_counted() {
        let counters = Counters::default();
        counters.loads.one();
        counters.reload_pause_ms.add(40);
        counters.reload_pause_ms.add(2);
        let said = counters.snapshot();
        let expected = node_api::Counters { loads: 1, reload_pause_ms: 42, ..node_api::Counters::default() };
        assert_eq!(said, expected);
    }
}
