//! The official OpenAI clients for Python and Node, speaking to a router with the demo model.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use system_tests::reference::MODEL;
use system_tests::{System, repos};

/// Where the set-up has put things, unless the environment says otherwise.
fn installed(variable: &str, usual: &[&str]) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let build = engine_testkit::build::workspace_root().join("build");
    let found = usual.iter().map(|u| build.join(u)).find(|p| p.exists());
    found.unwrap_or_else(|| panic!("no {usual:?} in {}; `cargo xtask setup` installs it", build.display()))
}

async fn run(mut command: Command, system: &System) -> Value {
    command
        .env("OPENAI_BASE_URL", format!("{}/v1", system.url))
        .env("OPENAI_API_KEY", "unused")
        .env("MODEL", MODEL);
    // The router is on this machine; a proxy of it has no business here.
    for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(name);
    }
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("not called off")
        .expect("it starts");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {log}"))
}

/// Both scripts print the same document; this is what it has to say.
fn check(seen: &Value) {
    let text = |name: &str| seen[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(text("plain"), "The capital of France is Paris.", "{seen}");
    assert_eq!(text("plain_finish"), "stop");
    assert_eq!(text("streamed"), text("plain"));
    assert_eq!(text("streamed_reasoning"), "France: the capital is Paris.");
    assert!(seen["streamed_chunks"].as_u64() > Some(3), "{seen}");
    assert!(seen["streamed_usage"].as_u64() > Some(0), "{seen}");
    assert_eq!(text("tool_name"), "get_weather");
    assert_eq!(text("tool_arguments"), r#"{"location":"Lisbon"}"#);
    assert_eq!(text("tool_answer"), "It is 18 degrees and sunny in Lisbon.");
    assert!(!text("completion").is_empty());
    assert!(seen["models"].as_array().is_some_and(|all| all.iter().any(|m| m == MODEL)), "{seen}");
    assert_eq!(text("model_by_id"), MODEL);
    assert_eq!(text("not_found"), "NotFoundError 404");
    assert_eq!(text("bad_request"), "BadRequestError 400 temperature");
}

#[tokio::test(flavor = "multi_thread")]
async fn python() {
    let system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let clients = engine_testkit::build::workspace_root().join("tests/clients");
    let python = installed("LLM_ROUTER_TEST_PYTHON", &["venv/bin/python", "venv/Scripts/python.exe"]);
    let mut command = Command::new(python);
    command.arg(clients.join("openai_client.py"));
    check(&run(command, &system).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn node() {
    let system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let clients = engine_testkit::build::workspace_root().join("tests/clients");
    let node = installed("LLM_ROUTER_TEST_NODE", &["venv/bin/node", "venv/Scripts/node.exe"]);
    let packages = installed("LLM_ROUTER_TEST_NODE_DIR", &["node"]);
    // A script finds its packages beside itself or above; the installed ones lie in the build folder.
    let script = system.dir().join("openai_client.mjs");
    std::fs::copy(clients.join("openai_client.mjs"), &script).expect("the test's folder is writable");
    let entry = packages.join("node_modules/openai/index.mjs");
    let mut command = Command::new(node);
    command.arg(script).env("OPENAI_MODULE", entry);
    check(&run(command, &system).await);
}
