//! Router, node and worker killed in turn: nobody else falls, nothing stays behind.
#![cfg(target_os = "linux")]

use std::process::Command;

use serde_json::json;
use system_tests::process::runs;
use system_tests::reference::MODEL;
use system_tests::{Reference, System, repos, until};

/// A model whose answers take their time.
const SLOW: &str = "acme/slow";

fn kill(pid: u32) {
    let status = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill is there");
    assert!(status.success(), "process {pid} could not be killed");
}

async fn worker(system: &System) -> u32 {
    let body = Reference::read().prompt("hello").request();
    system.api.chat(&body).await.ok();
    system.worker().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_costs_its_requests_and_the_next_one_works() {
    let system = System::start(vec![repos::fault(SLOW, 4096, json!({"tokens_per_second": 20}))]).await;
    system.add(SLOW).await;
    // One request in flight; at this pace it takes a minute, so it is still there when the worker dies.
    let prompt = "a word ".repeat(170);
    let request = json!({"model": SLOW, "prompt": prompt, "max_tokens": prompt.len(), "temperature": 0, "stream": true});
    let url = format!("{}/v1/completions", system.url);
    let mut reply = system.api.http().post(url).json(&request).send().await.expect("the router answers");
    assert_eq!(reply.status(), 200);
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("data: ") {
        text.extend(reply.chunk().await.expect("the stream goes on").expect("it has not ended"));
    }
    let first = system.worker().await;
    kill(first);
    while let Some(part) = reply.chunk().await.expect("a stream that failed ends in order") {
        text.extend(part);
    }
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(!text.contains("[DONE]"), "a stream that failed has no [DONE]:\n{text}");
    let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or_default();
    let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert!(last["error"]["message"].as_str().is_some_and(|m| m.contains("worker")), "{last}");

    let next = json!({"model": SLOW, "prompt": "next", "max_tokens": 64, "temperature": 0});
    assert_eq!(system.api.post("/v1/completions", &next).await.ok()["choices"][0]["text"], "next");
    assert_ne!(first, system.worker().await);
    let node = system.node.as_ref().expect("the node was started");
    assert!(runs(node.pid()), "the node survives");
    let log = node.log();
    assert!(log.contains("signal") || log.contains("killed"), "the log tells how the worker ended:\n{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_worker_outlives_its_node_and_a_new_node_is_ready_again() {
    let mut system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let worker = worker(&system).await;
    let node = system.node.take().expect("the node was started");
    node.kill().await;
    until("the end of the worker", || async {
        if runs(worker) { Err("it runs".to_owned()) } else { Ok(()) }
    })
    .await;
    system.until_nodes(0).await;
    system.api.chat(&Reference::read().prompt("hello").request()).await.refused(503, &[MODEL]);
    system.start_node().await;
    system.api.until_ready(MODEL).await;
    system.api.chat(&Reference::read().prompt("hello").request()).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_comes_back_knows_its_models_and_its_node_joins_again() {
    let mut system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let fingerprint = system.api.model(MODEL).await["fingerprint"].clone();
    system.router.take().expect("the router was started").kill().await;
    let listen = system.url.trim_start_matches("http://").to_owned();
    system.start_router(&listen).await;
    assert_eq!(system.api.model(MODEL).await["fingerprint"], fingerprint);
    system.until_nodes(1).await;
    system.api.until_ready(MODEL).await;
    system.api.chat(&Reference::read().prompt("hello").request()).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn services_end_when_asked_and_take_their_workers_along() {
    let mut system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let worker = worker(&system).await;
    let node = system.node.take().expect("the node was started").end().await;
    assert!(node.success(), "{node}");
    assert!(!runs(worker));
    let router = system.router.take().expect("the router was started").end().await;
    assert!(router.success(), "{router}");
}
