//! The catalogue of refusals over real HTTP: each has its status and names the thing.

use fixture_hub::Repo;
use serde_json::{Value, json};
use system_tests::reference::MODEL;
use system_tests::{System, repos};

const INDEX: &str = "model.safetensors.index.json";

fn shards(id: &str) -> Repo {
    repos::echo(id)
        .without("model.safetensors")
        .file("model-00001-of-00002.safetensors", repos::weights())
        .file("model-00002-of-00002.safetensors", repos::weights())
}

fn index() -> String {
    json!({"metadata": {"total_size": 8}, "weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
    }})
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_are_refused_by_name() {
    let repos = vec![
        repos::echo("acme/no-config").without("config.json"),
        repos::echo("acme/no-tokenizer").without("tokenizer.json"),
        shards("acme/no-index"),
        shards("acme/no-shard").without("model-00002-of-00002.safetensors").file(INDEX, index()),
        repos::echo("acme/both").file("model-q4.gguf", b"GGUF".to_vec()),
        repos::echo("acme/private").private(),
        repos::echo("acme/gated").gated(),
        repos::echo(repos::ECHO),
    ];
    let system = System::start(repos).await;
    let register = async |body: Value| system.api.register(&body).await;
    let safetensors = async |repo: &str| register(json!({"repo": repo, "format": "safetensors"})).await;

    safetensors("acme/no-config").await.refused(400, &["config.json"]);
    safetensors("acme/no-tokenizer").await.refused(400, &["tokenizer.json"]);
    safetensors("acme/no-index").await.refused(400, &[INDEX]);
    safetensors("acme/no-shard").await.refused(400, &["model-00002-of-00002.safetensors"]);
    register(json!({"repo": "acme/both"})).await.refused(400, &["safetensors", "gguf"]);
    safetensors("acme/absent").await.refused(404, &["acme/absent", "private", "token"]);
    safetensors("acme/private").await.refused(404, &["acme/private", "private", "token"]);
    safetensors("acme/gated").await.refused(403, &["acme/gated"]);
    register(json!({})).await.refused(400, &["repo"]);
    register(json!({"repo": repos::ECHO, "fromat": "gguf"})).await.refused(400, &["fromat"]);

    system.add(repos::ECHO).await;
    let before = system.api.model(repos::ECHO).await["fingerprint"].clone();
    safetensors(repos::ECHO).await.refused(409, &[repos::ECHO]);
    assert_eq!(system.api.model(repos::ECHO).await["fingerprint"], before, "a duplicate overwrites nothing");

    system.api.get("/api/models/acme/absent").await.refused(404, &["acme/absent"]);
    system.api.delete("/api/models/acme/absent").await.refused(404, &["acme/absent"]);
    system.api.get("/v1/nothing").await.refused(404, &["/v1/nothing"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_hub_is_a_502() {
    let mut system = System::without_node(vec![]).await;
    // Nobody listens on the first port, and nobody is given it: a free one may be somebody's by now.
    let mut command = system_tests::system::command(system.dir(), "http://127.0.0.1:1");
    command.arg("--json").arg("--data-dir").arg(system.dir().join("other"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--exit-with-stdin"]);
    let mut router = system_tests::Process::start(command, system.dir(), "other");
    let line: Value = serde_json::from_str(&router.first_line().await).expect("JSON");
    system.api = system_tests::Api::new(line["url"].as_str().expect("an address"));
    system.api.register(&json!({"repo": "acme/any"})).await.refused(502, &["127.0.0.1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_refused_by_field() {
    let system = System::start(vec![repos::demo()]).await;
    system.add(MODEL).await;
    let user = json!([{"role": "user", "content": "Hello!"}]);
    let with = |field: &str, value: Value| {
        let mut body = json!({"model": MODEL, "messages": user});
        body[field] = value;
        body
    };
    let cases = [
        ("temperature", json!(-1)),
        ("temperature", json!("warm")),
        ("top_p", json!(1.5)),
        ("n", json!(0)),
        ("max_completion_tokens", json!(0)),
        ("logit_bias", json!({"x": 1})),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("reasoning_effort", json!("huge")),
        ("tool_choice", json!("perhaps")),
        ("response_format", json!({"type": "poem"})),
        ("messages", json!([])),
        ("audio", json!({"voice": "any"})),
        ("no_such_field", json!(1)),
    ];
    for (field, value) in cases {
        let answer = system.api.chat(&with(field, value)).await;
        answer.refused(400, &[field]);
        assert!(
            answer.body["error"]["param"].as_str().is_some_and(|p| p.starts_with(field)),
            "{}",
            answer.body
        );
    }
    system.api.chat(&with("model", json!("acme/absent"))).await.refused(404, &["acme/absent"]);
    system.api.get("/v1/models/acme/absent").await.refused(404, &["acme/absent"]);
    system
        .api
        .post("/v1/completions", &json!({"model": MODEL, "prompt": ""}))
        .await
        .refused(400, &["prompt"]);
    let out_of_range = json!({"model": MODEL, "prompt": [4_000_000_000_u64]});
    system.api.post("/v1/completions", &out_of_range).await.refused(400, &["prompt"]);
    system.api.post_raw("/v1/chat/completions", "application/json", b"{".to_vec()).await.refused(400, &[]);
    let plain = system.api.post_raw("/v1/chat/completions", "text/plain", b"{}".to_vec()).await;
    plain.refused(415, &["application/json"]);
    let reply = announced(&system.url, (32 << 20) + 1).await;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    assert!(reply.contains("33554432"), "the limit is named: {reply}");
}

/// What the router says to a body of this many bytes before any of them was sent, byte for byte.
async fn announced(url: &str, bytes: usize) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let address = url.trim_start_matches("http://");
    let mut connection = tokio::net::TcpStream::connect(address).await.expect("the router listens");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {bytes}\r\nconnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.expect("the router reads");
    let mut reply = String::new();
    let read = tokio::time::timeout(system_tests::STATE_MAX, connection.read_to_string(&mut reply)).await;
    read.expect("an answer in time").expect("an answer in UTF-8");
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_longer_than_the_context_is_refused_with_both_counts() {
    let system = System::start(vec![repos::echo(repos::ECHO)]).await;
    let body = json!({"repo": repos::ECHO, "format": "safetensors", "settings": {"context_length": 64}});
    system.api.register(&body).await.ok();
    system.api.until_ready(repos::ECHO).await;
    let body = json!({"model": repos::ECHO, "prompt": "x".repeat(100)});
    let answer = system.api.post("/v1/completions", &body).await;
    answer.refused(400, &["64", "10"]);
    assert_eq!(answer.body["error"]["code"], "context_length_exceeded", "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_ready_is_a_503_with_the_reason() {
    let unknown = repos::echo("acme/unknown")
        .without("config.json")
        .file("config.json", json!({"model_type": "brand_new", "architectures": ["BrandNew"]}).to_string());
    let system = System::start(vec![unknown]).await;
    let body = json!({"repo": "acme/unknown", "format": "safetensors"});
    let mut strict = body.clone();
    strict["require_engine"] = json!(true);
    system.api.register(&strict).await.refused(400, &["brand_new"]);
    system.api.register(&body).await.ok();
    let model = system.api.until_state("acme/unknown", &["unsupported"]).await;
    assert!(model["reason"].as_str().is_some_and(|r| r.contains("brand_new")), "{model}");
    let listed = system.api.get("/v1/models").await.ok();
    assert_eq!(listed["data"], json!([]), "only what is ready is listed");
    let chat = json!({"model": "acme/unknown", "messages": [{"role": "user", "content": "x"}]});
    system.api.chat(&chat).await.refused(503, &["acme/unknown", "brand_new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_come_back_and_are_made_when_absent() {
    let system = System::without_node(vec![]).await;
    let http = system.api.http();
    let url = format!("{}/v1/models", system.url);
    let response = http.get(&url).header("x-request-id", "mine-1").send().await.expect("an answer");
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    let response = http.get(&url).send().await.expect("an answer");
    assert!(!response.headers()["x-request-id"].is_empty());
    let evil = http.get(&url).header("host", "evil.example").send().await.expect("an answer");
    assert_eq!(evil.status(), 403, "another name for this machine is a rebinding page");
    let foreign = http.get(&url).header("origin", "https://evil.example").send().await.expect("an answer");
    assert_eq!(foreign.status(), 403, "pages of others may not read this");
}
