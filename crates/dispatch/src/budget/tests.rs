use super::*;

fn spent_at_once(budget: &mut RetryBudget, now: Duration) -> u64 {
    (0..).take_while(|_| budget.spend(now)).count() as u64
}

#[test]
fn the_reserve_is_all_there_is_at_once() {
    assert_eq!(spent_at_once(&mut RetryBudget::new(), Duration::ZERO), RETRY_RESERVE);
}

#[test]
fn requests_pay_for_retries() {
    let mut budget = RetryBudget::new();
    spent_at_once(&mut budget, Duration::ZERO);
    for _ in 0..RETRY_SHARE * 7 {
        budget.earn();
    }
    assert_eq!(spent_at_once(&mut budget, Duration::ZERO), 7);
}

#[test]
fn time_brings_some_and_never_more_than_the_reserve() {
    let mut budget = RetryBudget::new();
    spent_at_once(&mut budget, Duration::ZERO);
    assert_eq!(spent_at_once(&mut budget, Duration::from_secs(2)), 2 * RETRIES_PER_SECOND);
    assert_eq!(spent_at_once(&mut budget, Duration::from_secs(2)), 0, "the same time counts once");
    assert_eq!(spent_at_once(&mut budget, Duration::from_secs(1)), 0, "time that goes back brings nothing");
    assert_eq!(spent_at_once(&mut budget, Duration::from_secs(1_000_000)), RETRY_RESERVE);
    for _ in 0..10_000_000u32.div_ceil(1000) {
        budget.earn();
    }
    assert!(spent_at_once(&mut budget, Duration::from_secs(1_000_000)) <= RETRY_RESERVE);
}

#[test]
fn parts_of_a_millisecond_are_not_lost() {
    let mut budget = RetryBudget::new();
    spent_at_once(&mut budget, Duration::ZERO);
    let spent = (1..=1_000_000u64).filter(|n| budget.spend(Duration::from_micros(n * 10))).count() as u64;
    assert_eq!(spent, 10 * RETRIES_PER_SECOND);
}
