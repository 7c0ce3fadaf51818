//! What an operator's commands ask of a router, and what they print of its answer.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::{Value, json};

/// For a request that has to come; a process starts in between.
const DEADLINE: Duration = Duration::from_secs(60);

/// Answers what a test says, one answer a request, and tells what it was asked.
struct FakeRouter {
    url: String,
    asked: Receiver<(String, Value)>,
}

impl FakeRouter {
    fn answering(answers: Vec<(u16, Value)>) -> FakeRouter {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (tell, asked) = mpsc::channel();
        std::thread::spawn(move || {
            for (status, body) in answers {
                let Ok((stream, _)) = listener.accept() else { return };
                let Ok(request) = serve(stream, status, &body) else { return };
                if tell.send(request).is_err() {
                    return;
                }
            }
        });
        FakeRouter { url, asked }
    }

    fn asked(&self) -> (String, Value) {
        self.asked.recv_timeout(DEADLINE).expect("a request came")
    }

    fn run(&self, words: &[&str]) -> Output {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_llm-router"));
        command.env_remove("LLM_ROUTER_CONFIG").arg("--data-dir").arg(folder.path());
        command.args(words).args(["--url", &self.url]).output().expect("the program starts")
    }
}

/// Reads one request and answers it: method, path and body.
fn serve(mut stream: TcpStream, status: u16, body: &Value) -> std::io::Result<(String, Value)> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let target = line.rsplit_once(' ').map(|(target, _)| target.to_owned()).unwrap_or_default();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut sent = vec![0; length];
    reader.read_exact(&mut sent)?;
    let text = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )?;
    Ok((target, serde_json::from_slice(&sent).unwrap_or(Value::Null)))
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
}

fn engine(version: &str) -> Value {
    json!({
        "node_id": "n1", "node_name": "desk", "id": "echo", "version": version, "abi_version": "1.0",
        "runtimes": ["echo"], "architectures": ["echo"], "formats": ["safetensors"], "devices": ["cpu"],
        "capabilities": ["begin_with"], "sha256": "ab".repeat(32), "state": "available"
    })
}

fn loaded() -> Value {
    json!({
        "model": "org/m", "node_id": "n1", "node_name": "desk", "keep_alive_seconds": 600, "worker": 7,
        "role": "serving", "engine": "echo", "engine_version": "0.2.0", "library_sha256": "cd".repeat(32),
        "devices": ["cuda:0"], "context_length": 4096, "sequences_max": 8, "requests_running": 2,
        "requests_total": 9, "loaded_at": 1, "last_used": 0, "kv_bytes_used": 0, "kv_bytes_total": 0,
        "memory": [{"device": "cuda:0", "estimated": 3_000_000, "granted": 4_000_000, "used": 2_000_000}]
    })
}

#[test]
fn engines_are_listed_and_shown_with_library_and_failed_trials() {
    let mut failed = engine("0.3.0");
    failed["failed_trials"] = json!([{"model": "org/m", "reason": "no token came", "at": 5}]);
    let mut refused = engine("9.0.0");
    refused["state"] = json!("refused");
    refused["reason"] = json!("needs ABI 9");
    let list = json!({"engines": [engine("0.2.0"), failed, refused]});
    let router = FakeRouter::answering(vec![(200, list.clone()), (200, list)]);
    let people = router.run(&["engines", "ls"]);
    assert_eq!(router.asked().0, "GET /api/engines");
    says(&stdout(&people), &["0.2.0", "abababababab", "no token came", "needs ABI 9"]);
    let json: Value = serde_json::from_slice(&router.run(&["--json", "engines", "ls"]).stdout).expect("JSON");
    assert_eq!(json["engines"][1]["failed_trials"][0]["reason"], "no token came");

    let details = json!({"id": "echo", "engines": [engine("0.2.0")], "loaded": [loaded()]});
    let router = FakeRouter::answering(vec![(200, details)]);
    let shown = router.run(&["engines", "show", "echo"]);
    assert_eq!(router.asked().0, "GET /api/engines/echo");
    says(&stdout(&shown), &["begin_with", "org/m", "2.0 MB"]);
}

