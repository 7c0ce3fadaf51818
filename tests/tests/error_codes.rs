//! Every status an engine can answer, from the engine to the client: HTTP status, reason, words and numbers.
#![cfg(target_os = "linux")]

use engine_testkit::build::engines_dir;
use serde_json::json;
use system_tests::{NodeSpec, System, repos};

const NEEDED: u64 = 123_456;
const AVAILABLE: u64 = 7_890;
/// Code of the ABI, and the status the client gets. 5 (cancelled) is what the host itself asks for; nobody is there.
const CODES: [(i32, u16); 8] =
    [(1, 507), (2, 507), (3, 503), (4, 504), (6, 400), (7, 500), (8, 503), (9, 503)];

#[tokio::test(flavor = "multi_thread")]
async fn every_code_reaches_the_client_whole() {
    let cases: Vec<(String, &str, i32, u16)> = ["submit", "start", "load"]
        .into_iter()
        .flat_map(|at| CODES.map(|(code, http)| (format!("acme/{at}-{code}"), at, code, http)))
        .collect();
    let repo = |(id, at, code, _): &(String, &str, i32, u16)| {
        let status = json!({
            "code": code, "reason": format!("as_asked_{code}"), "message": format!("asked for code {code}"),
            "needed": NEEDED, "available": AVAILABLE,
        });
        repos::fault(id, 64, json!({"faults": [{"at": at, "do": {"fail": status}}]}))
    };
    let mut system = System::without_node(cases.iter().map(repo).collect()).await;
    system.start_node_as(&NodeSpec {
        name: "node".to_owned(),
        devices: vec!["cpu".to_owned()],
        engines_dir: engines_dir(),
        settings: Vec::new(),
    });
    system.until_nodes(1).await;
    let mut wrong = Vec::new();
    for (id, _, code, http) in &cases {
        system.api.register(&json!({"repo": id, "format": "safetensors"})).await.ok();
        system.api.until_ready(id).await;
        let body = json!({"model": id, "prompt": "x", "max_tokens": 4});
        let answer = system.api.post("/v1/completions", &body).await;
        let error = &answer.body["error"];
        let words = error["message"].as_str().unwrap_or_default();
        let whole = answer.status == *http
            && error["code"] == format!("as_asked_{code}")
            && words.contains(&format!("asked for code {code}"))
            && error["numbers"] == json!({"needed": NEEDED, "available": AVAILABLE});
        if !whole {
            wrong.push(format!("{id}: {http} was expected, {} came: {}", answer.status, answer.body));
        }
        system.api.delete(&format!("/api/models/{id}")).await.ok();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
