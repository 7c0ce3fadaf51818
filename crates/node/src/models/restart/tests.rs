use std::time::Duration;

use tokio::time::Instant;

use super::{FORGET_AFTER, FREE, Failures, PAUSE_MAX, PAUSE_MIN};

/// The pause after so many failures, all of them now.
fn pause(count: u32) -> Option<Duration> {
    let now = Instant::now();
    let mut failures = Failures::default();
    (0..count).for_each(|_| failures.note(now));
    failures.next_start().map(|start| start - now)
}

#[test]
fn the_first_failures_cost_no_pause_and_more_cost_more_up_to_the_limit() {
    assert_eq!((pause(0), pause(1), pause(FREE)), (None, None, None));
    assert_eq!(pause(FREE + 1), Some(PAUSE_MIN));
    assert_eq!(pause(FREE + 3), Some(PAUSE_MIN * 4));
    assert_eq!(pause(1000), Some(PAUSE_MAX));
}

#[test]
fn a_failure_long_ago_is_no_part_of_the_row() {
    let now = Instant::now();
    let mut failures = Failures::default();
    (0..9).for_each(|_| failures.note(now));
    assert!(failures.is_loop());
    failures.note(now + FORGET_AFTER);
    assert!(!failures.is_loop());
}

#[test]
fn what_a_request_is_to_blame_for_is_no_failure_of_the_workers() {
    let now = Instant::now();
    let mut failures = Failures::default();
    for _ in 0..10 {
        // It dies with others aboard, and then alone.
        failures.note(now);
        failures.blame(1);
    }
    assert_eq!((failures.any(), failures.next_start()), (false, None));
    failures.note(now);
    assert!(failures.any() && !failures.is_loop());
}
