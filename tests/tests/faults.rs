//! An engine that crashes, hangs, prints garbage or takes too much: what the client sees, and what the service does.
#![cfg(target_os = "linux")]

use std::path::PathBuf;

use engine_testkit::build::{engines_dir, install_engine};
use serde_json::{Value, json};
use system_tests::api::Answer;
use system_tests::{NodeSpec, System, repos, until};

const MODEL: &str = "acme/fault";
const CONTEXT: u32 = 1024;
const NODE: &str = "node";
/// Short, so that a hang is found within a test; a busy machine pauses a worker for less.
const PROGRESS_SECONDS: u64 = 8;
const DECODE_SECONDS: u64 = 5;

/// A system with one fault model, its rules as given.
async fn start(fault: Value) -> System {
    start_with(fault, &[], engines_dir()).await
}

async fn start_with(fault: Value, settings: &[(&str, &str)], engines_dir: PathBuf) -> System {
    let mut system = System::without_node(vec![repos::fault(MODEL, CONTEXT, fault)]).await;
    let limits = [
        ("LLM_ROUTER_WATCHDOG_PROGRESS_SECONDS", PROGRESS_SECONDS.to_string()),
        ("LLM_ROUTER_WATCHDOG_DECODE_SECONDS", DECODE_SECONDS.to_string()),
    ];
    let limits = limits.map(|(name, value)| (name.to_owned(), value));
    let further = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    system.start_node_as(&NodeSpec {
        name: NODE.to_owned(),
        devices: vec!["cpu".to_owned()],
        engines_dir,
        settings: limits.into_iter().chain(further).collect(),
    });
    system.until_nodes(1).await;
    system.api.register(&json!({"repo": MODEL, "format": "safetensors"})).await.ok();
    system.api.until_ready(MODEL).await;
    system
}

fn body(prompt: &str) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": 512, "temperature": 0})
}

async fn ask(system: &System, prompt: &str) -> Answer {
    system.api.post("/v1/completions", &body(prompt)).await
}

async fn asked_well(system: &System, prompt: &str) {
    let reply = ask(system, prompt).await.ok();
    assert_eq!(reply["choices"][0]["text"], prompt, "{reply}");
}

/// How often a rule with this file struck.
fn struck(file: &std::path::Path) -> u64 {
    std::fs::metadata(file).map_or(0, |meta| meta.len())
}

fn log(system: &System) -> String {
    system.nodes[NODE].log()
}

