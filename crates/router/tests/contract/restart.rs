//! What outlives a router, and how one ends.

use serde_json::json;

use crate::support::{FakeNode, Reply, World, finished, in_time, started, text};

#[tokio::test]
async fn a_restarted_router_knows_its_models_without_the_hub() {
    let mut world = World::new().await;
    world.hub.push(fixture_hub::Repo::from_dir("org/demo", &crate::support::demo_model()).unwrap());
    let before = world.register("org/demo").await;
    world.hub.remove("org/demo");
    world.restart().await;
    world.hub.forget_requests();
    let node = FakeNode::join(&world, "node-1").await;
    let after = world.wait_for_state("org/demo", "ready").await;
    assert_eq!((&after["fingerprint"], &after["created"]), (&before["fingerprint"], &before["created"]));
    let body = json!({"model": "org/demo", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(world.post("/v1/chat/completions", &body).await.0, 200);
    let node_api::Prompt::Text { text, literal } = node.call().await.request.prompt else {
        panic!("text is sent")
    };
    assert!(
        text.contains("<|start|>user<|message|>hi<|end|>") && !literal.is_empty(),
        "the model's own template: {text}"
    );
    assert!(world.hub.requests().is_empty());
}

#[tokio::test]
async fn a_running_request_may_finish_while_the_router_ends() {
    let (mut world, node) = World::ready().await;
    node.reply(Reply::Manual);
    let body = json!({"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]});
    let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&body);
    let answer = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    let call = node.call().await;
    call.events.send(started()).unwrap();
    world.shutdown.cancel();
    call.events.send(text("late")).unwrap();
    call.events.send(finished(node_api::FinishReason::Stop, 1)).unwrap();
    let answer = in_time("the answer", answer).await.unwrap();
    assert!(answer.contains("late"), "{answer}");
    world.stop().await;
}

#[tokio::test]
async fn a_request_that_does_not_end_is_cut_after_the_drain_time() {
    let (mut world, node) = World::ready().await;
    node.reply(Reply::Manual);
    let body = json!({"model": "org/tiny", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let request = world.client.post(format!("{}/v1/chat/completions", world.url)).json(&body);
    let answer = tokio::spawn(async move { request.send().await.unwrap().text().await });
    let call = node.call().await;
    call.events.send(started()).unwrap();
    call.events.send(text("first")).unwrap();
    world.stop().await;
    let answer = in_time("the answer", answer).await.unwrap().unwrap();
    assert!(answer.contains("router_ending") && !answer.contains("[DONE]"), "{answer}");
    in_time("the node to be told", call.dropped.cancelled()).await;
}
