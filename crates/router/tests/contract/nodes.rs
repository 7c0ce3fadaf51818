//! Joining, being followed, and being gone.

use node_api::transport::DialError;
use node_api::{DeviceInfo, Join, PROTOCOL_VERSION, UPGRADE_TOKEN};
use serde_json::json;

use crate::support::{FakeNode, Reply, World, answer, join_as, ready, words};

fn reason(result: Result<(), DialError>) -> (u16, String, String) {
    match result {
        Err(DialError::Refused { reason, .. }) => {
            (reason.status, reason.code, format!("{} {}", reason.message, reason.hint.unwrap_or_default()))
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn a_wrong_secret_is_401() {
    let world = World::new().await;
    let (status, code, _) = reason(FakeNode::try_join(&world, "0000000000000000", &join_as("a")).await);
    assert_eq!((status, code.as_str()), (401, "join_secret_wrong"));
    assert_eq!(world.get("/api/nodes").await.1["nodes"], json!([]));
}

#[tokio::test]
async fn another_protocol_version_is_refused_with_both() {
    let world = World::new().await;
    let join = Join { protocol_version: PROTOCOL_VERSION + 41, ..join_as("a") };
    let (status, code, words) = reason(FakeNode::try_join(&world, &world.secret, &join).await);
    assert_eq!((status, code.as_str()), (400, "protocol_version"));
    let (theirs, ours) =
        (format!("version {}", PROTOCOL_VERSION + 41), format!("version {PROTOCOL_VERSION}"));
    assert!(words.contains(&theirs) && words.contains(&ours), "{words}");
    // Another version in the upgrade itself.
    let request = world.client.post(format!("{}/node/v1/link", world.url)).json(&join);
    let request = request.header("connection", "upgrade").header("upgrade", "llm-router-node/42");
    let (status, body) = answer(request.send().await.unwrap()).await;
    assert_eq!(status, 426);
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("llm-router-node/42") && message.contains(UPGRADE_TOKEN), "{message}");
}

#[tokio::test]
async fn a_node_without_gpu_is_refused_unless_allowed() {
    let world = World::with(|config| config.allow_cpu = false).await;
    let (status, code, words) = reason(FakeNode::try_join(&world, &world.secret, &join_as("a")).await);
    assert_eq!((status, code.as_str()), (403, "gpu_required"));
    assert!(words.contains("--allow-cpu") && words.contains("a-name"), "{words}");
    let mut with_gpu = join_as("b");
    let gpu = DeviceInfo {
        id: "cuda:0".into(),
        kind: "cuda".into(),
        name: "Some GPU".into(),
        memory_total: 1 << 34,
        driver: Some("580.1".into()),
    };
    with_gpu.node.devices.push(gpu);
    let _node = FakeNode::join_with(&world, with_gpu, ready()).await;
    world.wait_for_nodes(1).await;
    let (_, nodes) = world.get("/api/nodes").await;
    assert_eq!(nodes["nodes"][0]["cpu_only"], false);
    assert_eq!(nodes["nodes"][0]["devices"][1]["driver"], "580.1");
}

#[tokio::test]
async fn what_is_no_join_is_refused() {
    let world = World::new().await;
    let mut nameless = join_as("a");
    nameless.node.name = String::new();
    let (status, code, _) = reason(FakeNode::try_join(&world, &world.secret, &nameless).await);
    assert_eq!((status, code.as_str()), (400, "node_name"));
    let send = |body: String| {
        let request = world
            .client
            .post(format!("{}/node/v1/link", world.url))
            .header("content-type", "application/json");
        let request = request.header("connection", "upgrade").header("upgrade", UPGRADE_TOKEN);
        request.bearer_auth(&world.secret).body(body).send()
    };
    let nodeless = json!({"protocol_version": PROTOCOL_VERSION}).to_string();
    let empty = json!({"protocol_version": PROTOCOL_VERSION, "node": {}}).to_string();
    for body in ["", "{", "[]", &nodeless, &empty] {
        let (status, answer) = answer(send(body.to_owned()).await.unwrap()).await;
        assert_eq!(status, 400, "{body}: {answer}");
    }
}

#[tokio::test]
async fn nodes_and_engines_are_shown() {
    let world = World::new().await;
    let _node = FakeNode::join(&world, "node-1").await;
    world.wait_for_nodes(1).await;
    let (_, nodes) = world.get("/api/nodes").await;
    let node = &nodes["nodes"][0];
    assert_eq!(
        (node["id"].as_str(), node["name"].as_str(), node["cpu_only"].as_bool()),
        (Some("node-1"), Some("node-1-name"), Some(true))
    );
    let (_, engines) = world.get("/api/engines").await;
    assert_eq!(engines["engines"][0]["id"], "echo");
    assert_eq!(engines["engines"][0]["state"], "available");
    assert_eq!(engines["engines"][0]["node_id"], "node-1");
}

#[tokio::test]
async fn a_killed_node_is_gone_and_its_model_not_ready() {
    let (world, node) = World::ready().await;
    node.kill();
    world.wait_for_nodes(0).await;
    let response = world
        .send(
            "/v1/chat/completions",
            &json!({"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]}),
        )
        .await;
    assert!(response.headers().contains_key("retry-after"));
    let (status, body) = answer(response).await;
    assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (503, Some("model_not_ready")));
    assert!(body["error"]["message"].as_str().unwrap().contains("no node is connected"), "{body}");
}

#[tokio::test]
async fn when_the_last_node_is_ending_that_is_the_reason() {
    let (world, node) = World::ready().await;
    node.drain();
    world.wait_for_state("org/tiny", "no_node").await;
    let body = json!({"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]});
    let (status, body) = world.post("/v1/chat/completions", &body).await;
    assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (503, Some("model_not_ready")));
    assert!(body["error"]["message"].as_str().unwrap().contains("the connected nodes are ending"), "{body}");
}

#[tokio::test]
async fn a_node_that_joins_again_takes_its_own_place() {
    let (world, _old) = World::ready().await;
    let new = FakeNode::join(&world, "node-1").await;
    new.desired(|d| d.models.len() == 1).await;
    world.wait_for_state("org/tiny", "ready").await;
    world.wait_for_nodes(1).await;
    new.reply_events(words(&["new"]));
    let body = json!({"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]});
    let (status, answer) = world.post("/v1/chat/completions", &body).await;
    assert_eq!(
        (status.as_u16(), answer["choices"][0]["message"]["content"].as_str()),
        (200, Some("new")),
        "{answer}"
    );
}

#[tokio::test]
async fn a_draining_node_gets_no_requests() {
    let (world, first) = World::ready().await;
    let second = FakeNode::join(&world, "node-2").await;
    second.desired(|d| d.models.len() == 1).await;
    world.drain(&first).await;
    crate::support::in_time("the second node to be ready", async {
        while world.get("/api/nodes").await.1["nodes"][1]["models_ready"] != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let body = json!({"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(world.post("/v1/chat/completions", &body).await.0, 200);
    second.call().await;
}

#[tokio::test]
async fn a_node_of_the_same_process_is_taken_as_any_other() {
    let world = World::new().await;
    world.register("org/tiny").await;
    let node = FakeNode::join_local(&world, join_as("here"), ready()).unwrap();
    world.wait_for_state("org/tiny", "ready").await;
    let question = json!({"model": "org/tiny", "prompt": "hi"});
    let ask = || world.post("/v1/completions", &question);
    node.reply_events(words(&["Hello", " you"]));
    let (status, answer) = ask().await;
    assert_eq!(
        (status.as_u16(), answer["choices"][0]["text"].as_str()),
        (200, Some("Hello you")),
        "{answer}"
    );

    // Its end while an answer is on its way is a node that is gone, here too.
    node.reply(Reply::Manual);
    let (answer, ()) = tokio::join!(ask(), async {
        let call = node.call().await;
        assert_eq!(call.request.model, "org/tiny");
        node.kill();
    });
    assert_eq!(answer.0, 503, "{}", answer.1);
    world.wait_for_nodes(0).await;
}

#[tokio::test]
async fn a_node_of_the_same_process_is_refused_as_any_other() {
    let refused = |world: &World, join: Join| match FakeNode::join_local(world, join, ready()) {
        Err(error) => (error.status, error.code, error.hint.unwrap_or_default()),
        Ok(_) => panic!("it was taken"),
    };
    let mut world = World::with(|config| config.allow_cpu = false).await;
    let (status, code, hint) = refused(&world, join_as("a"));
    assert_eq!((status, code.as_str()), (403, "gpu_required"));
    assert!(hint.contains("--allow-cpu"), "{hint}");
    let mut nameless = join_as("b");
    nameless.node.name = String::new();
    assert_eq!(refused(&world, nameless).1, "node_name");
    assert_eq!(world.get("/api/nodes").await.1["nodes"], json!([]));

    world.config.allow_cpu = true;
    world.restart().await;
    world.shutdown.cancel();
    assert_eq!(refused(&world, join_as("a")).1, "router_ending");
}
