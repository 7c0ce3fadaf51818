//! Waiting for a place, being sent again, and being told of it.

use std::time::Instant;

use node_api::{FinishReason, GenerateEvent, ModelState};
use reqwest::Response;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::*;

fn chat(words: &str, stream: bool) -> Value {
    json!({"model": "org/tiny", "stream": stream, "messages": [{"role": "user", "content": words}]})
}

fn sending(world: &World, body: &Value) -> JoinHandle<Response> {
    let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(body);
    tokio::spawn(async move { request.send().await.unwrap() })
}

fn loaded(sequences_max: u32) -> ModelState {
    ModelState::Loaded {
        engine: "echo".into(),
        engine_version: "1.0.0".into(),
        device: "cpu".into(),
        context_length: 64,
        sequences_max,
        worker: 1,
    }
}

fn number(response: &Response, header: &str) -> u64 {
    response.headers()[header].to_str().unwrap().parse().unwrap()
}

fn worker_died() -> GenerateEvent {
    let mut error = refusal(500, "worker_died", true);
    error.worker_died = true;
    error.message = "worker 7 was ended by signal 11".into();
    GenerateEvent::Failed(error)
}

async fn waiting(world: &World, count: u32) {
    let wanted = format!("vllm:num_requests_waiting{{model_name=\"org/tiny\"}} {count}");
    in_time(&wanted, async {
        while !world.get("/metrics").await.1.as_str().unwrap().contains(&wanted) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_model_that_is_not_loaded_gets_one_request_and_the_others_learn_their_place_and_wait() {
    let (world, node) = World::ready().await;
    (0..3).for_each(|_| node.reply(Reply::Manual));
    let first = sending(&world, &chat("hi", false));
    let trigger = node.call().await;
    let second = sending(&world, &chat("hi", true));
    waiting(&world, 1).await;
    let third = sending(&world, &chat("hi", false));
    waiting(&world, 2).await;
    // The node has the one request, and says that its model is in a worker.
    trigger.events.send(started()).unwrap();
    node.set_state("org/tiny", loaded(2));
    let calls = [node.call().await, node.call().await];
    for call in calls.iter().chain([&trigger]) {
        words(&["done"]).into_iter().for_each(|event| call.events.send(event).unwrap());
    }
    drop((calls, trigger));
    let mut positions = Vec::new();
    for answer in [first, second, third] {
        let response = in_time("an answer", answer).await.unwrap();
        assert_eq!(response.status(), 200);
        let _: u64 = number(&response, "x-queue-wait-ms");
        positions.push(number(&response, "x-queue-position"));
        assert!(in_time("the body", response.text()).await.unwrap().contains("done"));
    }
    assert_eq!(positions, [0, 0, 1], "the second came when nobody waited");
}

#[tokio::test]
async fn a_full_queue_is_503_with_retry_after_and_the_place_it_would_have_had() {
    let world = World::with(|config| config.limits.queue_length = 1).await;
    world.register("org/tiny").await;
    let node = FakeNode::join(&world, "node-1").await;
    world.wait_for_state("org/tiny", "ready").await;
    node.reply(Reply::Manual);
    let started = Instant::now();
    let _first = sending(&world, &chat("hi", false));
    let _call = node.call().await;
    let _second = sending(&world, &chat("hi", false));
    waiting(&world, 1).await;
    for stream in [false, true] {
        let response = world.send("/v1/chat/completions", &chat("hi", stream)).await;
        // One was sent, without a wait; the next cannot have waited for longer than all of this takes.
        let retry_after = number(&response, "retry-after");
        assert!((1..=started.elapsed().as_secs() + 1).contains(&retry_after), "{retry_after}");
        assert_eq!(number(&response, "x-queue-position"), 1);
        let (status, body) = answer(response).await;
        assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (503, Some("overloaded")), "{body}");
    }
}

#[tokio::test]
async fn what_is_refused_before_it_waits_has_no_place() {
    let (world, _node) = World::ready().await;
    let response = world.send("/v1/chat/completions", &json!({"model": "org/tiny", "messages": []})).await;
    assert_eq!(response.status(), 400);
    assert!(!response.headers().contains_key("x-queue-position"));
}

#[tokio::test]
async fn a_request_whose_worker_died_before_its_first_token_is_sent_again_with_the_count() {
    let (world, node) = World::ready().await;
    node.reply_events(vec![started(), worker_died()]);
    node.reply_events(words(&["well"]));
    for stream in [false, true] {
        let response = world.send("/v1/chat/completions", &chat("hi", stream)).await;
        assert_eq!(response.status(), 200);
        let text = in_time("the body", response.text()).await.unwrap();
        assert!(text.contains("well") && !text.contains("error"), "{text}");
        assert_eq!(node.call().await.request.worker_deaths, 0);
        if !stream {
            assert_eq!(node.call().await.request.worker_deaths, 1);
            node.reply_events(words(&["well"]));
        }
    }
}

#[tokio::test]
async fn a_request_that_was_on_two_dying_workers_fails_alone_and_says_so() {
    let (world, node) = World::ready().await;
    node.reply_events(vec![started(), worker_died()]);
    node.reply_events(vec![worker_died()]);
    let response = world.send("/v1/chat/completions", &chat("hi", false)).await;
    assert_eq!(response.headers()["x-should-retry"], "false");
    let (status, body) = answer(response).await;
    assert_eq!(
        (status.as_u16(), body["error"]["code"].as_str()),
        (500, Some("request_quarantined")),
        "{body}"
    );
    assert!(body["error"]["message"].as_str().unwrap().contains("signal 11"), "the cause is named: {body}");
    assert_eq!([node.call().await, node.call().await].map(|c| c.request.worker_deaths), [0, 1]);
    // The next one is none the worse for it.
    assert_eq!(world.post("/v1/chat/completions", &chat("hi", false)).await.0, 200);
    assert_eq!(node.call().await.request.worker_deaths, 0);
}

#[tokio::test]
async fn a_stream_whose_worker_died_after_tokens_ends_with_the_cause() {
    let (world, node) = World::ready().await;
    node.reply_events(vec![started(), text("some"), worker_died()]);
    let response = world.send("/v1/chat/completions", &chat("hi", true)).await;
    let text = in_time("the body", response.text()).await.unwrap();
    assert!(text.contains("some") && text.contains("worker_died") && text.contains("signal 11"), "{text}");
    assert!(!text.contains("[DONE]"), "{text}");
    node.call().await;
    // Nobody sent it again: the next call is the next request's.
    world.send("/v1/chat/completions", &chat("another", false)).await;
    assert!(format!("{:?}", node.call().await.request.prompt).contains("another"));
}

#[tokio::test]
async fn a_load_that_fails_at_once_has_its_own_status_in_a_stream_too() {
    let (world, node) = World::ready().await;
    let mut error = refusal(507, "out_of_vram", false);
    error.numbers = Some((9000, 800));
    error.message = "it needs 9000 bytes, available are 800".into();
    node.reply_events(vec![GenerateEvent::Loading { progress: 0.0 }, GenerateEvent::Failed(error)]);
    let response = world.send("/v1/chat/completions", &chat("hi", true)).await;
    assert_eq!(response.headers()["x-should-retry"], "false");
    let (status, body) = answer(response).await;
    assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (507, Some("out_of_vram")), "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("9000") && message.contains("800"), "{message}");
}

#[tokio::test]
async fn a_sign_of_life_is_nothing_to_a_caller() {
    let (world, node) = World::ready().await;
    let mut events = vec![GenerateEvent::Alive, started(), GenerateEvent::Alive, text("well")];
    events.extend([GenerateEvent::Alive, finished(FinishReason::Stop, 1)]);
    node.reply_events(events);
    let (status, body) = world.post("/v1/chat/completions", &chat("hi", false)).await;
    assert_eq!((status.as_u16(), &body["choices"][0]["message"]["content"]), (200, &json!("well")));
}

#[tokio::test]
async fn requests_that_begin_alike_go_to_one_node_and_others_share_the_load() {
    let world = World::new().await;
    world.register("org/tiny").await;
    let nodes = [FakeNode::join(&world, "node-1").await, FakeNode::join(&world, "node-2").await];
    for node in &nodes {
        node.desired(|d| d.models.len() == 1).await;
        node.set_state("org/tiny", loaded(64));
    }
    in_time("both nodes to be loaded", async {
        let is_loaded = |n: &Value| n["state"]["state"] == "loaded" || n["state"] == "loaded";
        while !world.get("/api/models/org/tiny").await.1["nodes"].as_array().unwrap().iter().all(is_loaded) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let beginning = "the same beginning ".repeat(200);
    let mut marks = std::collections::BTreeSet::new();
    let mut counts = [0, 0];
    for tail in 0..8 {
        assert_eq!(
            world.post("/v1/chat/completions", &chat(&format!("{beginning}{tail}"), false)).await.0,
            200
        );
        tokio::select! {
            call = nodes[0].call() => { counts[0] += 1; marks.insert(call.request.affinity); }
            call = nodes[1].call() => { counts[1] += 1; marks.insert(call.request.affinity); }
        }
    }
    assert!(counts.contains(&8), "{counts:?}");
    assert!(marks.len() == 1 && !marks.contains(&0), "{marks:?}");
    // Those that are short run at once on both.
    nodes.iter().for_each(|node| (0..4).for_each(|_| node.reply(Reply::Manual)));
    let running: Vec<_> = (0..8).map(|_| sending(&world, &chat("hi", false))).collect();
    for node in &nodes {
        for _ in 0..4 {
            node.call().await;
        }
    }
    running.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn callers_do_not_share_what_is_cached() {
    let (world, node) = World::ready().await;
    let ask = async |key: Option<&str>| {
        let request =
            world.client.post(format!("{}/v1/chat/completions", world.url)).json(&chat("hi", false));
        let request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
        assert_eq!(request.send().await.unwrap().status(), 200);
        node.call().await.request.cache_salt
    };
    let (none, one, two) = (ask(None).await, ask(Some("one")).await, ask(Some("two")).await);
    assert!(none != one && one != two && none != two);
    assert_eq!((ask(None).await, ask(Some("one")).await), (none, one));
}

#[tokio::test]
async fn a_router_that_ends_says_so_to_those_who_come_and_lets_finish_what_runs() {
    let mut world = World::with(|config| config.limits.drain = DEADLINE).await;
    world.register("org/tiny").await;
    let node = FakeNode::join(&world, "node-1").await;
    world.wait_for_state("org/tiny", "ready").await;
    node.reply(Reply::Manual);
    let running = sending(&world, &chat("hi", true));
    let call = node.call().await;
    call.events.send(started()).unwrap();
    let mut running = in_time("the head", running).await.unwrap();
    world.shutdown.cancel();
    // A connection of its own: the old ones close when they have nothing to do.
    let stranger = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    let url = format!("{}/v1/chat/completions", world.url);
    let refused = in_time("an answer", stranger.post(url).json(&chat("hi", false)).send()).await.unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    let (status, body) = answer(refused).await;
    assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (503, Some("router_ending")), "{body}");
    let ready = in_time("ready", stranger.get(format!("{}/ready", world.url)).send()).await.unwrap();
    assert_eq!(ready.status(), 503);
    let health = in_time("health", stranger.get(format!("{}/health", world.url)).send()).await.unwrap();
    assert_eq!(health.status(), 200);
    call.events.send(text("late")).unwrap();
    call.events.send(finished(FinishReason::Stop, 1)).unwrap();
    drop(call);
    let mut seen = String::new();
    while let Some(part) = in_time("the rest", running.chunk()).await.unwrap() {
        seen += std::str::from_utf8(&part).unwrap();
    }
    assert!(seen.contains("late") && seen.ends_with("data: [DONE]\n\n"), "{seen}");
    world.stop().await;
}
