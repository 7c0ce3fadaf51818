//! Told once, taken back clearly below.

use super::*;

fn uses(percent: u64) -> Vec<Use> {
    vec![Use { subject: "cuda:0".into(), used: percent * 10, total: 1000 }]
}

/// The looks one after another, and after each whether something was told.
fn check(looks: &[(u64, &str)]) {
    let mut pressure = Pressure::default();
    for (at, (percent, expected)) in looks.iter().enumerate() {
        let crossings = pressure.look(&uses(*percent), &MemoryLimits::default(), at as i64);
        let told = match crossings.as_slice() {
            [] => "",
            [Crossing::Up(_)] => "up",
            [Crossing::Down(_)] => "down",
            more => panic!("{more:?}"),
        };
        assert_eq!(told, *expected, "look {at} at {percent} %");
    }
}

#[test]
fn a_crossing_is_told_once_and_wavering_is_not_told() {
    check(&[
        (90, ""),
        (91, "up"),
        (95, ""),
        (90, ""),
        (88, ""),
        (91, ""),
        (87, "down"),
        (90, ""),
        (91, "up"),
    ]);
}

#[test]
fn the_alert_says_since_when_and_how_much_now() {
    let mut pressure = Pressure::default();
    pressure.look(&uses(92), &MemoryLimits::default(), 7);
    pressure.look(&uses(96), &MemoryLimits::default(), 8);
    let alerts: Vec<&Alert> = pressure.alerts().collect();
    let expected = Alert {
        code: "memory_high".into(),
        subject: "cuda:0".into(),
        message: "cuda:0 is 96 % full: 960 of 1000 bytes".into(),
        since: 7,
    };
    assert_eq!(alerts, [&expected]);
}

#[test]
fn what_has_no_total_is_never_full() {
    let mut pressure = Pressure::default();
    let unknown = [Use { subject: "vulkan:0".into(), used: 5, total: 0 }];
    assert!(pressure.look(&unknown, &MemoryLimits::default(), 0).is_empty());
    assert_eq!(too_full(&unknown, &MemoryLimits::default()).count(), 0);
}

#[test]
fn idle_models_leave_above_the_second_threshold() {
    let limits = MemoryLimits::default();
    assert_eq!(too_full(&uses(95), &limits).count(), 0);
    assert_eq!(too_full(&uses(96), &limits).count(), 1);
    let whole = [Use { subject: "ram".into(), used: u64::MAX, total: u64::MAX }];
    assert_eq!(too_full(&whole, &limits).count(), 1);
}
