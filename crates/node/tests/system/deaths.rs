//! Workers that die with requests on them: who is told what, and who may begin beside whom.

use std::path::Path;

use node_api::{ApiError, FinishReason, GenerateEvent, GenerateRequest, ModelState, NodeStatus};
use serde_json::{Value, json};

use crate::fault::{Fault, fault};
use crate::support::{collect, within};

/// A node with the engine that misbehaves, and its model under these rules.
async fn rig(faults: Value) -> Fault {
    fault(json!({ "faults": faults }), |_| {}).await
}

fn ask(lab: &Fault, text: &str, worker_deaths: u32) -> GenerateRequest {
    GenerateRequest { worker_deaths, ..lab.request(text) }
}

async fn failed(lab: &Fault, text: &str, worker_deaths: u32) -> (String, ApiError) {
    let reply = lab.send(&ask(lab, text, worker_deaths)).await;
    (reply.text.clone(), reply.failed.unwrap_or_else(|| panic!("it did not fail: {}", reply.text)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_before_the_first_token_is_told_as_one_and_the_next_request_is_served() {
    let lab = rig(json!([{"at": "step", "do": "abort", "prompt": "poison"}])).await;
    let (text, error) = failed(&lab, "poison", 0).await;
    assert_eq!((text.as_str(), error.code.as_str(), error.status), ("", "worker_died", 500), "{error}");
    assert!(error.worker_died && error.retry, "{error:?}");
    let reply = lab.send(&ask(&lab, "hello", 0)).await;
    assert_eq!((reply.text.as_str(), reply.finished), ("hello", Some(FinishReason::Stop)), "{reply:?}");
    let status = lab.until("the count", |s| s.counters.requests_interrupted > 0).await;
    assert_eq!((status.counters.requests, status.counters.requests_interrupted), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_after_tokens_ends_the_stream_with_the_cause() {
    let lab = rig(json!([{"at": "step", "do": "segfault", "prompt": "late", "token": 2}])).await;
    let (text, error) = failed(&lab, "late", 0).await;
    assert!(!text.is_empty() && "late".starts_with(&text), "{text}");
    assert!(error.worker_died && error.code == "worker_died", "{error:?}");
    assert!(error.message.contains("signal") || cfg!(windows), "the cause is named: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_is_ended_and_the_cause_is_named() {
    let lab = rig(json!([{"at": "step", "do": "hang", "prompt": "still", "token": 1}])).await;
    let (_, error) = failed(&lab, "still", 0).await;
    assert!(error.worker_died && error.code == "worker_hung", "{error:?}");
    let reply = lab.send(&ask(&lab, "hello", 0)).await;
    assert_eq!(reply.text, "hello", "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_seen_a_death_waits_for_a_worker_also_in_a_crash_loop() {
    let lab = rig(json!([{"at": "step", "do": "abort", "prompt": "poison"}])).await;
    for _ in 0..3 {
        let (_, error) = failed(&lab, "poison", 0).await;
        assert!(error.worker_died, "{error:?}");
    }
    // The third death in a row makes a loop of it: the next start is a second away.
    let suspect = lab.send(&ask(&lab, "suspect", 1)).await;
    assert_eq!((suspect.text.as_str(), suspect.failed), ("suspect", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_kill_one_after_another_are_no_crash_loop() {
    let lab = rig(json!([{"at": "step", "do": "abort", "prompt": "poison"}])).await;
    for _ in 0..3 {
        // As the router sends them: once more after the first death, and then never again.
        for worker_deaths in 0..2 {
            let (_, error) = failed(&lab, "poison", worker_deaths).await;
            assert!(error.worker_died, "{error:?}");
        }
    }
    let now = lab.until("every death", |s| s.counters.worker_crashes == 6).await;
    assert!(now.models[0].state.is_ready(), "{:?}", now.models[0].state);
    let reply = lab.send(&ask(&lab, "hello", 0)).await;
    assert_eq!((reply.text.as_str(), reply.failed), ("hello", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_never_gives_a_token_is_a_crash_loop_whoever_is_alone_on_it() {
    let lab = rig(json!([{"at": "step", "do": "abort"}])).await;
    for worker_deaths in [0, 1, 1] {
        let (_, error) = failed(&lab, "good", worker_deaths).await;
        assert!(error.worker_died || error.retry, "{error:?}");
    }
    let looping = |s: &NodeStatus| matches!(s.models[0].state, ModelState::Failed { retrying: true, .. });
    lab.until("not ready", looping).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_seen_a_death_waits_until_the_others_have_begun_and_is_heard_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let hold = json!([{"at": "step", "do": {"hold": {"file": file}}, "prompt": "slow"}]);
    let lab = rig(hold).await;
    let slow = lab.rig.link.generate(&ask(&lab, "slow", 0)).await.unwrap();
    lab.until("the slow one to run", |s| s.requests_running == 1).await;
    let mut suspect = lab.rig.link.generate(&ask(&lab, "suspect", 1)).await.unwrap();
    // It says that it lives, and is on no worker.
    let first = within("a sign of life", suspect.next()).await.unwrap().unwrap();
    assert_eq!(first, GenerateEvent::Alive);
    let now = lab.until("both", |s| s.requests_running + s.requests_waiting == 2).await;
    assert_eq!((now.requests_running, now.requests_waiting), (1, 1));
    go(&file);
    let (slow, suspect) = tokio::join!(collect(slow), collect(suspect));
    assert_eq!((slow.text.as_str(), suspect.text.as_str()), ("slow", "suspect"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_takes_nobody_along_who_waits_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let hold = json!([
        {"at": "step", "do": {"hold": {"file": file}}, "prompt": "poison"},
        {"at": "step", "do": "abort", "prompt": "poison"},
    ]);
    let lab = rig(hold).await;
    let poison = lab.rig.link.generate(&ask(&lab, "poison", 0)).await.unwrap();
    lab.until("the poison to run", |s| s.requests_running == 1).await;
    let suspect = lab.rig.link.generate(&ask(&lab, "suspect", 1)).await.unwrap();
    lab.until("the suspect to wait", |s| s.requests_waiting == 1).await;
    go(&file);
    let (poison, suspect) = tokio::join!(collect(poison), collect(suspect));
    assert!(poison.failed.is_some_and(|e| e.worker_died));
    assert_eq!(suspect.text, "suspect", "{suspect:?}");
}

fn go(file: &Path) {
    std::fs::write(file, "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_embedded_has_its_numbers_or_the_cause_of_its_workers_death() {
    let lab = rig(json!([{"at": "step", "do": "abort", "prompt": "poison"}])).await;
    let embed = |text: &str| GenerateRequest { embed: true, ..ask(&lab, text, 0) };
    let died = lab.send(&embed("poison")).await;
    let error = died.failed.unwrap();
    assert!(error.worker_died && error.retry && died.embedding.is_empty(), "{error:?}");
    let reply = lab.send(&embed("hello")).await;
    assert_eq!((reply.text.as_str(), reply.finished), ("", Some(FinishReason::Stop)));
    assert_eq!(reply.prompt_tokens, 5);
    // The engine's vector is a direction in the plane that every token turns further.
    let [x, y] = reply.embedding[..] else { panic!("two numbers: {:?}", reply.embedding) };
    assert!((x.hypot(y) - 1.0).abs() < 1e-6, "({x}, {y}) has not length 1");
    let again = lab.send(&embed("hello")).await;
    assert_eq!(again.embedding, [x, y], "the same text has the same numbers");
    let other = lab.send(&embed("olleh")).await;
    assert_ne!(other.embedding, [x, y], "another text has others");
}
