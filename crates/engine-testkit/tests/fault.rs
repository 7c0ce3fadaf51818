//! The engine that misbehaves: well-behaved where nothing is asked of it, and doing what is asked where something is.

use std::path::Path;

use engine_protocol::{DeviceBytes, Settings, StatusCode};
use engine_testkit::build::{engine_dir, engine_dir_as, worker_binary};
use engine_testkit::model::{describe, write_fault_model};
use engine_testkit::suite::{Subject, assert_conforms, sampling, submit};
use engine_testkit::worker::{Reply, Worker};
use serde_json::{Value, json};

struct Loaded {
    worker: Worker,
    dir: tempfile::TempDir,
    next: u64,
}

fn opened(version: Option<&str>) -> Worker {
    let dir = version.map_or_else(|| engine_dir("fault"), |version| engine_dir_as("fault", version));
    let mut worker = Worker::start(&worker_binary(), &[]).expect("a worker");
    worker.open(&dir).expect("an answer").expect("it opens");
    worker
}

fn loaded(fault: &Value) -> Loaded {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_fault_model(dir.path(), 4096, fault).expect("a model");
    let mut worker = opened(None);
    let model = describe(dir.path(), "fault").expect("a model");
    worker.load(&model, &Settings::default(), &[]).expect("an answer").expect("it loads");
    Loaded { worker, dir, next: 0 }
}

impl Loaded {
    fn ask(&mut self, prompt: &str) -> anyhow::Result<Reply> {
        self.next += 1;
        self.worker.run(submit(self.next, prompt, sampling(0)))
    }
}

fn text(reply: &Reply) -> String {
    String::from_utf8(reply.text()).expect("UTF-8")
}

#[test]
fn it_conforms_where_nothing_is_asked_of_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_fault_model(dir.path(), 1 << 20, &json!({})).expect("a model");
    assert_conforms(&Subject::new(engine_dir("fault"), dir.path()));
}

#[test]
fn the_answer_is_the_prompt_as_often_as_asked() {
    let mut model = loaded(&json!({"repeat": 3}));
    assert_eq!(text(&model.ask("abc ").expect("a reply")), "abc abc abc ");
    assert_eq!(text(&model.ask("grün").expect("a reply")), "grüngrüngrün");
}

#[test]
fn another_version_says_so_of_itself() {
    for (id, version) in [("fault", "0.2.0"), ("fault", "1.0.0-rc.1"), ("echo", "7.8.9")] {
        let dir = engine_dir_as(id, version);
        let mut worker = Worker::start(&worker_binary(), &[]).expect("a worker");
        let info = worker.open(&dir).expect("an answer").expect("it opens");
        assert_eq!(info.version, version);
    }
}

#[test]
fn what_its_build_metadata_asks_for_happens_before_a_model_is_known() {
    for (version, part) in [
        ("0.1.0+abi-2", "was built for version 2."),
        ("0.1.0+no-step", "has no function step"),
        ("0.1.0+other-id", "says other version 0.0.1"),
    ] {
        let mut worker = Worker::start(&worker_binary(), &[]).expect("a worker");
        let refused = worker.open(&engine_dir_as("fault", version)).expect("an answer").expect_err(version);
        assert_eq!(refused.code, StatusCode::AbiMismatch);
        assert!(refused.message.contains(part), "{version}: {}", refused.message);
    }
    let mut worker = Worker::start(&worker_binary(), &[]).expect("a worker");
    let gone = worker.open(&engine_dir_as("fault", "0.1.0+abort-in-open"));
    assert!(gone.is_err(), "{gone:?}");
    let mut worker = opened(Some("0.1.0+print-in-open"));
    worker.shut_down().expect("it ends");
    assert!(
        worker.stderr_lines().iter().any(|line| line.contains('\u{fffd}')),
        "{:?}",
        worker.stderr_lines()
    );
}

#[test]
fn a_step_ends_the_process_where_a_prompt_asks_for_it() {
    for act in [json!({"exit": {"code": 7}}), json!("abort"), json!("segfault")] {
        let mut model =
            loaded(&json!({"faults": [{"at": "step", "do": act, "prompt": "poison", "token": 2}]}));
        assert_eq!(text(&model.ask("bread").expect("a reply")), "bread", "{act}");
        assert!(model.ask("a poison pill").is_err(), "{act}");
        let status = model.worker.wait_exit().expect("it ends");
        assert!(!status.success(), "{act}: {status}");
    }
}

#[test]
fn binary_on_stdout_and_stderr_disturbs_nobody() {
    let mut model = loaded(&json!({"faults": [{"at": "step", "do": {"print": {"bytes": 5000}}}]}));
    assert_eq!(text(&model.ask("bread").expect("a reply")), "bread");
}

