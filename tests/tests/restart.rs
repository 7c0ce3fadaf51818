//! What is registered and verified is served again after a restart, with no hub to ask.

use serde_json::json;
use system_tests::reference::MODEL;
use system_tests::{Reference, System, repos};

#[tokio::test(flavor = "multi_thread")]
async fn router_and_node_come_back_and_serve_without_the_hub() {
    let mut system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let prompt = Reference::read().prompts.swap_remove(0);
    let before = system.api.chat(&prompt.request()).await.ok();
    for process in [system.node.take(), system.router.take()].into_iter().flatten() {
        let status = process.end().await;
        assert!(status.success(), "{status}");
    }
    // The hub has lost everything, and is asked for nothing.
    system.hub.remove(MODEL);
    system.hub.forget_requests();
    system.start_router("127.0.0.1:0").await;
    system.start_node().await;
    system.api.until_ready(MODEL).await;
    let after = system.api.chat(&prompt.request()).await.ok();
    assert_eq!(after["choices"], before["choices"]);
    let asked = system.hub.requests();
    assert!(asked.is_empty(), "{asked:?}");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_to_end_finishes_what_it_has() {
    const SLOW: &str = "acme/slow";
    let mut system = System::start(vec![repos::fault(SLOW, 1024, json!({"tokens_per_second": 40}))]).await;
    system.add(SLOW).await;
    // Five seconds and more: it is not finished before the node is told.
    let text = "to be finished ".repeat(14);
    let body = json!({
        "model": SLOW, "prompt": text, "max_tokens": text.len(), "temperature": 0, "stream": true,
    });
    let url = format!("{}/v1/completions", system.url);
    let mut reply = system.api.http().post(url).json(&body).send().await.expect("the router answers");
    let mut seen = Vec::new();
    seen.extend(reply.chunk().await.expect("the stream begins").expect("it has not ended"));
    let node = system.node.take().expect("the node was started");
    let pid = node.pid().to_string();
    let told = std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there");
    assert!(told.success());
    while let Some(part) = reply.chunk().await.expect("the stream ends in order") {
        seen.extend(part);
    }
    let seen = String::from_utf8(seen).expect("UTF-8");
    assert!(seen.trim_end().ends_with("data: [DONE]"), "{seen}");
    let status = node.end().await;
    assert!(status.success(), "{status}");
    system.until_nodes(0).await;
    let refused = system.api.post("/v1/completions", &body).await;
    refused.refused(503, &[SLOW]);
    assert!(refused.headers.contains_key("retry-after"));
}
