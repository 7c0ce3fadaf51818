//! Every error of `docs/error-codes.md` at the HTTP edge, with the status that stands there. The tables are read, so that
//! the document and the router stay together.

use std::collections::BTreeMap;
use std::path::Path;

use fixture_hub::Repo;
use model_formats::gguf::HeadWriter;
use node_api::*;
use serde_json::{Value, json};

use crate::support::*;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/error-codes.md");
    std::fs::read_to_string(path).unwrap()
}

/// The cells of the rows under a heading, without the tables' heads.
fn rows(document: &str, heading: &str) -> Vec<Vec<String>> {
    let section =
        document.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("no {heading}"));
    let section = section.split("\n## ").next().unwrap();
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let rows = section.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| ---"));
    rows.map(cells)
        .filter(|cells| cells[0] != "number" && cells[0] != "reason" && cells[0] != "code")
        .collect()
}

/// Words in backquotes.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// HTTP status of each of the ten codes.
fn statuses(document: &str) -> BTreeMap<String, u16> {
    let rows = rows(document, "The ten codes");
    assert_eq!(rows.len(), 10, "the ten codes are {rows:?}");
    let status = |cell: &str| {
        let digits = cell.split(|c: char| !c.is_ascii_digit()).find(|word| word.len() == 3);
        digits.unwrap_or_else(|| panic!("no status in `{cell}`")).parse().unwrap()
    };
    rows.iter().map(|row| (quoted(&row[1])[0].clone(), status(&row[2]))).collect()
}