/// Text and last event of a stream.
fn ended(events: &[Value]) -> (String, Value) {
    let text = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    (text, events.last().cloned().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_before_the_first_token_is_not_noticed() {
    let state = tempfile::tempdir().expect("a temporary folder");
    for (name, act) in
        [("abort", json!("abort")), ("exit", json!({"exit": {"code": 0}})), ("segfault", json!("segfault"))]
    {
        let file = state.path().join(name);
        let system = start(json!({"faults": [
            {"at": "step", "do": act, "times": {"file": file, "at_most": 1}},
        ]}))
        .await;
        asked_well(&system, "not noticed").await;
        assert_eq!(struck(&file), 1, "{name}: it crashed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_tokens_a_crash_and_a_hang_end_with_an_error_event_that_says_why() {
    for (act, word) in [("abort", "signal"), ("hang", "no sign of life")] {
        let system =
            start(json!({"faults": [{"at": "step", "do": act, "prompt": "ends", "token": 3}]})).await;
        let mut request = body("this ends early");
        request["stream"] = json!(true);
        let events = system.api.stream("/v1/completions", &request).await;
        let (text, last) = ended(&events);
        assert_eq!(text, "thi", "{act}: what had come before stands: {events:?}");
        let message = last["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(word), "{act}: {last}");
        asked_well(&system, "the next one").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_before_the_first_token_is_not_noticed_and_its_worker_is_gone() {
    let state = tempfile::tempdir().expect("a temporary folder");
    for at in ["load", "step", "submit"] {
        let file = state.path().join(at);
        let prompt = if at == "load" { Value::Null } else { json!("waits") };
        let system = start(json!({"faults": [
            {"at": at, "do": "hang", "prompt": prompt, "times": {"file": file, "at_most": 1}},
        ]}))
        .await;
        if at != "load" {
            asked_well(&system, "warm").await;
        }
        asked_well(&system, "waits and is answered").await;
        assert_eq!(struck(&file), 1, "{at}: it hung");
        let log = log(&system);
        assert!(log.contains("no sign of life"), "{at}: the log names the cause:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_but_moving_is_no_hang() {
    // Both take longer than the watchdog's limit.
    let load_ms = (PROGRESS_SECONDS + 3) * 1000;
    let prompt = "sixty tokens of a prompt that a slow device reads one by one";
    let rate = prompt.len() as f64 / (PROGRESS_SECONDS + 3) as f64;
    let system = start(json!({"load_ms": load_ms, "prefill_tokens_per_second": rate})).await;
    asked_well(&system, prompt).await;
    let log = log(&system);
    assert!(!log.contains("no sign of life"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poison_pill_is_refused_alone() {
    let state = tempfile::tempdir().expect("a temporary folder");
    let file = state.path().join("deaths");
    let system = start(json!({"tokens_per_second": 100, "faults": [
        {"at": "step", "do": "abort", "prompt": "poison", "times": {"file": file, "at_most": 1000}},
    ]}))
    .await;
    asked_well(&system, "warm").await;
    let prompts: Vec<String> = (0..6).map(|n| format!("bread {n}")).collect();
    let others = futures_util::future::join_all(prompts.iter().map(|prompt| ask(&system, prompt)));
    let (pill, others) = tokio::join!(ask(&system, "a poison pill"), others);
    pill.refused(500, &[]);
    assert_eq!(pill.body["error"]["code"], "request_quarantined", "{}", pill.body);
    assert_eq!(pill.headers["x-should-retry"], "false");
    assert_eq!(struck(&file), 2, "two workers, and no third one");
    for (prompt, answer) in prompts.iter().zip(others) {
        // One that had tokens when the pill struck may have lost its worker; it says so.
        match answer.status {
            200 => assert_eq!(answer.body["choices"][0]["text"], **prompt),
            _ => assert_eq!(answer.body["error"]["code"], "worker_died", "{}", answer.body),
        }
    }
    asked_well(&system, "and on it goes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_backs_off_says_why_and_recovers_by_itself() {
    let state = tempfile::tempdir().expect("a temporary folder");
    let file = state.path().join("deaths");
    let system = start(json!({"faults": [
        {"at": "load", "do": "abort", "times": {"file": file, "at_most": 4}},
    ]}))
    .await;
    // Somebody who wants it, over and over; an error is an error with words.
    until("an answer", || async {
        let answer = ask(&system, "recovers").await;
        if answer.status == 200 {
            return Ok(());
        }
        answer.refused(answer.status, &[]);
        assert!((500..600).contains(&answer.status), "{}", answer.body);
        Err(answer.body.to_string())
    })
    .await;
    assert_eq!(struck(&file), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn binary_output_of_an_engine_disturbs_nobody() {
    let system = start(json!({"faults": [{"at": "step", "do": {"print": {"bytes": 20_000}}}]})).await;
    asked_well(&system, "binary").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_pipe_ends_its_worker_and_nobody_else() {
    let state = tempfile::tempdir().expect("a temporary folder");
    let file = state.path().join("times");
    let system = start(json!({"faults": [
        {"at": "step", "do": "scribble", "times": {"file": file, "at_most": 1}},
    ]}))
    .await;
    asked_well(&system, "answered all the same").await;
    assert_eq!(struck(&file), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_cannot_be_opened_are_refused_by_name_and_the_good_one_serves() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for version in ["0.1.0", "0.2.0+abi-2", "0.3.0+no-step", "0.4.0+other-id", "0.5.0+abort-in-open"] {
        install_engine("fault", version, dir.path()).expect("it can be installed");
    }
    let system = start_with(json!({}), &[], dir.path().to_owned()).await;
    let engines = system.api.get("/api/engines").await.ok();
    let reason = |version: &str| {
        let all = engines["engines"].as_array().into_iter().flatten();
        let found =
            all.filter(|e| e["version"] == version).map(|e| (e["state"].clone(), e["reason"].clone()));
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), 1, "{version}: {engines}");
        found[0].clone()
    };
    assert_eq!(reason("0.1.0").0, "available");
    for (version, part) in [("0.2.0+abi-2", "ABI"), ("0.3.0+no-step", "step"), ("0.4.0+other-id", "other")] {
        let (state, why) = reason(version);
        assert_eq!(state, "refused", "{version}");
        assert!(why.as_str().is_some_and(|why| why.contains(part)), "{version}: {why}");
    }
    asked_well(&system, "served by the good one").await;
}