#[test]
fn a_reload_is_asked_of_a_node_and_its_handovers_are_told() {
    let handover =
        json!({"model": "org/m", "from": "echo 0.1.0", "to": "echo 0.2.0", "done": true, "pause_ms": 0});
    let reply = json!({"nodes": [{"node_id": "n1", "node_name": "desk", "reply": {"engines": [], "handovers": [handover]}}]});
    let router = FakeRouter::answering(vec![(200, reply)]);
    let output = router.run(&["engines", "reload", "echo", "--node", "desk"]);
    assert_eq!(
        router.asked(),
        ("POST /api/engines/reload".into(), json!({"engine": "echo", "node": "desk"}))
    );
    assert!(output.status.success(), "{}", stderr(&output));
    says(&stdout(&output), &["org/m: echo 0.1.0 handed over to echo 0.2.0; no request waited"]);

    // All nodes; one of them failed, and the command with it.
    let error =
        json!({"status": 503, "code": "node_ending", "message": "the node is ending", "hint": "later"});
    let nodes = json!({"nodes": [{"node_id": "n1", "node_name": "desk", "error": error}]});
    let router = FakeRouter::answering(vec![(200, nodes)]);
    let output = router.run(&["engines", "reload"]);
    assert_eq!(router.asked().1, json!({}));
    assert!(!output.status.success());
    says(&stdout(&output), &["desk: failed: the node is ending", "hint: later"]);
}

#[test]
fn engines_are_turned_off_and_on_by_version() {
    let reply =
        json!({"nodes": [{"node_id": "n1", "node_name": "desk", "reply": {"engines": [], "handovers": []}}]});
    let router = FakeRouter::answering(vec![(200, reply.clone()), (200, reply)]);
    let output = router.run(&["engines", "disable", "echo@0.2.0"]);
    assert_eq!(router.asked(), ("POST /api/engines/echo/disable".into(), json!({"version": "0.2.0"})));
    says(&stdout(&output), &["desk: disabled"]);
    router.run(&["engines", "enable", "echo", "--node", "n1"]);
    assert_eq!(router.asked(), ("POST /api/engines/echo/enable".into(), json!({"node": "n1"})));
}

#[test]
fn models_are_loaded_unloaded_and_listed_with_memory_and_last_use() {
    let router =
        FakeRouter::answering(vec![(200, json!({"models": [loaded()]})), (200, json!({"models": []}))]);
    let output = router.run(&["models", "ps"]);
    assert_eq!(router.asked().0, "GET /api/ps");
    says(
        &stdout(&output),
        &["org/m", "echo 0.2.0", "2.0 MB of 4.0 MB granted", "never", "after 10 min idle", "serving"],
    );
    says(&stdout(&router.run(&["models", "ps"])), &["no model is in memory"]);

    let state = json!({"node_id": "n1", "node_name": "desk", "state": "loaded", "engine": "echo",
        "engine_version": "0.2.0", "device": "cpu", "context_length": 64, "sequences_max": 2, "worker": 7});
    let done = json!({"id": "org/m", "nodes": [{"node_id": "n1", "node_name": "desk", "model": state}]});
    let nowhere = json!({"id": "org/m", "nodes": []});
    let router = FakeRouter::answering(vec![(200, done), (200, nowhere)]);
    let output = router.run(&["models", "load", "org/m", "--node", "desk"]);
    assert_eq!(router.asked(), ("POST /api/models/org/m/load".into(), json!({"node": "desk"})));
    says(&stdout(&output), &["desk: loaded; echo 0.2.0 on cpu"]);
    let output = router.run(&["models", "unload", "org/m"]);
    assert_eq!(router.asked(), ("POST /api/models/org/m/unload".into(), json!({})));
    says(&stdout(&output), &["in no node's memory"]);
}

