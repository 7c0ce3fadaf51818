//! Workers that hang, and workers that are only slow.
#![cfg(target_os = "linux")]

use node_api::{FinishReason, GenerateEvent};
use serde_json::{Value, json};

use crate::fault::{Fault, fault, short};
use crate::support::{Reply, is_there, within};

/// Asks for `text`, which makes the worker hang, and returns what was told.
async fn hangs(options: Value, text: &str) -> (Fault, Reply) {
    let lab = fault(options, short).await;
    let reply = lab.ask(text).await;
    let failed = reply.failed.as_ref().unwrap_or_else(|| panic!("it did not fail: {reply:?}"));
    assert_eq!(failed.code, "worker_hung", "{failed}");
    // The request was not on it yet: nothing is to be blamed on it.
    assert!(failed.retry && !failed.worker_died, "{failed:?}");
    assert!(failed.message.contains("signal 9"), "killed and reaped: {failed}");
    (lab, reply)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_stops_moving_is_ended_and_the_cause_is_named() {
    let (_lab, reply) = hangs(json!({"faults": [{"at": "loaded", "do": "hang"}]}), "x").await;
    let message = reply.failed.unwrap().message;
    assert!(message.contains("load the model") && message.contains("no sign of life for 3 s"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_talks_and_never_gets_further_is_ended_too() {
    let (_lab, reply) = hangs(json!({"faults": [{"at": "loaded", "do": "hang_talking"}]}), "x").await;
    let message = reply.failed.unwrap().message;
    assert!(message.contains("never rose"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_hangs_ends_its_worker_whose_memory_is_gone_and_others_are_served_by_the_next() {
    let rule = json!({"faults": [{"at": "step", "do": "spin", "prompt": "poison", "token": 2}]});
    let lab = fault(rule, short).await;
    assert_eq!(lab.ask("good").await.text, "good");
    let worker = lab.worker().await;
    let reply = lab.ask("poison").await;
    let failed = reply.failed.expect("it hangs");
    assert_eq!(failed.code, "worker_hung", "{failed}");
    assert!(failed.message.contains("give the next tokens"), "{failed}");
    assert!(!reply.text.is_empty() && "poison".starts_with(&reply.text), "{}", reply.text);
    assert!(!is_there(worker), "it is reaped before its requests are told");
    assert_eq!(lab.ask("after").await.text, "after");
    assert_ne!(lab.worker().await, worker);
    lab.until("the hang is counted", |s| s.counters.worker_hangs == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_load_that_moves_is_no_hang() {
    // Three times the limit, in fifty parts.
    let lab = fault(json!({"load_ms": 9000}), short).await;
    let reply = lab.ask("slow").await;
    assert_eq!((reply.text.as_str(), reply.finished), ("slow", Some(FinishReason::Stop)), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_on_a_slow_device_is_no_hang() {
    // 180 tokens at 20 a second: nine seconds without an event.
    let lab = fault(json!({"prefill_tokens_per_second": 20.0}), short).await;
    let text = "p".repeat(180);
    let reply = lab.ask(&text).await;
    assert_eq!((reply.text.as_str(), reply.finished), (text.as_str(), Some(FinishReason::Stop)), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_stops_its_sequence_and_the_worker_stays() {
    let lab = fault(json!({"tokens_per_second": 20.0, "repeat": 100}), short).await;
    let mut lines = within("the stream", lab.rig.link.generate(&lab.request("endless"))).await.unwrap();
    let token = async { while !matches!(lines.next().await, Some(Ok(GenerateEvent::Token(_)))) {} };
    within("a token", token).await;
    let worker = lab.worker().await;
    drop(lines);
    let idle = |s: &node_api::NodeStatus| {
        s.requests_running == 0 && s.models[0].replicas.iter().all(|r| r.requests_running == 0)
    };
    lab.until("nothing runs", idle).await;
    assert_eq!(lab.worker().await, worker);
}
