//! `/v1/embeddings` from request to answer.

use fixture_hub::Repo;
use model_formats::gguf::HeadWriter;
use node_api::{EngineState, GenerateEvent, ModelState, Prompt};
use serde_json::{Value, json};

use crate::support::*;

fn body(change: Value) -> Value {
    let mut body = json!({"model": "org/tiny", "input": "say"});
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// With a worker that takes several at once.
async fn loaded() -> (World, FakeNode) {
    let (world, node) = World::ready().await;
    let state = ModelState::Loaded {
        engine: "echo".into(),
        engine_version: "1.0.0".into(),
        device: "cpu".into(),
        context_length: 64,
        sequences_max: 4,
        worker: 1,
    };
    node.set_state("org/tiny", state);
    world.wait_for_state("org/tiny", "loaded").await;
    (world, node)
}

#[tokio::test]
async fn a_text_becomes_the_numbers_of_the_node() {
    let (world, node) = World::ready().await;
    node.reply_events(embedded(3, &[0.6, -0.8]));
    let (status, answer) = world.post("/v1/embeddings", &body(json!({"user": "somebody"}))).await;
    assert_eq!(status, 200, "{answer}");
    let expected = json!({
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.6, -0.8]}],
        "model": "org/tiny",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    });
    // Through text, for the numbers are shorter than f64 has them.
    assert_eq!(answer.to_string(), expected.to_string());
    let request = node.call().await.request;
    assert!(request.embed);
    assert_eq!(request.prompt, Prompt::Text { text: "say".into(), literal: Vec::new() });
}

#[tokio::test]
async fn several_inputs_keep_their_order_whichever_is_ready_first() {
    let (world, node) = loaded().await;
    for _ in 0..3 {
        node.reply(Reply::Manual);
    }
    let request = body(json!({"input": [[1], [2, 3], [4]]}));
    let answers = async {
        let mut calls = Vec::new();
        for _ in 0..3 {
            calls.push(node.call().await);
        }
        for call in calls.into_iter().rev() {
            let Prompt::Tokens(ids) = &call.request.prompt else { panic!("{:?}", call.request.prompt) };
            let (count, first) = (ids.len() as u32, ids[0] as f32);
            embedded(count, &[first]).into_iter().for_each(|event| call.events.send(event).unwrap());
        }
    };
    let (answer, ()) = tokio::join!(world.post("/v1/embeddings", &request), answers);
    let (status, answer) = answer;
    assert_eq!(status, 200, "{answer}");
    let numbers: Vec<_> = (0..3).map(|n| answer["data"][n]["embedding"][0].as_f64().unwrap()).collect();
    assert_eq!(numbers, [1.0, 2.0, 4.0]);
    assert_eq!(answer["usage"], json!({"prompt_tokens": 4, "total_tokens": 4}));
}

#[tokio::test]
async fn base64_is_the_bytes_of_little_endian_floats() {
    let (world, node) = World::ready().await;
    node.reply_events(embedded(1, &[1.0, -2.0]));
    let (_, answer) = world.post("/v1/embeddings", &body(json!({"encoding_format": "base64"}))).await;
    assert_eq!(answer["data"][0]["embedding"], "AACAPwAAAMA=");
}

#[tokio::test]
async fn dimensions_have_to_be_the_models() {
    let (world, node) = World::ready().await;
    node.reply_events(embedded(1, &[0.6, 0.8]));
    let (status, _) = world.post("/v1/embeddings", &body(json!({"dimensions": 2}))).await;
    assert_eq!(status, 200);
    node.reply_events(embedded(1, &[0.6, 0.8]));
    let (status, answer) = world.post("/v1/embeddings", &body(json!({"dimensions": 1}))).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("dimensions")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("2 numbers"), "{answer}");
}