#[test]
fn settings_of_a_model_are_changed_one_by_one() {
    let model = |settings: Value| {
        json!({
            "id": "org/m", "fingerprint": "f", "source": {"kind": "local", "path": "/m"}, "format": "safetensors",
            "architecture": "echo", "runtimes": ["echo"], "total_bytes": 1, "files": 1, "created": 1,
            "settings": settings, "state": "ready", "nodes": [], "manifest": manifest()
        })
    };
    let before = model(json!({"context_length": 64, "engine": "echo"}));
    let after = model(json!({"context_length": 64, "keep_alive_seconds": -1, "devices": ["cuda:0"]}));
    let router = FakeRouter::answering(vec![(200, before), (200, after)]);
    let words =
        ["models", "set", "org/m", "--keep-alive", "forever", "--device", "cuda:0", "--unset", "engine"];
    let output = router.run(&words);
    assert_eq!(router.asked().0, "GET /api/models/org/m", "{}", stderr(&output));
    let (target, body) = router.asked();
    assert_eq!(target, "PATCH /api/models/org/m");
    let settings = json!({"context_length": 64, "devices": ["cuda:0"], "keep_alive_seconds": -1});
    assert_eq!(body["settings"], settings);
    says(&stdout(&output), &["context of 64 tokens; on cuda:0; stays in memory"]);
}

fn manifest() -> Value {
    json!({
        "id": "org/m", "source": {"kind": "local", "path": "/m"}, "format": "safetensors",
        "architecture": "echo", "runtimes": ["echo"], "primary": "model.safetensors", "files": []
    })
}

#[test]
fn removing_a_model_says_what_happens_to_its_files() {
    let router = FakeRouter::answering(vec![(200, json!({"id": "org/m", "deleted": true}))]);
    let output = router.run(&["models", "rm", "org/m"]);
    assert_eq!(router.asked().0, "DELETE /api/models/org/m");
    says(&stdout(&output), &["removed org/m", "files"]);
}

#[test]
fn nodes_are_listed_with_memory_alerts_and_what_their_workers_did() {
    let node = json!({
        "id": "n1", "name": "desk", "version": "1", "os": "linux", "arch": "x86_64", "state": "connected",
        "cpu_only": false, "same_machine": true, "devices": [], "engines": [],
        "memory": {"ram_total": 8_000_000_000_u64, "ram_available": 2_000_000_000_u64,
            "devices": [{"device": "cuda:0", "total": 1_000_000, "used": 910_000, "reserved": 800_000}]},
        "alerts": [{"code": "memory_high", "subject": "cuda:0", "message": "91 % in use", "since": 1}],
        "counters": {"worker_crashes": 3, "worker_hangs": 1}, "connected_since": 1, "last_heard_ms": 5,
        "requests_running": 1, "requests_waiting": 0, "models_ready": 1
    });
    let router = FakeRouter::answering(vec![(200, json!({"nodes": [node]}))]);
    let output = router.run(&["nodes", "ls"]);
    assert_eq!(router.asked().0, "GET /api/nodes");
    let text = stdout(&output);
    says(&text, &["2.0 GB of 8.0 GB free", "90.0 kB of 1.0 MB free", "3 crashed, 1 hung"]);
    says(&text, &["alert: desk, cuda:0: 91 % in use"]);
}

#[test]
fn a_refusal_and_wrong_words_are_json_for_scripts() {
    let body = json!({"error": {"message": "no engine `x`", "type": "not_found_error", "param": "engine",
        "code": "engine_not_found", "hint": "look"}});
    let router = FakeRouter::answering(vec![(404, body)]);
    let output = router.run(&["--json", "engines", "show", "x"]);
    assert!(!output.status.success());
    let error: Value = serde_json::from_str(&stderr(&output)).expect("one JSON document");
    assert_eq!(
        (&error["error"]["code"], &error["error"]["status"]),
        (&json!("engine_not_found"), &json!(404))
    );

    let router = FakeRouter::answering(Vec::new());
    for words in [vec!["--json", "engines", "fly"], vec!["engines", "reload", "--nod", "x", "--json"]] {
        let output = router.run(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let error: Value = serde_json::from_str(&stderr(&output)).expect("one JSON document");
        assert_eq!(error["error"]["code"], "usage", "{error}");
        assert!(error["error"]["message"].as_str().is_some_and(|m| !m.contains('\n')), "{error}");
    }
    let people = router.run(&["engines", "fly"]);
    assert!(stderr(&people).starts_with("error: "), "{}", stderr(&people));
}
