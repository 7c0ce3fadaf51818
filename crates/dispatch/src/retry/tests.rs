use super::*;

#[test]
fn the_first_death_costs_no_time_and_the_second_ends_it() {
    let mut history = History::default();
    assert_eq!(history.failed(Failure::WorkerDied), Ok(Duration::ZERO));
    assert_eq!(history.worker_deaths, 1);
    assert_eq!(history.failed(Failure::WorkerDied), Err(Verdict::Quarantined));
}

#[test]
fn failures_that_killed_nobody_are_tried_again_four_times_with_doubling_pauses() {
    let mut history = History::default();
    for ms in [100, 200, 400, 800] {
        assert_eq!(history.failed(Failure::NobodyDied), Ok(Duration::from_millis(ms)));
    }
    assert_eq!(history.failed(Failure::NobodyDied), Err(Verdict::TriedOften));
}

#[test]
fn the_two_kinds_are_counted_apart() {
    let mut history = History::default();
    assert_eq!(history.failed(Failure::WorkerDied), Ok(Duration::ZERO));
    for _ in 0..RETRIES_MAX {
        assert!(history.failed(Failure::NobodyDied).is_ok());
    }
    assert_eq!(history.failed(Failure::WorkerDied), Err(Verdict::Quarantined));
}
