//! When a node, a model or a caller fails a request.

use node_api::{FinishReason, GenerateEvent};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::*;

fn chat(stream: bool) -> Value {
    json!({"model": "org/tiny", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

#[tokio::test]
async fn an_unknown_model_is_404() {
    let world = World::new().await;
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({"model": "no/such", "messages": [{"role": "user", "content": "hi"}]}),
        ),
        ("/v1/completions", json!({"model": "no/such", "prompt": "hi"})),
    ] {
        let (status, answer) = world.post(path, &body).await;
        assert_eq!((status.as_u16(), answer["error"]["code"].as_str()), (404, Some("model_not_found")));
        assert!(answer["error"]["message"].as_str().unwrap().contains("no/such"), "{answer}");
    }
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_400_with_both_counts() {
    let (world, node) = World::ready().await;
    for stream in [false, true] {
        let mut error = refusal(400, "context_length_exceeded", false);
        error.message = "the prompt has 90 tokens, the context 64".into();
        node.reply_events(vec![GenerateEvent::Failed(error)]);
        let (status, answer) = world.post("/v1/chat/completions", &chat(stream)).await;
        assert_eq!(
            (status.as_u16(), answer["error"]["code"].as_str()),
            (400, Some("context_length_exceeded"))
        );
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("90") && message.contains("64"), "{message}");
        assert_eq!(answer["error"]["param"], "messages");
    }
}

#[tokio::test]
async fn a_value_that_only_the_engine_can_judge_is_refused_by_the_requests_name_of_it() {
    let (world, node) = World::ready().await;
    let mut error = refusal(400, "invalid_sampling", false);
    error.message = "stop_tokens names token 9000; the model has the tokens below 64".into();
    node.reply_events(vec![GenerateEvent::Failed(error)]);
    let body = json!({"model": "org/tiny", "prompt": "x", "stop_token_ids": [9000]});
    let (status, answer) = world.post("/v1/completions", &body).await;
    assert_eq!(
        (status.as_u16(), answer["error"]["param"].as_str()),
        (400, Some("stop_token_ids")),
        "{answer}"
    );
    assert!(
        answer["error"]["message"].as_str().unwrap().contains("`stop_token_ids` names token 9000"),
        "{answer}"
    );
}

#[tokio::test]
async fn the_status_of_an_engines_error_reaches_the_caller() {
    let (world, node) = World::ready().await;
    for (status, code) in [(507, "out_of_memory"), (500, "internal"), (504, "timeout"), (503, "load_failed")]
    {
        node.reply(Reply::Refuse(refusal(status, code, false)));
        let response = world.send("/v1/chat/completions", &chat(false)).await;
        assert_eq!(response.headers()["x-should-retry"], "false");
        let (found, answer) = answer(response).await;
        assert_eq!((found.as_u16(), answer["error"]["code"].as_str()), (status, Some(code)));
        assert_eq!(answer["error"]["hint"], "do something");
    }
}

#[tokio::test]
async fn what_may_be_tried_again_is_tried_again_before_anything_is_sent() {
    let (world, node) = World::ready().await;
    node.reply(Reply::Refuse(refusal(503, "worker_lost", true)));
    node.reply_events(vec![started(), failed(503, "worker_lost", true)]);
    node.reply_events(words(&["third"]));
    let (status, answer) = world.post("/v1/chat/completions", &chat(false)).await;
    assert_eq!(
        (status.as_u16(), answer["choices"][0]["message"]["content"].as_str()),
        (200, Some("third")),
        "{answer}"
    );
    for _ in 0..5 {
        node.reply(Reply::Refuse(refusal(503, "worker_lost", true)));
    }
    let response = world.send("/v1/chat/completions", &chat(false)).await;
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(response.status(), 503);
}

#[tokio::test]
async fn a_lost_node_is_replaced_by_another_before_anything_is_sent() {
    let (world, first) = World::ready().await;
    first.reply(Reply::Manual);
    let sending = tokio::spawn({
        let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&chat(false));
        async move { answer(request.send().await.unwrap()).await }
    });
    let call = first.call().await;
    call.events.send(started()).unwrap();
    let second = FakeNode::join(&world, "node-2").await;
    second.desired(|d| d.models.len() == 1).await;
    second.reply_events(words(&["from", " two"]));
    in_time("the second node to be ready", async {
        while world.get("/api/nodes").await.1["nodes"][1]["models_ready"] != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    first.kill();
    let (status, body) = in_time("the answer", sending).await.unwrap();
    assert_eq!(
        (status, &body["choices"][0]["message"]["content"]),
        (StatusCode::OK, &json!("from two")),
        "{body}"
    );
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_and_no_done() {
    let (world, node) = World::ready().await;
    node.reply_events(vec![started(), text("half"), failed(500, "engine_failed", true)]);
    let events = Events::read(world.send("/v1/chat/completions", &chat(true)).await).await;
    let last: Value = serde_json::from_str(events.data.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "engine_failed");
    assert!(events.data.iter().any(|d| d.contains("half")));
    assert!(!events.data.iter().any(|d| d == "[DONE]"));
}

/// A stream that has begun with this word: the node's side of it, and the caller's.
async fn streaming(world: &World, node: &FakeNode, word: &str) -> (Call, reqwest::Response) {
    node.reply(Reply::Manual);
    let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&chat(true));
    let response = tokio::spawn(async move { request.send().await.unwrap() });
    let call = node.call().await;
    call.events.send(started()).unwrap();
    call.events.send(text(word)).unwrap();
    (call, in_time("the head", response).await.unwrap())
}

#[tokio::test]
async fn a_node_lost_in_the_middle_of_a_stream_is_an_error_event() {
    let (world, node) = World::ready().await;
    let (_call, mut response) = streaming(&world, &node, "half").await;
    let mut seen = String::new();
    while !seen.contains("half") {
        seen += std::str::from_utf8(&in_time("the first token", response.chunk()).await.unwrap().unwrap())
            .unwrap();
    }
    node.kill();
    while let Some(chunk) = in_time("the error", response.chunk()).await.unwrap() {
        seen += std::str::from_utf8(&chunk).unwrap();
    }
    assert!(seen.contains("node_lost") && !seen.contains("[DONE]"), "{seen}");
}

#[tokio::test]
async fn a_node_that_ends_in_order_still_delivers_its_last_answers() {
    let (world, node) = World::ready().await;
    let (call, mut response) = streaming(&world, &node, "first").await;
    node.leave();
    // Each word is waited for, so that the router has time to see that the node has no more status.
    let mut seen = String::new();
    for word in (0..50).map(|n| format!("word-{n}.")) {
        call.events.send(text(&word)).unwrap();
        while !seen.contains(&word) {
            let part = in_time("a word", response.chunk()).await.unwrap();
            seen += std::str::from_utf8(&part.unwrap_or_else(|| panic!("ended at {word}: {seen}"))).unwrap();
        }
    }
    call.events.send(finished(FinishReason::Stop, 51)).unwrap();
    drop(call);
    while let Some(part) = in_time("the end", response.chunk()).await.unwrap() {
        seen += std::str::from_utf8(&part).unwrap();
    }
    assert!(seen.ends_with("data: [DONE]\n\n"), "{seen}");
    world.wait_for_nodes(0).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_the_sequence() {
    let (world, node) = World::ready().await;
    for stream in [true, false] {
        node.reply(Reply::Manual);
        let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&chat(stream));
        let task = tokio::spawn(async move {
            let response = request.send().await.unwrap();
            response.text().await.unwrap()
        });
        let call = node.call().await;
        call.events.send(started()).unwrap();
        call.events.send(text("some")).unwrap();
        assert!(!call.dropped.is_cancelled());
        task.abort();
        in_time("the node to be told", call.dropped.cancelled()).await;
    }
}

#[tokio::test]
async fn comments_keep_a_stream_alive_while_the_model_loads() {
    let world = World::with(|config| config.limits.keep_alive = std::time::Duration::from_millis(20)).await;
    world.register("org/tiny").await;
    let node = FakeNode::join(&world, "node-1").await;
    world.wait_for_state("org/tiny", "ready").await;
    node.reply(Reply::Manual);
    let sending = tokio::spawn({
        let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&chat(true));
        async move { request.send().await.unwrap() }
    });
    let call = node.call().await;
    call.events.send(GenerateEvent::Loading { progress: 0.5 }).unwrap();
    let mut response = in_time("the head", sending).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut seen = String::new();
    while !(seen.contains(": loading the model, 50 %") && seen.contains(": waiting")) {
        seen += std::str::from_utf8(&in_time("comments", response.chunk()).await.unwrap().unwrap()).unwrap();
    }
    for event in words(&["loaded"]) {
        call.events.send(event).unwrap();
    }
    drop(call);
    while let Some(chunk) = in_time("the rest", response.chunk()).await.unwrap() {
        seen += std::str::from_utf8(&chunk).unwrap();
    }
    assert!(seen.contains("loaded") && seen.ends_with("data: [DONE]\n\n"), "{seen}");
}

#[tokio::test]
async fn a_full_router_answers_503_and_gives_places_back() {
    let world = World::with(|config| {
        config.limits.queue_length = 1;
    })
    .await;
    world.register("org/tiny").await;
    let node = FakeNode::join(&world, "node-1").await;
    world.wait_for_state("org/tiny", "ready").await;
    node.reply(Reply::Manual);
    let send = || {
        let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&chat(false));
        tokio::spawn(async move { answer(request.send().await.unwrap()).await })
    };
    let first = send();
    let call = node.call().await;
    // One of the two waits, the other finds the queue full.
    let (second, third) = (send(), send());
    let (refused, waiting) =
        in_time("one refusal", futures_util::future::select(second, third)).await.factor_first();
    let (status, body) = refused.unwrap();
    assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (503, Some("overloaded")), "{body}");
    for event in words(&["one"]) {
        call.events.send(event).unwrap();
    }
    drop(call);
    assert_eq!(in_time("the first", first).await.unwrap().0, 200);
    assert_eq!(in_time("the waiting one", waiting).await.unwrap().0, 200);
}

#[tokio::test]
async fn a_wait_that_takes_too_long_is_503() {
    let world = World::with(|config| {
        config.limits.queue_wait = std::time::Duration::from_millis(50);
    })
    .await;
    world.register("org/tiny").await;
    let node = FakeNode::join(&world, "node-1").await;
    world.wait_for_state("org/tiny", "ready").await;
    node.reply(Reply::Manual);
    let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&chat(false));
    let first = tokio::spawn(request.send());
    let call = node.call().await;
    let response = world.send("/v1/chat/completions", &chat(false)).await;
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(answer(response).await.0, 503);
    call.events.send(finished(FinishReason::Stop, 0)).unwrap();
    drop(call);
    assert_eq!(in_time("the first", first).await.unwrap().unwrap().status(), 200);
}
