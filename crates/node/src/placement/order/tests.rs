//! Who comes first, and why.

use super::*;

fn way(engine: &str, version: &str, device: &str) -> Way {
    Way {
        engine: engine.into(),
        version: version.into(),
        device: device.into(),
        kind: device.split(':').next().unwrap().into(),
        free: 0,
        failed: None,
        known: None,
    }
}

fn score(tokens_per_second: f64, first_token_ms: f64, memory: u64) -> Score {
    Score { tokens_per_second, first_token_ms, memory, measured_at: 1 }
}

fn scored(engine: &str, tokens_per_second: f64, first_token_ms: f64, memory: u64) -> Way {
    Way {
        known: Some(Known::Own(score(tokens_per_second, first_token_ms, memory))),
        ..way(engine, "1.0.0", "cuda:0")
    }
}

fn check(ways: &[Way], wish: Wish<'_>, expected: &[(usize, &str)]) {
    let ordered = order(ways, &wish).unwrap();
    let ordered: Vec<(usize, &str)> = ordered.iter().map(|r| (r.way, r.reason.as_str())).collect();
    assert_eq!(ordered, expected);
}

#[test]
fn of_one_engine_the_newest_version_goes_where_most_memory_is_free() {
    let mut ways = vec![
        way("a", "2.0.0", "cuda:0"),
        way("a", "2.0.0", "cuda:1"),
        way("a", "2.0.0", "cpu"),
        way("a", "1.0.0", "cuda:0"),
        way("a", "1.0.0", "cuda:1"),
    ];
    (ways[1].free, ways[2].free, ways[4].free) = (5, 100, 5);
    check(
        &ways,
        Wish::default(),
        &[
            (1, "newest version"),
            (0, "more memory is free on cuda:1"),
            (2, "cuda before cpu"),
            (4, "older than 2.0.0"),
            (3, "older than 2.0.0"),
        ],
    );
}

#[test]
fn what_the_operator_set_rules_out_everything_else() {
    let ways = [
        way("a", "2.0.0", "cuda:0"),
        way("a", "1.0.0", "cuda:0"),
        way("b", "1.0.0", "cuda:0"),
        way("b", "1.0.0", "cpu"),
    ];
    let set = "set by the operator";
    check(&ways, Wish { engine: Some("a@1.0.0"), devices: &[] }, &[(1, set)]);
    check(&ways, Wish { engine: Some("a"), devices: &[] }, &[(0, set), (1, "older than 2.0.0")]);
    check(&ways, Wish { engine: None, devices: &["cpu".to_owned()] }, &[(3, set)]);
    let refused = order(&ways, &Wish { engine: Some("c@9"), devices: &["cpu".to_owned()] }).unwrap_err();
    assert!(
        refused.contains("engine c@9 and devices cpu") && refused.contains("b 1.0.0 on cpu"),
        "{refused}"
    );
}

#[test]
fn the_operators_engine_wins_over_a_better_score() {
    let ways = [scored("fast", 100.0, 10.0, 1), scored("slow", 1.0, 10.0, 1)];
    check(&ways, Wish { engine: Some("slow"), devices: &[] }, &[(1, "set by the operator")]);
}

#[test]
fn the_better_score_wins_where_every_engine_has_one() {
    let ways = [scored("slow", 10.0, 10.0, 1), scored("fast", 100.0, 10.0, 9)];
    check(&ways, Wish::default(), &[(1, "best score"), (0, "lower score")]);
}

#[test]
fn a_late_first_token_can_cost_more_than_throughput_gains() {
    // 256 tokens: 2.56 s and 5 s until the first, against 3.2 s and 0.1 s.
    let ways = [scored("late", 100.0, 5000.0, 1), scored("early", 80.0, 100.0, 1)];
    check(&ways, Wish::default(), &[(1, "best score"), (0, "lower score")]);
}

#[test]
fn of_equally_fast_engines_the_smaller_wins() {
    let ways = [scored("large", 100.0, 0.0, 9), scored("small", 97.0, 0.0, 3), scored("tiny", 50.0, 0.0, 1)];
    check(&ways, Wish::default(), &[(1, "best score"), (0, "lower score"), (2, "lower score")]);
}

#[test]
fn without_all_scores_the_order_stays_and_those_without_one_are_measured() {
    let ways = [way("a", "1.0.0", "cuda:0"), scored("b", 100.0, 1.0, 1)];
    check(
        &ways,
        Wish::default(),
        &[(0, "newest version, not measured yet"), (1, "others are not measured yet")],
    );
    let measure = |ways: &[Way], wish: Wish<'_>| unmeasured(ways, &order(ways, &wish).unwrap(), &wish);
    assert_eq!(measure(&ways, Wish::default()), [0]);
    assert_eq!(measure(&[ways[1].clone(), ways[0].clone()], Wish::default()), [1]);
    assert!(measure(&ways, Wish { engine: Some("b"), devices: &[] }).is_empty(), "the operator has decided");
    assert!(measure(&ways[..1], Wish::default()).is_empty(), "there is nothing to compare it with");
    let versions = [way("a", "2.0.0", "cuda:0"), way("a", "1.0.0", "cuda:0")];
    assert!(measure(&versions, Wish::default()).is_empty(), "the newest version is taken anyway");
    let many: Vec<Way> = (0..9).map(|n| way(&format!("e{n}"), "1.0.0", "cpu")).collect();
    assert_eq!(measure(&many, Wish::default()).len(), MEASURED_AT_ONCE_MAX);
}

#[test]
fn a_new_version_is_judged_by_the_score_of_the_one_before_it() {
    let mut ways = [scored("a", 10.0, 1.0, 1), way("b", "2.0.0", "cuda:0")];
    ways[1].known = Some(Known::Other { version: "1.0.0".into(), score: score(50.0, 1.0, 1) });
    check(&ways, Wish::default(), &[(1, "best score, measured with 1.0.0"), (0, "lower score")]);
}

#[test]
fn what_failed_its_trial_comes_last_and_counts_for_nothing() {
    let mut ways = [way("a", "2.0.0", "cuda:0"), way("a", "1.0.0", "cuda:0"), scored("b", 1.0, 1.0, 1)];
    ways[0].failed = Some("it hung".into());
    ways[1].known = Some(Known::Own(score(9.0, 1.0, 1)));
    check(&ways, Wish::default(), &[(1, "best score"), (2, "lower score"), (0, "failed its trial: it hung")]);
    check(&ways[..1], Wish::default(), &[(0, "failed its trial: it hung")]);
}

#[test]
fn nonsense_scores_lose_to_every_other() {
    for bad in [
        score(0.0, 1.0, 0),
        score(f64::NAN, 1.0, 0),
        score(-5.0, 1.0, 0),
        score(1.0, f64::NAN, 0),
        score(1e9, -1.0, 0),
    ] {
        assert_eq!(reference_seconds(&bad), f64::INFINITY);
        let ways = [
            Way { known: Some(Known::Own(bad)), ..way("bad", "1.0.0", "cuda:0") },
            scored("good", 0.1, 9.0, 1),
        ];
        assert_eq!(order(&ways, &Wish::default()).unwrap()[0].way, 1);
    }
}
