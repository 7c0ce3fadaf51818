//! Router, node and worker killed in turn: nobody else falls, nothing stays behind.
#![cfg(target_os = "linux")]

use std::process::Command;

use serde_json::json;
use system_tests::process::runs;
use system_tests::reference::MODEL;
use system_tests::{Reference, System, repos, until};

fn kill(pid: u32) {
    let status = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill is there");
    assert!(status.success(), "process {pid} could not be killed");
}

async fn worker(system: &System) -> u32 {
    let body = Reference::read().prompt("hello").request();
    system.api.chat(&body).await.ok();
    until("a worker", || async { system.workers().await.first().copied().ok_or("none".to_owned()) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_costs_its_requests_and_the_next_one_works() {
    let system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let first = worker(&system).await;
    // One request in flight, long enough to be still there when the worker dies.
    let mut request = Reference::read().prompt("lighthouse").request();
    request["stream"] = json!(true);
    request["n"] = json!(8);
    let api = system.api.clone();
    let in_flight = tokio::spawn(async move { api.stream("/v1/chat/completions", &request).await });
    until("a running request", || async {
        let nodes = system.api.get("/api/nodes").await.ok();
        if nodes["nodes"][0]["requests_running"].as_u64() > Some(0) { Ok(()) } else { Err(nodes.to_string()) }
    })
    .await;
    kill(first);
    let events = in_flight.await.expect("the stream ends");
    assert!(!events.contains(&json!("[DONE]")), "a stream that failed has no [DONE]");
    assert!(events.last().is_some_and(|e| e["error"]["message"].is_string()), "its last event is an error");

    let second = worker(&system).await;
    assert_ne!(first, second);
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
    until("the end of the worker", || async { if runs(worker) { Err("it runs".to_owned()) } else { Ok(()) } }).await;
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
