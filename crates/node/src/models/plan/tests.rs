use std::time::Duration;

use tokio::time::Instant;

use super::{Serving, Step, View, Why, plan};

const SECOND: Duration = Duration::from_secs(1);

fn view(now: Instant, replicas: &[Serving]) -> View {
    View {
        runnable: true,
        barred: false,
        demanded: false,
        waiting: false,
        start_at: None,
        replicas: replicas.to_vec(),
        replicas_wanted: 1,
        extra_at: None,
        upkeep_at: None,
        last_used: now,
        keep_alive: None,
        restart_after: None,
        restart_after_requests: None,
    }
}

fn serving(now: Instant) -> Serving {
    Serving { outdated: false, renew: false, retired: false, running: 0, requests: 0, loaded_at: now }
}

#[test]
fn a_model_nobody_asks_for_is_not_loaded_and_one_that_is_asked_for_is() {
    let now = Instant::now();
    assert_eq!(plan(&view(now, &[]), now), Step::Wait(None));
    assert_eq!(plan(&View { demanded: true, ..view(now, &[]) }, now), Step::Load);
}

#[test]
fn after_deaths_the_start_waits_for_its_time() {
    let now = Instant::now();
    let at = now + SECOND;
    let view = View { demanded: true, start_at: Some(at), ..view(now, &[]) };
    assert_eq!(plan(&view, now), Step::Wait(Some(at)));
    assert_eq!(plan(&view, at), Step::Load);
}

#[test]
fn broken_files_and_missing_engines_start_nothing() {
    let now = Instant::now();
    let demanded = View { demanded: true, ..view(now, &[]) };
    assert_eq!(plan(&View { barred: true, ..demanded.clone() }, now), Step::Wait(None));
    assert_eq!(plan(&View { runnable: false, ..demanded }, now), Step::Wait(None));
}

#[test]
fn what_the_operator_asks_comes_before_what_is_newer() {
    let now = Instant::now();
    let replicas =
        [Serving { outdated: true, ..serving(now) }, Serving { renew: true, running: 9, ..serving(now) }];
    let two = View { replicas_wanted: 2, ..view(now, &replicas) };
    assert_eq!(plan(&two, now), Step::HandOver { place: 1, why: Why::Asked });
    let outdated = View { replicas_wanted: 2, ..view(now, &replicas[..1]) };
    assert_eq!(plan(&outdated, now), Step::HandOver { place: 0, why: Why::Outdated });
}

#[test]
fn a_model_leaves_when_its_time_is_over_and_nobody_uses_it() {
    let now = Instant::now();
    let kept = View { keep_alive: Some(SECOND), ..view(now, &[serving(now)]) };
    assert_eq!(plan(&kept, now), Step::Wait(Some(now + SECOND)));
    assert_eq!(plan(&kept, now + SECOND), Step::Expire);
    let busy = Serving { running: 1, ..serving(now) };
    let used = View { replicas: vec![busy], ..kept.clone() };
    assert_eq!(plan(&used, now + SECOND), Step::Wait(None));
    let waited_for = View { waiting: true, ..kept };
    assert_eq!(plan(&waited_for, now + SECOND), Step::Wait(None));
}

#[test]
fn an_endless_keep_alive_is_no_overflow() {
    let now = Instant::now();
    let kept = View { keep_alive: Some(Duration::MAX), ..view(now, &[serving(now)]) };
    assert_eq!(plan(&kept, now), Step::Wait(None));
}

#[test]
fn age_and_use_bring_a_new_worker_and_a_failed_exchange_is_put_off() {
    let now = Instant::now();
    let upkeep = Step::HandOver { place: 0, why: Why::Upkeep };
    let aging = View { restart_after: Some(SECOND), ..view(now, &[serving(now)]) };
    assert_eq!(plan(&aging, now), Step::Wait(Some(now + SECOND)));
    assert_eq!(plan(&aging, now + SECOND), upkeep);
    let used = Serving { requests: 10, ..serving(now) };
    let used = View { restart_after_requests: Some(10), ..view(now, &[used]) };
    assert_eq!(plan(&used, now), upkeep);
    let put_off = View { upkeep_at: Some(now + SECOND), ..used };
    assert_eq!(plan(&put_off, now), Step::Wait(Some(now + SECOND)));
    assert_eq!(plan(&put_off, now + SECOND), upkeep);
}

#[test]
fn replicas_are_added_one_by_one_and_the_idlest_leaves_when_there_are_too_many() {
    let now = Instant::now();
    let one = View { replicas_wanted: 2, ..view(now, &[serving(now)]) };
    assert_eq!(plan(&one, now), Step::LoadMore);
    let no_room = View { extra_at: Some(now + SECOND), ..one };
    assert_eq!(plan(&no_room, now), Step::Wait(Some(now + SECOND)));
    let busy = Serving { running: 2, ..serving(now) };
    let three = view(now, &[busy, serving(now), busy]);
    assert_eq!(plan(&three, now), Step::Leave { place: 1 });
}

#[test]
fn what_an_operator_disabled_leaves_before_anything_else() {
    let now = Instant::now();
    let retired = Serving { retired: true, renew: true, ..serving(now) };
    assert_eq!(plan(&View { runnable: false, ..view(now, &[retired]) }, now), Step::Leave { place: 0 });
}
