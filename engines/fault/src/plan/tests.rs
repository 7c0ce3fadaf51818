use serde_json::json;

use super::*;

fn plan(faults: serde_json::Value) -> Plan {
    Plan { faults: serde_json::from_value(faults).unwrap(), devices: vec!["cpu".into()] }
}

fn fail(extra: serde_json::Value) -> serde_json::Value {
    let mut rule = json!({
        "at": "step",
        "do": {"fail": {"code": 9, "reason": "asked", "message": "as asked", "needed": 7, "available": 5}},
    });
    rule.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!([rule])
}

fn check(extra: serde_json::Value, concerned: &[Concerned<'_>], strikes: bool) {
    let struck = plan(fail(extra.clone())).strike(Point::Step, concerned, None);
    assert_eq!(struck.is_err(), strikes, "{extra} {concerned:?}");
    if let Err(status) = struck {
        assert_eq!((status.code, status.reason.as_ref()), (StatusCode::LoadFailed, "asked"));
        assert_eq!((status.needed, status.available), (7, 5));
    }
}

#[test]
fn every_condition_has_to_hold() {
    let poisoned = Concerned { prompt: b"a poison pill", tokens: Some(2) };
    let harmless = Concerned { prompt: b"bread", tokens: Some(2) };
    let prefill = Concerned { prompt: b"a poison", tokens: None };
    check(json!({}), &[harmless], true);
    check(json!({"prompt": "poison"}), &[harmless], false);
    check(json!({"prompt": "poison"}), &[harmless, prefill], true);
    check(json!({"prompt": "poison", "token": 2}), &[harmless, prefill], false);
    check(json!({"prompt": "poison", "token": 2}), &[harmless, poisoned], true);
    check(json!({"token": 3}), &[harmless, poisoned], false);
    check(json!({"versions": ["9.9.9"]}), &[harmless], false);
    check(json!({"versions": ["9.9.9", version::version()]}), &[harmless], true);
    assert!(plan(fail(json!({}))).strike(Point::Load, &[], None).is_ok(), "another point");
}

#[test]
fn so_many_times_over_processes_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let times = json!({"times": {"file": dir.path().join("times"), "at_most": 2}});
    for strikes in [true, true, false, false] {
        check(times.clone(), &[], strikes);
    }
    std::fs::remove_file(dir.path().join("times")).unwrap();
    check(times, &[], true);
}

#[test]
fn lies_multiply_and_say_nothing_elsewhere() {
    let lies = plan(json!([
        {"at": "estimate", "do": {"scale": {"factor": 0.5}}},
        {"at": "estimate", "do": {"scale": {"factor": 0.5}}},
        {"at": "load", "do": {"scale": {"factor": 100.0}}},
    ]));
    assert!((lies.factor() - 0.25).abs() < 1e-9);
    assert!((plan(json!([])).factor() - 1.0).abs() < 1e-9);
}

#[test]
fn a_rule_that_is_not_understood_is_refused() {
    for rule in [
        json!({"at": "somewhere", "do": "hang"}),
        json!({"at": "step", "do": "sing"}),
        json!({"at": "step", "do": "hang", "when": "now"}),
        json!({"at": "step", "do": {"exit": {}}}),
        json!({"at": "step"}),
    ] {
        assert!(serde_json::from_value::<Fault>(rule.clone()).is_err(), "{rule}");
    }
}
