//! `/api/engines`: showing engines and commanding them, on one node, on all, and on some that fail.

use node_api::*;
use serde_json::{Value, json};

use crate::support::*;

async fn heard(world: &World, count: usize) {
    in_time("the nodes to be heard", async {
        loop {
            let (_, list) = world.get("/api/nodes").await;
            let nodes = list["nodes"].as_array().unwrap();
            if nodes.len() == count && nodes.iter().all(|n| n["state"] == "connected") {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn code(answer: &(reqwest::StatusCode, Value)) -> (u16, &str) {
    (answer.0.as_u16(), answer.1["error"]["code"].as_str().unwrap_or_default())
}

#[tokio::test]
async fn an_engine_is_shown_with_its_versions_failed_trials_and_models() {
    let (world, node) = World::ready().await;
    node.change(|status| {
        let newer = EngineSummary {
            version: "1.1.0".into(),
            sha256: "1".repeat(64),
            failed_trials: vec![FailedTrial {
                model: "org/tiny".into(),
                reason: "its trial step gave no token".into(),
                at: 7,
            }],
            ..engines()[0].clone()
        };
        let refused = EngineSummary {
            id: "broken".into(),
            state: EngineState::Refused { reason: "needs ABI 2".into() },
            ..engines()[0].clone()
        };
        status.engines.extend([newer, refused]);
        status.models[0].replicas = vec![replica()];
    });
    in_time("three engines", async {
        while world.get("/api/engines").await.1["engines"].as_array().unwrap().len() != 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (_, list) = world.get("/api/engines").await;
    assert_eq!(list["engines"][0]["id"], "broken");
    assert_eq!(list["engines"][0]["state"], "refused");
    assert_eq!(list["engines"][0]["reason"], "needs ABI 2");
    let (status, shown) = world.get("/api/engines/echo").await;
    assert_eq!(status, 200);
    assert_eq!(shown["engines"].as_array().unwrap().len(), 2, "{shown}");
    assert_eq!(shown["engines"][1]["version"], "1.1.0");
    assert_eq!(shown["engines"][1]["sha256"], "1".repeat(64));
    assert_eq!(shown["engines"][1]["failed_trials"][0]["reason"], "its trial step gave no token");
    assert_eq!(shown["loaded"][0]["model"], "org/tiny");
    assert_eq!(shown["loaded"][0]["engine_version"], "1.0.0");
    assert_eq!(code(&world.get("/api/engines/no-such").await), (404, "engine_not_found"));
}

#[tokio::test]
async fn a_reload_goes_to_every_node_and_tells_what_each_did() {
    let world = World::new().await;
    let (one, two) = (FakeNode::join(&world, "node-1").await, FakeNode::join(&world, "node-2").await);
    heard(&world, 2).await;
    let handover = Handover {
        model: "org/tiny".into(),
        from: "echo 1.0.0".into(),
        to: "echo 1.1.0".into(),
        done: true,
        reason: None,
        pause_ms: 12,
    };
    two.engine_reply(Ok(EngineReply { engines: engines(), handovers: vec![handover] }));
    let (status, answer) = world.post("/api/engines/reload", &json!({})).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["nodes"][0]["node_id"], "node-1");
    assert_eq!(answer["nodes"][0]["reply"]["handovers"], json!([]));
    assert_eq!(answer["nodes"][1]["reply"]["handovers"][0]["pause_ms"], 12);
    assert_eq!(one.engine_commands(), [EngineCommand::Reload { engine: None }]);
    assert_eq!(two.engine_commands(), [EngineCommand::Reload { engine: None }]);

    // One engine on one node, by the node's name.
    let body = json!({"engine": "echo", "node": "node-2-name"});
    let (status, answer) = world.post("/api/engines/reload", &body).await;
    assert_eq!((status.as_u16(), answer["nodes"].as_array().unwrap().len()), (200, 1), "{answer}");
    assert_eq!(one.engine_commands(), []);
    assert_eq!(two.engine_commands(), [EngineCommand::Reload { engine: Some("echo".into()) }]);
}

#[tokio::test]
async fn one_node_that_fails_is_told_beside_those_that_did_it_and_all_failing_is_an_error() {
    let world = World::new().await;
    let (one, two) = (FakeNode::join(&world, "node-1").await, FakeNode::join(&world, "node-2").await);
    heard(&world, 2).await;
    one.engine_reply(Err(refusal(503, "node_ending", true)));
    let (status, answer) = world.post("/api/engines/echo/disable", &json!({"version": "1.0.0"})).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["nodes"][0]["error"]["code"], "node_ending");
    assert_eq!(answer["nodes"][0].get("reply"), None);
    assert!(answer["nodes"][1]["reply"].is_object() && answer["nodes"][1].get("error").is_none(), "{answer}");
    let wanted = EngineCommand::Disable { engine: "echo".into(), version: Some("1.0.0".into()) };
    assert_eq!(two.engine_commands(), [wanted]);

    one.engine_reply(Err(refusal(503, "node_ending", true)));
    two.engine_reply(Err(refusal(500, "internal_error", false)));
    let answer = world.post("/api/engines/echo/enable", &json!({})).await;
    assert_eq!(code(&answer), (503, "node_ending"));
    assert!(answer.1["error"]["message"].as_str().unwrap().starts_with("node node-1-name: "), "{answer:?}");
    assert_eq!(two.engine_commands(), [EngineCommand::Enable { engine: "echo".into(), version: None }]);
}

#[tokio::test]
async fn what_a_node_answers_is_known_at_once() {
    let world = World::new().await;
    let node = FakeNode::join(&world, "node-1").await;
    heard(&world, 1).await;
    for (path, state) in [("disable", "disabled"), ("enable", "available")] {
        let mut told = engines();
        if state == "disabled" {
            told[0].state = EngineState::Disabled;
        }
        node.engine_reply(Ok(EngineReply { engines: told, handovers: Vec::new() }));
        assert_eq!(world.post(&format!("/api/engines/echo/{path}"), &json!({})).await.0, 200);
        assert_eq!(world.get("/api/engines").await.1["engines"][0]["state"], state, "{path}");
    }
}

#[tokio::test]
async fn a_node_that_goes_away_during_a_command_is_an_answer() {
    let world = World::new().await;
    let (one, two) = (FakeNode::join(&world, "node-1").await, FakeNode::join(&world, "node-2").await);
    heard(&world, 2).await;
    let asked = one.hold_engine_commands();
    let client = world.client.post(format!("{}/api/engines/reload", world.url)).json(&json!({}));
    let answering = tokio::spawn(async move { answer(client.send().await.unwrap()).await });
    in_time("the command on the node", asked.cancelled()).await;
    one.kill();
    let (status, answer) = in_time("the answer", answering).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["nodes"][0]["error"]["status"], 502, "{answer}");
    assert!(answer["nodes"][1]["reply"].is_object(), "{answer}");
    drop(two);
}

#[tokio::test]
async fn names_that_no_node_has_told_never_reach_a_node() {
    let world = World::new().await;
    assert_eq!(code(&world.post("/api/engines/reload", &json!({})).await), (503, "no_node"));
    let node = FakeNode::join(&world, "node-1").await;
    heard(&world, 1).await;
    for (path, body, expected) in [
        ("/api/engines/reload", json!({"engine": "../../etc"}), (404, "engine_not_found")),
        ("/api/engines/reload", json!({"engine": "/opt/engines/echo"}), (404, "engine_not_found")),
        ("/api/engines/reload", json!({"path": "/opt/engines/echo"}), (400, "unknown_parameter")),
        ("/api/engines/reload", json!({"node": "no-such"}), (404, "node_not_found")),
        ("/api/engines/no-such/disable", json!({}), (404, "engine_not_found")),
        ("/api/engines/..%2F..%2Fetc/disable", json!({}), (404, "engine_not_found")),
        ("/api/engines/echo/disable", json!({"version": "9.9.9"}), (404, "engine_not_found")),
        ("/api/engines/echo/enable", json!({"version": 1}), (400, "invalid_value")),
    ] {
        assert_eq!(code(&world.post(path, &body).await), expected, "{path} {body}");
    }
    assert_eq!(node.engine_commands(), []);
}

#[tokio::test]
async fn commands_pass_the_guard_like_everything_else() {
    let world = World::new().await;
    let node = FakeNode::join(&world, "node-1").await;
    heard(&world, 1).await;
    for path in ["/api/engines/reload", "/api/engines/echo/disable", "/api/models/org/tiny/load"] {
        let post = || world.client.post(format!("{}{path}", world.url));
        let foreign = post().header("origin", "http://evil.example").json(&json!({}));
        assert_eq!(foreign.send().await.unwrap().status(), 403, "{path}");
        let named = post().header("host", "evil.example").json(&json!({}));
        assert_eq!(named.send().await.unwrap().status(), 403, "{path}");
        assert_eq!(
            post().header("content-type", "text/plain").body("{}").send().await.unwrap().status(),
            415
        );
    }
    assert_eq!(node.engine_commands(), []);
}

#[tokio::test]
async fn a_node_that_is_ending_takes_no_commands() {
    let world = World::new().await;
    let node = FakeNode::join(&world, "node-1").await;
    heard(&world, 1).await;
    world.drain(&node).await;
    assert_eq!(
        code(&world.post("/api/engines/reload", &json!({"node": "node-1"})).await),
        (503, "node_not_ready")
    );
    let answer = world.post("/api/engines/reload", &json!({})).await;
    assert_eq!(code(&answer), (503, "no_node"));
    assert_eq!(answer.1["error"]["message"], "the connected nodes are ending");
}
