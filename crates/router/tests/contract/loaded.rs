//! `/api/ps`, and loading and unloading on request.

use node_api::*;
use serde_json::json;

use crate::support::*;

fn load(fingerprint: &str, action: ModelAction) -> ModelCommand {
    ModelCommand { model: "org/tiny".into(), fingerprint: fingerprint.into(), action }
}

async fn until_loaded(world: &World, count: usize) -> serde_json::Value {
    in_time("loaded models", async {
        loop {
            let (_, list) = world.get("/api/ps").await;
            if list["models"].as_array().unwrap().len() == count {
                return list;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test]
async fn what_is_loaded_is_listed_with_engine_memory_and_last_use() {
    let (world, node) = World::ready().await;
    assert_eq!(world.get("/api/ps").await.1["models"], json!([]));
    node.change(|status| {
        let draining = ReplicaStatus { worker: 12, role: ReplicaRole::Draining, ..replica() };
        status.models[0].replicas = vec![replica(), draining];
    });
    let list = until_loaded(&world, 2).await;
    let first = &list["models"][0];
    assert_eq!((first["worker"].as_u64(), first["role"].as_str()), (Some(12), Some("draining")));
    let serving = &list["models"][1];
    for (field, expected) in [
        ("model", json!("org/tiny")),
        ("node_name", json!("node-1-name")),
        ("engine", json!("echo")),
        ("engine_version", json!("1.0.0")),
        ("library_sha256", json!("0".repeat(64))),
        ("devices", json!(["cuda:0"])),
        ("requests_running", json!(1)),
        ("last_used", json!(200)),
    ] {
        assert_eq!(serving[field], expected, "{field} of {serving}");
    }
    let memory = json!({"device": "cuda:0", "estimated": 400, "granted": 450, "used": 500, "mapped": 7});
    assert_eq!(serving["memory"][0], memory);
}

#[tokio::test]
async fn a_model_is_loaded_where_it_is_or_where_there_is_most_room() {
    let (world, one) = World::ready().await;
    let two = FakeNode::join(&world, "node-2").await;
    let desired = two.desired(|d| d.models.len() == 1).await;
    let fingerprint = desired.models[0].fingerprint.clone();
    one.change(|s| s.memory.ram_available = 10);
    two.change(|s| s.memory.ram_available = 20);
    in_time("the memory of both", async {
        loop {
            let (_, nodes) = world.get("/api/nodes").await;
            let free = |at: usize| nodes["nodes"][at]["memory"]["ram_available"].as_u64();
            if (free(0), free(1)) == (Some(10), Some(20)) && nodes["nodes"][1]["models_ready"] == 1 {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (status, answer) = world.post("/api/models/org/tiny/load", &json!({})).await;
    assert_eq!((status.as_u16(), answer["nodes"][0]["node_id"].as_str()), (200, Some("node-2")), "{answer}");
    assert_eq!(answer["nodes"][0]["model"]["state"], "ready");
    assert_eq!(two.model_commands(), [load(&fingerprint, ModelAction::Load)]);

    // Where it is already, room or no room; and where the operator says.
    one.change(|s| s.models[0].replicas = vec![replica()]);
    until_loaded(&world, 1).await;
    world.post("/api/models/org/tiny/load", &json!({})).await;
    assert_eq!(one.model_commands(), [load(&fingerprint, ModelAction::Load)]);
    world.post("/api/models/org/tiny/load", &json!({"node": "node-2-name"})).await;
    assert_eq!(two.model_commands(), [load(&fingerprint, ModelAction::Load)]);

    // Unloading goes to whoever has it, and to nobody when nobody has it.
    let (status, answer) = world.post("/api/models/org/tiny/unload", &json!({})).await;
    assert_eq!((status.as_u16(), answer["nodes"].as_array().unwrap().len()), (200, 1), "{answer}");
    assert_eq!(one.model_commands(), [load(&fingerprint, ModelAction::Unload)]);
    assert_eq!(two.model_commands(), []);
    one.change(|s| s.models[0].replicas.clear());
    until_loaded(&world, 0).await;
    let (status, answer) = world.post("/api/models/org/tiny/unload", &json!({})).await;
    assert_eq!((status.as_u16(), &answer["nodes"]), (200, &json!([])), "{answer}");
}

#[tokio::test]
async fn what_cannot_be_loaded_says_why() {
    let world = World::new().await;
    world.register("org/tiny").await;
    let code = |answer: &(reqwest::StatusCode, serde_json::Value)| {
        (answer.0.as_u16(), answer.1["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    let unknown = world.post("/api/models/no/such/load", &json!({})).await;
    assert_eq!(code(&unknown), (404, "model_not_found".into()));
    let nowhere = world.post("/api/models/org/tiny/load", &json!({})).await;
    assert_eq!(code(&nowhere), (503, "model_not_ready".into()));
    let node = world.post("/api/models/org/tiny/load", &json!({"node": "no-such"})).await;
    assert_eq!(code(&node), (404, "node_not_found".into()));
    let verb = world.post("/api/models/org/tiny/fly", &json!({})).await;
    assert_eq!(code(&verb), (405, "method_not_allowed".into()));
    let field = world.post("/api/models/org/tiny/load", &json!({"path": "/x"})).await;
    assert_eq!(code(&field), (400, "unknown_parameter".into()));
}

#[tokio::test]
async fn a_models_settings_name_engine_devices_replicas_and_keep_alive() {
    let (world, node) = World::ready().await;
    let settings =
        json!({"engine": "echo@1.0.0", "devices": ["cuda:0"], "replicas": 2, "keep_alive_seconds": -1});
    let request = world.client.patch(format!("{}/api/models/org/tiny", world.url));
    let (status, model) = answer(request.json(&json!({"settings": settings})).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), &model["settings"]), (200, &settings), "{model}");
    let told = node.desired(|d| d.models[0].settings.replicas == Some(2)).await;
    assert_eq!(told.models[0].settings.keep_alive_seconds, Some(-1));
    for (settings, param) in [
        (json!({"replicas": 0}), "settings.replicas"),
        (json!({"replicas": 1000}), "settings.replicas"),
        (json!({"engine": ""}), "settings.engine"),
        (json!({"engine": "echo@"}), "settings.engine"),
        (json!({"engine": "echo@1@2"}), "settings.engine"),
        (json!({"engine": "with space"}), "settings.engine"),
        (json!({"devices": [""]}), "settings.devices"),
        (json!({"devices": vec!["cpu"; 65]}), "settings.devices"),
    ] {
        let request = world.client.patch(format!("{}/api/models/org/tiny", world.url));
        let (status, body) = answer(request.json(&json!({"settings": settings})).send().await.unwrap()).await;
        assert_eq!(
            (status.as_u16(), body["error"]["param"].as_str()),
            (400, Some(param)),
            "{settings}: {body}"
        );
    }
}