fn chat(stream: bool) -> Value {
    json!({"model": "org/tiny", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

/// What an engine or a node says arrives whole: status, code, message, hint and numbers, before anything was sent as the
/// answer's status, and after that as the last event.
async fn arrives_whole(world: &World, node: &FakeNode, status: u16, code: &str) {
    let error = ApiError {
        status,
        code: code.to_owned(),
        message: format!("{code}: 1288 of 1024 bytes on cuda:0"),
        hint: Some("use a larger device".into()),
        numbers: Some((1288, 1024)),
        retry: false,
        ..ApiError::default()
    };
    let check = |body: &Value| {
        let told = &body["error"];
        assert_eq!(told["code"], code, "{body}");
        assert_eq!(told["message"], error.message, "{body}");
        assert_eq!(told["hint"], "use a larger device", "{body}");
        assert_eq!(told["numbers"], json!({"needed": 1288, "available": 1024}), "{body}");
    };
    for stream in [false, true] {
        node.reply(Reply::Refuse(error.clone()));
        let response = world.send("/v1/chat/completions", &chat(stream)).await;
        let should_retry = response.headers().get("x-should-retry").map(|v| v.to_str().unwrap().to_owned());
        let (found, body) = answer(response).await;
        assert_eq!(found.as_u16(), status, "{code}: {body}");
        assert_eq!(should_retry.as_deref(), (status >= 500).then_some("false"), "{code}");
        check(&body);
    }
    node.reply_events(vec![started(), text("half"), GenerateEvent::Failed(error.clone())]);
    let events = Events::read(world.send("/v1/chat/completions", &chat(true)).await).await;
    check(&serde_json::from_str(events.data.last().unwrap()).unwrap());
    // It can be tried again, but half an answer cannot be taken back.
    let passing = ApiError { retry: true, ..error.clone() };
    node.reply_events(vec![started(), text("half"), GenerateEvent::Failed(passing)]);
    let response = world.send("/v1/chat/completions", &chat(false)).await;
    assert_eq!(response.status().as_u16(), status, "{code}");
    assert_eq!(response.headers().contains_key("retry-after"), status >= 500, "{code}");
}

#[tokio::test]
async fn the_ten_codes_and_every_reason_reach_the_caller() {
    let document = document();
    let statuses = statuses(&document);
    let (world, node) = World::ready().await;
    for (code, status) in &statuses {
        if code == "OK" {
            assert_eq!(*status, 200);
            assert_eq!(world.send("/v1/chat/completions", &chat(false)).await.status(), 200);
        } else {
            arrives_whole(&world, &node, *status, &code.to_lowercase()).await;
        }
    }
    let reasons = rows(&document, "Reasons");
    assert!(reasons.len() > 20, "only {} reasons are listed", reasons.len());
    for row in reasons {
        let codes = quoted(&row[1]);
        assert!(!codes.is_empty() || row[1] == "any", "{row:?}");
        for reason in quoted(&row[0]) {
            for code in &codes {
                let status = statuses.get(code).unwrap_or_else(|| panic!("{code} is none of the ten codes"));
                arrives_whole(&world, &node, *status, &reason).await;
            }
        }
    }
}

/// Brings about what the router says by itself; `None`: no such code.
async fn provoke(code: &str) -> Option<(u16, Value)> {
    let url = |world: &World, path: &str| format!("{}{path}", world.url);
    let told = |(status, body): (reqwest::StatusCode, Value)| Some((status.as_u16(), body));
    match code {
        "request_quarantined" => {
            let (world, node) = World::ready().await;
            for _ in 0..2 {
                node.reply(Reply::Refuse(ApiError {
                    worker_died: true,
                    ..refusal(500, "worker_died", true)
                }));
            }
            let response = world.send("/v1/chat/completions", &chat(false)).await;
            assert_eq!(response.headers()["x-should-retry"], "false");
            told(answer(response).await)
        }
        "node_lost" => {
            let (world, node) = World::ready().await;
            node.reply(Reply::Manual);
            let request = world.client.post(url(&world, "/v1/chat/completions")).json(&chat(false));
            let asked = tokio::spawn(async move { answer(request.send().await.unwrap()).await });
            let call = node.call().await;
            call.events.send(started()).unwrap();
            call.events.send(text("half")).unwrap();
            let metrics =
                async || world.client.get(url(&world, "/metrics")).send().await.unwrap().text().await;
            let token = r#"vllm:generation_tokens_total{model_name="org/tiny"} 1"#;
            in_time("the token to pass", async {
                while !metrics().await.unwrap().lines().any(|line| line == token) {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            node.kill();
            told(in_time("the answer", asked).await.unwrap())
        }
        "overloaded" => {
            let world = World::with(|config| {
                config.limits.queue_length = 1;
                config.limits.queue_wait = std::time::Duration::from_millis(20);
            })
            .await;
            world.register("org/tiny").await;
            let node = FakeNode::join(&world, "node-1").await;
            world.wait_for_state("org/tiny", "ready").await;
            // One request loads the model; the others wait in the queue until they have waited for too long.
            node.reply(Reply::Manual);
            let request = world.client.post(url(&world, "/v1/chat/completions")).json(&chat(false));
            let _first = tokio::spawn(request.send());
            let call = node.call().await;
            let response = world.send("/v1/chat/completions", &chat(false)).await;
            assert!(response.headers().contains_key("retry-after"));
            drop(call);
            told(answer(response).await)
        }
        "model_not_ready" => {
            let world = World::new().await;
            world.register("org/tiny").await;
            told(world.post("/v1/chat/completions", &chat(false)).await)
        }
        "quantization_not_named" => {
            let world = World::new().await;
            let head = HeadWriter::default()
                .text("general.architecture", "llama")
                .number("llama.context_length", 8)
                .finish(&[]);
            world.hub.push(Repo::new("org/tiny").file("m-Q8_0.gguf", head));
            world.register("org/tiny:Q8_0").await;
            told(world.post("/v1/chat/completions", &chat(false)).await)
        }
        "model_not_found" => told(World::new().await.post("/v1/chat/completions", &chat(false)).await),
        "model_exists" => {
            let world = World::new().await;
            world.register("org/tiny").await;
            told(world.post("/api/models", &json!({"repo": "org/tiny"})).await)
        }
        "no_node" => told(World::new().await.post("/api/engines/reload", &json!({})).await),
        "node_not_found" => {
            let world = World::new().await;
            told(world.post("/api/engines/reload", &json!({"node": "absent"})).await)
        }
        "node_not_ready" => {
            let (world, node) = World::ready().await;
            world.drain(&node).await;
            told(world.post("/api/engines/reload", &json!({"node": "node-1"})).await)
        }
        "engine_not_found" => told(World::new().await.get("/api/engines/absent").await),
        "router_ending" => {
            let (world, node) = World::ready().await;
            node.reply(Reply::Manual);
            let request = world.client.post(url(&world, "/v1/chat/completions")).json(&chat(false));
            let _running = tokio::spawn(request.send());
            let call = node.call().await;
            world.shutdown.cancel();
            let found = world.post("/v1/chat/completions", &chat(false)).await;
            drop(call);
            told(found)
        }
        "host_not_allowed" | "origin_not_allowed" | "content_type_not_json" | "invalid_json" => {
            let world = World::new().await;
            let (header, value, body) = match code {
                "host_not_allowed" => ("host", "evil.example", "{}"),
                "origin_not_allowed" => ("origin", "http://evil.example", "{}"),
                "content_type_not_json" => ("content-type", "text/plain", "{}"),
                _ => ("x-request-id", "any", "{"),
            };
            let mut request = world.client.post(url(&world, "/v1/chat/completions")).header(header, value);
            if header != "content-type" {
                request = request.header("content-type", "application/json");
            }
            told(answer(request.body(body).send().await.unwrap()).await)
        }
        "body_too_large" => {
            let world = World::with(|config| config.limits.body_bytes_max = 10).await;
            told(world.post("/v1/chat/completions", &chat(false)).await)
        }
        "unknown_url" => told(World::new().await.get("/v1/nothing").await),
        "method_not_allowed" => told(World::new().await.get("/v1/chat/completions").await),
        _ => None,
    }
}

#[tokio::test]
async fn what_node_and_router_say_by_themselves_is_as_the_document_says() {
    let rows = rows(&document(), "Outside the engine");
    assert!(rows.len() > 20, "only {} codes are listed", rows.len());
    let (world, node) = World::ready().await;
    for row in rows {
        let (code, status) = (&quoted(&row[0])[0], row[1].parse::<u16>().unwrap());
        match row[2].as_str() {
            "node" => arrives_whole(&world, &node, status, code).await,
            "router" => {
                let (found, body) = in_time(code, provoke(code)).await.unwrap_or_else(|| {
                    panic!("the document has `{code}`, and this test does not know how to bring it about")
                });
                let told = (found, body["error"]["code"].as_str().unwrap_or_default());
                assert_eq!(told, (status, code.as_str()), "{body}");
                assert!(body["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{body}");
            }
            other => panic!("`{other}` says nothing by itself"),
        }
    }
}