#[tokio::test]
async fn an_engine_without_embeddings_is_not_asked() {
    let (world, node) = World::ready().await;
    assert_eq!(world.get("/api/models/org/tiny").await.1["tasks"], json!(["generate", "embed"]));
    node.change(|status| status.engines[0].capabilities.clear());
    in_time("the model to have no embeddings", async {
        while world.get("/api/models/org/tiny").await.1["tasks"] != json!(["generate"]) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (status, answer) = world.post("/v1/embeddings", &body(json!({}))).await;
    let error = &answer["error"];
    assert_eq!(
        (status.as_u16(), &error["code"], &error["param"]),
        (400, &json!("no_embeddings"), &json!("model"))
    );
    assert!(error["message"].as_str().unwrap().contains("echo 1.0.0"), "{answer}");
}

#[tokio::test]
async fn a_gguf_file_says_which_of_the_two_it_is_for() {
    let world = World::new().await;
    let head =
        || HeadWriter::default().text("general.architecture", "llama").number("llama.context_length", 64);
    let embeds = head().number("llama.pooling_type", 3).number("llama.embedding_length", 96);
    for (repo, head) in [("org/answers", head()), ("org/embeds", embeds)] {
        world.hub.push(Repo::new(repo).file("model.gguf", head.finish(&[])));
        world.register(repo).await;
    }
    let engine =
        node_api::EngineSummary { id: "echo".into(), state: EngineState::Available, ..engines().remove(0) };
    let node = FakeNode::join(&world, "node-1").await;
    node.change(|status| status.engines = vec![engine]);
    world.wait_for_state("org/embeds", "ready").await;
    for (path, tasks) in [("org/embeds", json!(["embed"])), ("org/answers", json!(["generate"]))] {
        assert_eq!(world.get(&format!("/api/models/{path}")).await.1["tasks"], tasks);
    }
    // Known without a node: this one would never answer.
    let short = body(json!({"model": "org/embeds", "dimensions": 32}));
    let (status, answer) = world.post("/v1/embeddings", &short).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("dimensions")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("96 numbers"), "{answer}");
    let (status, answer) = world.post("/v1/embeddings", &body(json!({"model": "org/answers"}))).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("no_embeddings")), "{answer}");
    for (path, body) in [
        ("/v1/completions", json!({"model": "org/embeds", "prompt": "a"})),
        (
            "/v1/chat/completions",
            json!({"model": "org/embeds", "messages": [{"role": "user", "content": "a"}]}),
        ),
    ] {
        let (status, answer) = world.post(path, &body).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("no_generation")), "{answer}");
    }
}

#[tokio::test]
async fn an_input_whose_worker_dies_is_sent_again_alone() {
    let (world, node) = World::ready().await;
    node.reply_events(embedded(1, &[1.0]));
    let died = node_api::ApiError { worker_died: true, ..refusal(500, "worker_died", true) };
    node.reply_events(vec![started(), GenerateEvent::Failed(died)]);
    node.reply_events(embedded(1, &[1.0]));
    let (status, answer) = world.post("/v1/embeddings", &body(json!({"input": ["a", "b"]}))).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(node.call().await.request);
    }
    let again: Vec<_> = calls.iter().filter(|request| request.worker_deaths == 1).collect();
    assert_eq!(again.len(), 1, "one was sent twice");
}

#[tokio::test]
async fn a_refusal_names_the_input_and_ends_the_others() {
    let (world, node) = loaded().await;
    let error = failed(400, "context_length_exceeded", false);
    node.reply(Reply::Manual);
    node.reply(Reply::Manual);
    let request = body(json!({"input": ["good", "too long"]}));
    let answers = async {
        let (one, two) = (node.call().await, node.call().await);
        let is_good =
            |call: &Call| call.request.prompt == Prompt::Text { text: "good".into(), literal: Vec::new() };
        let (good, long) = if is_good(&one) { (one, two) } else { (two, one) };
        long.events.send(error).unwrap();
        embedded(1, &[1.0]).into_iter().for_each(|event| good.events.send(event).unwrap());
    };
    let (answer, ()) = tokio::join!(world.post("/v1/embeddings", &request), answers);
    let (status, answer) = answer;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("input[1]")), "{answer}");
    let (_, text) = world.get("/metrics").await;
    let text = text.as_str().unwrap();
    assert!(
        text.contains(r#"vllm:request_success_total{finished_reason="error",model_name="org/tiny"} 1"#),
        "{text}"
    );
}

#[tokio::test]
async fn a_caller_who_goes_ends_its_inputs_on_the_node() {
    let (world, node) = World::ready().await;
    node.reply(Reply::Manual);
    let url = format!("{}/v1/embeddings", world.url);
    let request = world.client.post(url).json(&body(json!({})));
    let asked = tokio::spawn(async move { request.send().await });
    let call = node.call().await;
    asked.abort();
    in_time("the router to drop the stream", call.dropped.cancelled()).await;
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let (world, node) = World::ready().await;
    for (change, param) in [
        (json!({"input": ""}), "input"),
        (json!({"encoding_format": "f16"}), "encoding_format"),
        (json!({"dimensions": -1}), "dimensions"),
        (json!({"stream": true}), "stream"),
    ] {
        let (status, answer) = world.post("/v1/embeddings", &body(change)).await;
        assert_eq!((status.as_u16(), answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    }
    let (status, answer) = world.post("/v1/embeddings", &body(json!({"model": "org/none"}))).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("model_not_found")));
    // A node that finishes without one.
    node.reply_events(words(&[]));
    let (status, answer) = world.post("/v1/embeddings", &body(json!({}))).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (502, &json!("no_result")), "{answer}");
}
