//! No worker outlives its node, however busy, stuck or stubborn it is.
#![cfg(target_os = "linux")]

use std::process::Command;

use serde_json::{Value, json};
use system_tests::process::runs;
use system_tests::{System, repos, until};

const MODEL: &str = "org/fault";

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status().expect("kill is there");
    assert!(status.success(), "process {pid} got no {name}");
}

async fn system(faults: Value) -> System {
    let repo = repos::fault(MODEL, 512, json!({"faults": faults}));
    let system = System::start(vec![repo]).await;
    system.add(MODEL).await;
    system
}

/// Loads the model with a request that is answered.
async fn loaded(system: &System) -> u32 {
    system.api.chat(&body("good")).await.ok();
    system.worker().await
}

fn body(text: &str) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 20})
}

async fn node_killed(mut system: System, worker: u32) {
    let node = system.node.take().expect("the node was started");
    assert!(runs(worker), "it runs before");
    node.kill().await;
    until("the end of the worker", || async {
        if runs(worker) { Err(format!("worker {worker} runs")) } else { Ok(()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_hangs_inside_the_engine_goes_with_its_node() {
    let system = system(json!([{"at": "step", "do": "spin", "prompt": "poison"}])).await;
    let worker = loaded(&system).await;
    let (api, url) = (system.api.http().clone(), format!("{}/v1/chat/completions", system.url));
    let hanging = tokio::spawn(async move { api.post(url).json(&body("poison")).send().await.map(drop) });
    until("the hang", || async {
        let answer = system.api.get("/api/nodes").await.ok();
        let running = answer.to_string().contains("\"requests_running\":1");
        if running { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    node_killed(system, worker).await;
    hanging.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_stopped_goes_with_its_node() {
    let system = system(json!([])).await;
    let worker = loaded(&system).await;
    signal("-STOP", worker);
    node_killed(system, worker).await;
}

/// It has taken the pipe away from its own reader, and asked the kernel for no signal: in the last step of an answer,
/// when there is nothing left that it would have to read.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_ignores_every_sign_of_the_end_goes_with_its_node() {
    let system = system(json!([{"at": "step", "do": "ignore_end", "prompt": "stubborn", "token": 7}])).await;
    system.api.chat(&body("stubborn")).await.ok();
    let worker = system.worker().await;
    node_killed(system, worker).await;
}

/// The node ends in order and asks; the engine takes a minute to unload.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_slow_to_stop_is_killed_after_its_time() {
    let repo = repos::fault(MODEL, 512, json!({"unload_ms": 60_000}));
    let mut system = System::start(vec![repo]).await;
    system.add(MODEL).await;
    let worker = loaded(&system).await;
    let node = system.node.take().expect("the node was started");
    let status = node.end().await;
    assert!(status.success(), "{status}");
    assert!(!runs(worker), "the node waits for the end of its workers");
}
