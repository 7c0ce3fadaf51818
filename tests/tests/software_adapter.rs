//! gpt-oss through router, node and worker on an adapter that computes on the processor, Mesa's lavapipe: with leave of the node
//! and of the router it answers as recorded, and without either it is refused in words that say what leave is missing.

#![cfg(target_os = "linux")]

use std::process::Stdio;

use serde_json::json;
use system_tests::reference::MODEL;
use system_tests::{NodeSpec, Reference, System, repos, until};

const NODE: &str = "software";

/// Why the tests cannot run here: no lavapipe, or a GPU that has the name it would have.
fn missing() -> Option<&'static str> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    if !names("/usr/share/vulkan/icd.d").iter().any(|name| name.starts_with("lvp_")) {
        return Some("no lavapipe (`cargo xtask setup` installs it)");
    }
    let has_gpu = names("/sys/class/drm").iter().any(|name| name.starts_with("renderD"));
    has_gpu.then_some("this machine has a GPU, which goes before it")
}

fn node(allow_software: bool) -> NodeSpec {
    let leave = ("LLM_ROUTER_ALLOW_SOFTWARE".to_owned(), allow_software.to_string());
    NodeSpec {
        name: NODE.to_owned(),
        devices: vec!["vulkan".to_owned()],
        engines_dir: engine_testkit::build::engines_dir(),
        settings: vec![leave],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_leave_of_node_and_router_the_demo_model_answers_as_recorded() {
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let mut system = System::without_node(vec![repos::demo()]).await;
    system.start_node_as(&node(true));
    system.until_nodes(1).await;
    let nodes = system.api.get("/api/nodes").await.ok();
    assert_eq!(nodes["nodes"][0]["cpu_only"], true, "it counts as the CPU: {nodes}");
    system.add(MODEL).await;
    for name in ["capital", "tool_call"] {
        let prompt = Reference::read();
        let prompt = prompt.prompt(name);
        let reply = system.api.chat(&prompt.request()).await.ok();
        let message = &reply["choices"][0]["message"];
        assert_eq!(reply["usage"]["completion_tokens"], prompt.completion_token_ids.len(), "{name}: {reply}");
        assert_eq!(message["content"].as_str(), prompt.content.as_deref(), "{name}: {reply}");
        assert_eq!(message["reasoning"].as_str(), prompt.reasoning.as_deref(), "{name}: {reply}");
        let call = prompt.tool_call.as_ref().map(|call| &call["name"]);
        assert_eq!(
            message["tool_calls"][0]["function"]["name"].as_str(),
            call.and_then(|c| c.as_str()),
            "{name}"
        );
    }
    // It ran where it was told to, and not on the CPU by itself.
    let model = system.api.model(MODEL).await;
    let on = &model["nodes"][0];
    assert_eq!(on["candidates"][0]["device"], "vulkan:0", "{model}");
    let text = on.to_string();
    assert!(text.contains("gpt-oss") && text.contains("on vulkan:0 runs from the safetensors"), "{model}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_of_the_node_it_does_not_start_and_says_what_is_missing() {
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let system = System::without_node(Vec::new()).await;
    let mut command = system.node_command(&node(false));
    command.stdin(Stdio::null());
    let ended = tokio::task::spawn_blocking(move || command.output());
    let output = ended.await.expect("the wait is not called off").expect("the program starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{words}");
    for part in ["no device vulkan", "hint: ", "--allow-software"] {
        assert!(words.contains(part), "{part:?} is not in {words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_of_the_router_the_node_is_turned_away_and_told_why() {
    if let Some(why) = missing() {
        return println!("skipped: {why}");
    }
    let mut system = System::with_router(vec![repos::demo()], &[]).await;
    system.start_node_as(&node(true));
    let log = until("the node's log says why it was turned away", || async {
        let log = system.nodes[NODE].log();
        if log.contains("takes none without") { Ok(log) } else { Err(log) }
    })
    .await;
    assert!(log.contains("--allow-cpu"), "{log}");
    let nodes = system.api.get("/api/nodes").await.ok();
    assert_eq!(nodes["nodes"], json!([]), "{nodes}");
    system.api.register(&json!({"repo": MODEL, "format": "safetensors"})).await.ok();
    let answer = system.api.chat(&Reference::read().prompt("capital").request()).await;
    assert_eq!(answer.status, 503, "{answer:?}");
}
