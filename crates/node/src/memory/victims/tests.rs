//! Who leaves, and that the wrong ones never do.

use proptest::prelude::*;

use super::*;

const STAY: Duration = Duration::from_secs(10);

/// A candidate with a grant of `bytes`, which is its number too.
fn candidate(number: u64, busy: bool, used_ago: u64, loaded_ago: Option<u64>) -> Candidate {
    let now = base();
    Candidate {
        tenant: Tenant {
            grant: GrantId(number),
            busy,
            leaving: false,
            last_used: now - Duration::from_secs(used_ago),
        },
        loaded_at: loaded_ago.map(|ago| now - Duration::from_secs(ago)),
    }
}

/// Far enough from the clock's beginning to go back from.
fn base() -> Instant {
    static BASE: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *BASE.get_or_init(|| Instant::now() + Duration::from_secs(1000))
}

/// Everybody gives as many bytes as its number says.
fn check(candidates: &[Candidate], missing: u64, expected: Next) {
    let fits = |gone: &[GrantId]| gone.iter().map(|grant| grant.0).sum::<u64>() >= missing;
    assert_eq!(next(candidates.to_vec(), base(), STAY, fits), expected);
}

#[test]
fn idle_models_leave_the_least_recently_used_first() {
    let idle = [
        candidate(4, false, 5, Some(60)),
        candidate(5, false, 50, Some(60)),
        candidate(6, false, 20, Some(60)),
    ];
    check(&idle, 3, Next::Evict { grant: GrantId(5), remaining: 1 });
    check(&idle, 7, Next::Evict { grant: GrantId(5), remaining: 2 });
    check(&idle, 15, Next::Evict { grant: GrantId(5), remaining: 3 });
    check(&idle, 16, Next::Never);
}

#[test]
fn who_gives_nothing_that_is_missing_stays() {
    let idle = [candidate(1, false, 90, Some(99)), candidate(8, false, 50, Some(99))];
    check(&idle, 8, Next::Evict { grant: GrantId(8), remaining: 1 });
}

#[test]
fn a_busy_model_is_asked_to_finish_only_when_idle_ones_do_not_suffice() {
    let mixed = [candidate(4, true, 90, Some(99)), candidate(5, false, 1, Some(99))];
    check(&mixed, 5, Next::Evict { grant: GrantId(5), remaining: 1 });
    check(&mixed, 9, Next::Drain(vec![GrantId(4)]));
}

#[test]
fn idle_ones_wait_until_busy_ones_have_left() {
    let mut mixed = [candidate(4, true, 90, Some(99)), candidate(5, false, 1, Some(99))];
    mixed[0].tenant.leaving = true;
    check(&mixed, 9, Next::Wait(None));
    // Who is leaving anyway may be all that it takes.
    check(&mixed, 4, Next::Wait(None));
    check(&mixed[1..], 5, Next::Evict { grant: GrantId(5), remaining: 1 });
}

#[test]
fn nobody_leaves_before_its_minimum_stay_is_over() {
    let young = [candidate(4, false, 3, Some(3)), candidate(5, true, 2, Some(4))];
    check(&young, 4, Next::Wait(Some(base() + Duration::from_secs(7))));
    // Nobody is asked to finish while another of those who have to leave may stay.
    check(&young, 9, Next::Wait(Some(base() + Duration::from_secs(7))));
    check(&[candidate(4, true, 0, None)], 4, Next::Wait(None));
}

#[test]
fn only_an_idle_model_past_its_stay_leaves_a_device_that_is_too_full() {
    let all = [
        candidate(1, true, 90, Some(99)),
        candidate(2, false, 80, Some(9)),
        candidate(3, false, 30, Some(99)),
        candidate(4, false, 40, Some(99)),
        candidate(5, false, 70, None),
    ];
    assert_eq!(least_recently_used(&all, base(), STAY), Some(GrantId(4)));
    assert_eq!(least_recently_used(&all[..2], base(), STAY), None);
}

fn any_candidate() -> impl Strategy<Value = (bool, bool, u64, Option<u64>, u64)> {
    (any::<bool>(), any::<bool>(), 0..100_u64, prop::option::of(0..100_u64), 0..20_u64)
}

proptest! {
    /// Whatever there is: never a busy or a young one, never more than needed, and step by step to an end.
    #[test]
    fn steps_are_allowed_and_come_to_an_end(
        drawn in prop::collection::vec(any_candidate(), 0..12),
        missing in 1..120_u64,
    ) {
        let mut size = std::collections::BTreeMap::new();
        let mut left: Vec<Candidate> = Vec::new();
        for (number, (busy, leaving, used_ago, loaded_ago, bytes)) in drawn.into_iter().enumerate() {
            let mut one = candidate(number as u64, busy, used_ago, loaded_ago);
            one.tenant.leaving = leaving;
            size.insert(one.tenant.grant, bytes);
            left.push(one);
        }
        let mut gone: Vec<GrantId> = Vec::new();
        let held = left.len();
        for step in 0.. {
            prop_assert!(step <= 3 * held, "it does not come to an end");
            let fits = |more: &[GrantId]| {
                gone.iter().chain(more).map(|grant| size[grant]).sum::<u64>() >= missing
            };
            if fits(&[]) {
                break;
            }
            let now = base();
            match next(left.clone(), now, STAY, fits) {
                Next::Evict { grant, .. } => {
                    let one = left.iter().find(|c| c.tenant.grant == grant).unwrap();
                    prop_assert!(!one.tenant.busy && !one.tenant.leaving && one.past_stay(now, STAY));
                    left.retain(|c| c.tenant.grant != grant);
                    gone.push(grant);
                }
                Next::Drain(grants) => {
                    prop_assert!(!grants.is_empty());
                    for one in left.iter_mut().filter(|c| grants.contains(&c.tenant.grant)) {
                        prop_assert!(one.tenant.busy && !one.tenant.leaving && one.past_stay(now, STAY));
                        one.tenant.leaving = true;
                    }
                }
                Next::Wait(until) => {
                    prop_assert!(until.is_none_or(|until| until > now));
                    // Time passes: who is leaving leaves, who is young grows old, who loads is loaded.
                    let leaving: Vec<GrantId> =
                        left.iter().filter(|c| c.tenant.leaving).map(|c| c.tenant.grant).collect();
                    left.retain(|c| !c.tenant.leaving);
                    gone.extend(leaving);
                    left.iter_mut().for_each(|c| c.loaded_at = Some(now - STAY));
                }
                Next::Never => {
                    let all: Vec<GrantId> = left.iter().map(|c| c.tenant.grant).collect();
                    prop_assert!(!fits(&all));
                    break;
                }
            }
        }
    }
}
