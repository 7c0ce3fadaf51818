use super::*;

const LIMITS: Limits = Limits {
    progress: Duration::from_secs(30),
    decode: Duration::from_secs(5),
    stall: Duration::from_secs(100),
    eventless: Duration::from_secs(800),
};

/// A watchdog and a clock that only the test moves, a check every [`CHECK_INTERVAL`].
struct Bench {
    dog: Watchdog,
    now: Instant,
}

impl Bench {
    fn new() -> Bench {
        let now = Instant::now();
        Bench { dog: Watchdog::new(LIMITS, now), now }
    }

    /// Seconds until it calls for a kill; nothing happens meanwhile but `sign`, once a second.
    fn hangs_after(
        &mut self,
        seconds_max: u64,
        mut sign: impl FnMut(&mut Watchdog, Instant, u64),
    ) -> Option<(u64, Hang)> {
        let start = self.now;
        for second in 1..=seconds_max {
            for _ in 0..4 {
                self.now += CHECK_INTERVAL;
                if let Some(hang) = self.dog.check(self.now) {
                    return Some(((self.now - start).as_secs(), hang));
                }
            }
            sign(&mut self.dog, self.now, second);
        }
        None
    }
}

fn silence(_: &mut Watchdog, _: Instant, _: u64) {}

#[test]
fn an_idle_worker_may_be_silent_for_ever() {
    let mut bench = Bench::new();
    assert_eq!(bench.hangs_after(100_000, silence), None);
    // And the first thing asked of it starts the clocks anew.
    bench.dog.asked(1, "load the model", bench.now);
    let (after, hang) = bench.hangs_after(1000, silence).unwrap();
    assert_eq!((after, hang.doing, hang.what), (30, "load the model", "gave no sign of life"));
}

#[test]
fn the_clock_starts_when_the_plugin_is_to_be_opened() {
    let mut bench = Bench::new();
    bench.dog.asked(0, "open the engine", bench.now);
    assert_eq!(bench.hangs_after(1000, silence).unwrap().0, 30);
}

#[test]
fn a_slow_load_that_moves_is_no_hang_and_one_that_stops_is() {
    let mut bench = Bench::new();
    bench.dog.asked(1, "load the model", bench.now);
    // A byte every twenty seconds, for a day: from a very cold disk.
    let slow = |dog: &mut Watchdog, now, second: u64| {
        if second.is_multiple_of(20) {
            dog.progress(Phase::Load, second, now);
        }
    };
    assert_eq!(bench.hangs_after(86_400, slow), None);
    assert_eq!(bench.hangs_after(1000, silence).unwrap().0, 30);
}

#[test]
fn progress_that_says_the_same_for_ever_is_a_hang_in_the_end() {
    let mut bench = Bench::new();
    bench.dog.asked(1, "load the model", bench.now);
    let stuck = |dog: &mut Watchdog, now, _| dog.progress(Phase::Load, 7, now);
    let (after, hang) = bench.hangs_after(10_000, stuck).unwrap();
    // Once a second it says 7; the first time it rose.
    assert_eq!((after, hang.what), (101, "reported progress that never rose"));
}

#[test]
fn a_long_prompt_is_no_hang_until_it_has_given_nothing_for_very_long() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    // Steps of ten seconds whose progress rises, and no event.
    let steps = |dog: &mut Watchdog, now, second: u64| dog.progress(Phase::Step, second % 10, now);
    let (after, hang) = bench.hangs_after(10_000, steps).unwrap();
    assert_eq!((after, hang.what, hang.doing), (800, "gave no result", "read a prompt"));
}

#[test]
fn a_prompt_that_does_not_move_has_thirty_seconds() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    assert_eq!(bench.hangs_after(1000, silence).unwrap().0, 30);
}

#[test]
fn a_sequence_that_decodes_has_five() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    bench.dog.token(1, bench.now);
    let (after, hang) = bench.hangs_after(1000, silence).unwrap();
    assert_eq!((after, hang.doing), (5, "give the next tokens"));
}

#[test]
fn a_step_that_moves_is_no_hang_of_its_decoding_sequences() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    bench.dog.token(1, bench.now);
    // A long prompt of another sequence is in the same step for five minutes.
    bench.dog.submitted(2, bench.now);
    let moves = |dog: &mut Watchdog, now, second| dog.progress(Phase::Step, second, now);
    assert_eq!(bench.hangs_after(300, moves), None);
    assert_eq!(bench.hangs_after(1000, silence).unwrap().0, 5);
}

#[test]
fn a_long_text_between_two_steps_has_the_longer_time() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    bench.dog.token(1, bench.now);
    bench.dog.progress(Phase::Call, 0, bench.now);
    assert_eq!(bench.hangs_after(20, silence), None);
    bench.dog.token(1, bench.now);
    assert_eq!(bench.hangs_after(1000, silence).unwrap().0, 5);
}

#[test]
fn new_requests_and_looks_at_the_counters_renew_nothing() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    let more = |dog: &mut Watchdog, now, second| {
        dog.submitted(second + 10, now);
        dog.asked(second + 10_000, "tell its counters", now);
    };
    assert_eq!(bench.hangs_after(1000, more).unwrap().0, 30);
    // Answered, they say that the engine's thread lives, and not that it gets anywhere.
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    let counters = |dog: &mut Watchdog, now, second| {
        dog.asked(second, "tell its counters", now);
        dog.answered(second, false, now);
    };
    assert_eq!(bench.hangs_after(1000, counters).unwrap().1.what, "reported progress that never rose");
}

#[test]
fn a_cancelled_sequence_is_watched_until_the_worker_ends_it() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    bench.dog.token(1, bench.now);
    assert!(!bench.dog.idle());
    bench.dog.ended(1);
    assert!(bench.dog.idle());
    assert_eq!(bench.hangs_after(1000, silence), None);
    // An end that comes twice, or of one that never was, counts once.
    bench.dog.ended(1);
    bench.dog.ended(99);
    bench.dog.submitted(2, bench.now);
    bench.dog.token(2, bench.now);
    bench.dog.all_ended();
    assert!(bench.dog.idle());
}

#[test]
fn time_in_which_the_node_itself_stood_still_does_not_count() {
    let mut bench = Bench::new();
    bench.dog.submitted(1, bench.now);
    bench.dog.token(1, bench.now);
    for _ in 0..10 {
        // The machine was suspended for an hour, with a second of life before and after.
        bench.now += Duration::from_secs(3600);
        assert_eq!(bench.dog.check(bench.now), None);
        assert_eq!(bench.hangs_after(1, |dog, now, _| dog.token(1, now)), None);
    }
    assert_eq!(bench.hangs_after(1000, silence).unwrap().0, 5);
}
