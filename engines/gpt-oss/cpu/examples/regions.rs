//! What a parallel region of the pool costs by itself: empty ones, back to back and after a pause.
//!
//! `cargo run --release -p gpt-oss-cpu --example regions -- [THREADS]`; medians, in microseconds.

use std::error::Error;
use std::time::{Duration, Instant};

use gpt_oss_cpu::Pool;

const TIMES: usize = 2_001;
/// Between two regions of a step, between two steps, and after the threads fell asleep.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_micros(20), Duration::from_micros(80), Duration::from_millis(1)];

fn main() -> Result<(), Box<dyn Error>> {
    let all = std::thread::available_parallelism()?.get();
    let threads = std::env::args().nth(1).map_or(Ok(all), |n| n.parse())?;
    for (name, pool) in [("free", Pool::new(threads)?), ("pinned", Pool::pinned(threads)?)] {
        let _pinned = pool.enter();
        for pause in PAUSES {
            let mut times: Vec<Duration> = (0..TIMES)
                .map(|_| {
                    let start = Instant::now();
                    while start.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                    let start = Instant::now();
                    pool.run(4 * threads, |task| {
                        std::hint::black_box(task);
                    });
                    start.elapsed()
                })
                .collect();
            times.sort_unstable();
            let at = |share: usize| times[TIMES * share / 100].as_secs_f64() * 1e6;
            println!("{name}, pause {pause:?}: median {:.2}, p99 {:.2}", at(50), at(99));
        }
    }
    Ok(())
}