#[test]
fn every_code_comes_from_load_submit_start_and_step() {
    for code in 1..=9 {
        let fail = |at: &str| {
            json!({"faults": [{"at": at, "prompt": if at == "load" { Value::Null } else { json!("now") }, "do": {"fail": {
                "code": code, "reason": "as_asked", "message": "asked for it", "needed": 10, "available": 3,
            }}}]})
        };
        let whole = |status: &engine_protocol::Status| {
            assert_eq!(status.code as i32, code);
            assert_eq!((status.reason.as_str(), status.message.as_str()), ("as_asked", "asked for it"));
            assert_eq!((status.needed, status.available), (10, 3));
        };
        let dir = tempfile::tempdir().expect("a temporary folder");
        write_fault_model(dir.path(), 64, &fail("load")).expect("a model");
        let model = describe(dir.path(), "fault").expect("a model");
        let mut worker = opened(None);
        whole(&worker.load(&model, &Settings::default(), &[]).expect("an answer").expect_err("it fails"));

        let mut model = loaded(&fail("submit"));
        whole(model.ask("now").expect("a reply").failure().expect("it fails"));
        assert_eq!(text(&model.ask("bread").expect("a reply")), "bread");
        let mut model = loaded(&fail("step"));
        let failed = model.ask("now").expect_err("the step fails").to_string();
        assert!(failed.contains("asked for it"), "{failed}");
    }
}

#[test]
fn once_and_then_never_again_over_processes() {
    let state = tempfile::tempdir().expect("a temporary folder");
    let rule = json!({"faults": [{"at": "load", "do": "abort",
        "times": {"file": state.path().join("times"), "at_most": 1}}]});
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_fault_model(dir.path(), 64, &rule).expect("a model");
    let model = describe(dir.path(), "fault").expect("a model");
    assert!(opened(None).load(&model, &Settings::default(), &[]).is_err(), "the first load ends the process");
    opened(None).load(&model, &Settings::default(), &[]).expect("an answer").expect("the second one loads");
}

#[test]
fn memory_is_claimed_on_a_simulated_device_within_its_budget() {
    const BUDGET: u64 = 10_000;
    let model = |dir: &Path, fault: &Value| {
        write_fault_model(dir, 4096, fault).expect("a model");
        describe(dir, "fault").expect("a model")
    };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let fits = model(
        dir.path(),
        &json!({"weights_bytes": 2000, "kv_bytes_per_token": 1,
        "faults": [{"at": "step", "do": {"take": {"bytes": 50_000}}, "prompt": "greedy", "call": 1}]}),
    );
    let settings = Settings { devices: vec!["sim:3".to_owned()], ..Settings::default() };
    let budget = [DeviceBytes { device: "sim:3".to_owned(), bytes: BUDGET }];
    let mut worker = opened(None);
    let estimate = worker.estimate(&fits, &settings).expect("an answer").expect("an estimate");
    assert_eq!((estimate.devices[0].device.as_str(), estimate.devices[0].weights), ("sim:3", 2000));
    let done = worker.load(&fits, &settings, &budget).expect("an answer").expect("it loads");
    let taken = u64::from(done.sequences_max) * u64::from(done.context_length);
    assert!(2000 + taken <= BUDGET && taken > 0, "{done:?}");
    let used = worker.stats().expect("an answer").expect("stats").memory;
    assert_eq!((used[0].device.as_str(), used[0].bytes), ("sim:3", 2000));
    let mut model_under_test = Loaded { worker, dir, next: 0 };
    model_under_test.ask("greedy").expect("a reply");
    let used = model_under_test.worker.stats().expect("an answer").expect("stats").memory;
    assert!(used[0].bytes >= 52_000, "{used:?}");

    let too_large = model(model_under_test.dir.path(), &json!({"weights_bytes": 20_000}));
    let refused = opened(None).load(&too_large, &settings, &budget).expect("an answer").expect_err("no room");
    assert_eq!((refused.code, refused.available), (StatusCode::OomVram, BUDGET));
    let lies = model(
        model_under_test.dir.path(),
        &json!({"weights_bytes": 20_000, "faults": [{"at": "estimate", "do": {"scale": {"factor": 0.1}}}]}),
    );
    let mut liar = opened(None);
    assert_eq!(liar.estimate(&lies, &settings).expect("an answer").expect("a lie").devices[0].weights, 2000);
    liar.load(&lies, &settings, &budget).expect("an answer").expect("it believes itself");
    assert_eq!(liar.stats().expect("an answer").expect("stats").memory[0].bytes, 20_000);
}
