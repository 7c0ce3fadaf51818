//! The pace beside simulated devices: what a step costs is a function of its tokens, and time is a number.

use super::*;

/// A device: seconds of a step, from (rows that decode, prompt tokens, position of the prompt).
type Cost = fn(f64, f64, f64) -> f64;

/// Reads a prompt of 4,000 tokens beside four streams; gives the added gap of each step, in milliseconds.
fn added_gaps(cost: Cost, gap_ms: u64) -> Vec<f64> {
    let mut pace = Pace::new(Duration::from_millis(gap_ms));
    let seconds = Duration::from_secs_f64;
    for _ in 0..10 {
        pace.note(4, 0, seconds(cost(4.0, 0.0, 0.0)));
    }
    let (mut read, mut gaps) = (0, Vec::new());
    while read < 4000 {
        let chunk = pace.chunk().min(4000 - read).min(512);
        assert!(chunk > 0);
        let took = cost(4.0, f64::from(chunk), f64::from(read));
        gaps.push((took - cost(4.0, 0.0, 0.0)) * 1e3);
        pace.note(4, chunk, seconds(took));
        read += chunk;
    }
    gaps
}

fn check(cost: Cost, gap_ms: u64, steps_max: usize) {
    let gaps = added_gaps(cost, gap_ms);
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    assert!(worst <= gap_ms as f64, "{worst} ms were added, {gap_ms} are allowed");
    assert!(gaps.len() <= steps_max, "{} steps for a prompt", gaps.len());
}

#[test]
fn a_fast_device_reads_large_chunks_within_the_gap() {
    // 10,000 tokens a second, 1 ms to begin with.
    let cost: Cost =
        |rows, tokens, _| 0.01 + rows * 1e-4 + if tokens > 0.0 { 0.001 } else { 0.0 } + tokens * 1e-4;
    check(cost, 50, 20);
    check(cost, 10, 75);
}

#[test]
fn a_slow_device_reads_small_ones() {
    // 100 tokens a second: 200 ms are 20 tokens, of which the pace aims at 15.
    check(|rows, tokens, _| 0.1 + rows * 0.01 + tokens * 0.01, 200, 280);
}

#[test]
fn a_cost_that_grows_with_the_position_is_followed() {
    check(|_, tokens, position| 0.02 + tokens * 2e-4 * (1.0 + position / 2000.0), 100, 40);
}

#[test]
fn a_cost_that_is_noisy_stays_within_the_gap() {
    // Up to a tenth more or less, in a fixed course.
    check(|_, tokens, position| 0.02 + tokens * 3e-4 * (1.0 + 0.1 * (position * 12.9898).sin()), 100, 40);
}

#[test]
fn a_gap_that_cannot_be_kept_still_lets_the_prompt_arrive() {
    let gaps = added_gaps(|_, tokens, _| 0.01 + tokens * 0.05, 20);
    let least = 50.0 * f64::from(CHUNK_MIN);
    // The first chunks are guesses that shrink by a factor each.
    assert!(gaps[4..].iter().all(|gap| (gap - least).abs() < 1e-6), "the least chunk each step");
}

#[test]
fn one_slow_step_does_not_stop_prompts_for_long() {
    let mut pace = Pace::new(Duration::from_millis(100));
    pace.note(1, 0, Duration::from_millis(10));
    let step = |pace: &mut Pace| {
        let chunk = pace.chunk();
        pace.note(1, chunk, Duration::from_secs_f64(0.01 + f64::from(chunk) * 1e-3));
    };
    (0..20).for_each(|_| step(&mut pace));
    let settled = pace.chunk();
    assert!((70..=75).contains(&settled), "{settled}");
    pace.note(1, settled, Duration::from_secs(3));
    assert!(pace.chunk() >= settled / 4 - 1);
    (0..3).for_each(|_| step(&mut pace));
    assert!(pace.chunk() >= settled - 1, "{}", pace.chunk());
}

#[test]
fn a_slow_step_before_a_prompt_does_not_lengthen_every_gap_beside_it() {
    let mut pace = Pace::new(Duration::from_millis(100));
    for milliseconds in [10, 10, 10, 10, 10, 10, 10, 900, 10] {
        pace.note(1, 0, Duration::from_millis(milliseconds));
    }
    assert_eq!(pace.decode_seconds(), Some(0.01));
    for _ in 0..20 {
        let chunk = pace.chunk();
        let added = f64::from(chunk) * 1e-3;
        assert!(added <= 0.1, "{chunk} tokens add {added} s");
        pace.note(1, chunk, Duration::from_secs_f64(0.01 + added));
    }
}

#[test]
fn a_step_that_takes_longer_from_now_on_is_followed() {
    let mut pace = Pace::new(Duration::from_millis(100));
    (0..20).for_each(|_| pace.note(1, 0, Duration::from_millis(10)));
    (0..5).for_each(|_| pace.note(16, 0, Duration::from_millis(40)));
    assert_eq!(pace.decode_seconds(), Some(0.04));
}

#[test]
fn the_end_of_a_prompt_says_nothing_against_larger_chunks() {
    let mut pace = Pace::new(Duration::from_millis(100));
    pace.note(1, 0, Duration::from_millis(10));
    for _ in 0..20 {
        let chunk = pace.chunk();
        pace.note(1, chunk, Duration::from_secs_f64(0.01 + f64::from(chunk) * 1e-3));
    }
    let before = pace.chunk();
    pace.note(1, 3, Duration::from_millis(40));
    assert_eq!(pace.chunk(), before);
}

#[test]
fn a_prompt_that_was_read_alone_gives_the_first_guess() {
    let mut pace = Pace::new(Duration::from_millis(200));
    pace.note(0, 500, Duration::from_millis(500));
    assert_eq!(pace.chunk(), 75, "150 fit the target; a token of a small chunk costs more");
}

#[test]
fn a_step_in_a_rush_says_nothing_against_chunks_that_were_measured() {
    let mut pace = Pace::new(Duration::from_millis(100));
    pace.note(0, 16, Duration::from_millis(160));
    pace.note_rush(40, Duration::from_millis(200));
    assert_eq!(pace.chunk(), 7, "before anything is measured it is the better guess");
    pace.note(1, 0, Duration::from_millis(10));
    for _ in 0..20 {
        let chunk = pace.chunk();
        pace.note(1, chunk, Duration::from_secs_f64(0.01 + f64::from(chunk) * 5e-3));
    }
    let before = pace.chunk();
    assert_eq!((before, pace.rush() / before), (15, RUSH));
    pace.note_rush(150, Duration::from_secs(1));
    assert_eq!(pace.chunk(), before);
    assert_eq!(pace.prefill_rate().map(f64::round), Some(152.0));
}
