//! Thousands of random events: nodes come and go, models load and fail to, workers die, callers give up. Whatever happens,
//! the promises hold. The simulated node keeps its side of them: probation, as `docs` of the node describe it.
//!
//! `SIMULATION_SEED` repeats one run; a failure prints the seed.

mod simulation {
    pub mod node;
    pub mod world;
}

use simulation::world::{Chaos, World};

const STEPS: u32 = 4000;
const RUNS: u64 = 24;

fn seeds() -> Vec<u64> {
    match std::env::var("SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=RUNS).collect(),
    }
}

fn run(chaos: Chaos) {
    for seed in seeds() {
        eprintln!("seed {seed}");
        let mut world = World::new(seed, chaos);
        for _ in 0..STEPS {
            world.step();
        }
        world.settle();
        let sums = &world.sums;
        assert!(sums.answered > 100, "a run in which nothing happens proves nothing: {sums:?}");
    }
}

/// Poisoned requests kill every worker they begin on; nodes, loads and callers fail besides.
#[test]
fn a_poisoned_request_fails_alone_and_everybody_else_is_served() {
    run(Chaos { poison: true, crashes: false, nodes: true });
}

/// Workers die by themselves too: then nobody can tell who is to blame, and nobody is on a third dying worker all the same.
#[test]
fn nobody_is_on_a_third_dying_worker_whatever_kills_them() {
    run(Chaos { poison: true, crashes: true, nodes: true });
}

/// Without faults nobody is refused but for a full queue, and none is sent twice.
#[test]
fn without_faults_all_is_answered_at_the_first_try() {
    for seed in seeds() {
        eprintln!("seed {seed}");
        let mut world = World::new(seed, Chaos { poison: false, crashes: false, nodes: false });
        for _ in 0..STEPS {
            world.step();
        }
        world.settle();
        let sums = &world.sums;
        assert_eq!(
            (sums.retries, sums.failed, sums.quarantined, sums.refused_late),
            (0, 0, 0, 0),
            "{sums:?}"
        );
        assert!(sums.answered > 500, "{sums:?}");
    }
}
