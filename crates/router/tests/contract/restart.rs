//! What outlives a router, and how one ends.

use model_formats::gguf::HeadWriter;
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use crate::support::{FakeNode, Reply, World, finished, in_time, started, text};

/// Makes the database say what a version would have written that read less of a GGUF file's header.
async fn age(world: &World, id: &str) {
    let options = SqliteConnectOptions::new().filename(world.config.data_dir.join("router.db"));
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let manifest: String = sqlx::query_scalar("SELECT manifest FROM models WHERE id = $1")
        .bind(id)
        .fetch_one(&pool)
        .await
        .unwrap();
    let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
    let fields = manifest.as_object_mut().unwrap();
    assert!(fields.remove("embeds").is_some() && fields.remove("embedding_size").is_some());
    let changed =
        sqlx::query("UPDATE models SET manifest = $1, fingerprint = 'old', header_version = 0 WHERE id = $2");
    changed.bind(manifest.to_string()).bind(id).execute(&pool).await.unwrap();
    sqlx::query("UPDATE model_files SET content = '{}' WHERE model_id = $1")
        .bind(id)
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;
}

/// Of a model for embeddings.
fn gguf() -> Vec<u8> {
    HeadWriter::default()
        .text("general.architecture", "qwen3")
        .number("qwen3.context_length", 64)
        .number("qwen3.embedding_length", 96)
        .number("qwen3.pooling_type", 3)
        .finish(&[])
}

#[tokio::test]
async fn a_header_that_an_older_version_read_is_read_again() {
    let mut world = World::new().await;
    world.hub.push(fixture_hub::Repo::new("org/embeds").file("m-F16.gguf", gguf()));
    let before = world.register("org/embeds").await;
    assert_eq!((&before["tasks"], &before["notes"]), (&json!(["embed"]), &Value::Null), "{before}");
    world.stop().await;
    age(&world, "org/embeds").await;
    world.restart().await;
    let after = in_time("the header", async {
        loop {
            let (_, model) = world.get("/api/models/org/embeds").await;
            if model["tasks"] == json!(["embed"]) {
                return model;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(after, before, "all of it is as if it had been registered now");
    world.restart().await;
    let (_, again) = world.get("/api/models/org/embeds").await;
    assert_eq!(again, before, "and stays so");
}

#[tokio::test]
async fn a_header_that_cannot_be_read_again_is_told_and_the_model_stays() {
    let mut world = World::new().await;
    world.hub.push(fixture_hub::Repo::new("org/embeds").file("m-F16.gguf", gguf()));
    world.register("org/embeds").await;
    world.stop().await;
    age(&world, "org/embeds").await;
    world.hub.remove("org/embeds");
    world.restart().await;
    let model = in_time("the note", async {
        loop {
            let (_, model) = world.get("/api/models/org/embeds").await;
            if model["notes"][0].as_str().is_some_and(|note| note.contains("cannot be read again now")) {
                return model;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let note = model["notes"][0].as_str().unwrap();
    assert!(
        note.contains("older version") && note.contains("\nhint: ") && note.contains("org/embeds"),
        "{note}"
    );
    assert_eq!((&model["tasks"], &model["format"]), (&json!(["generate"]), &json!("gguf")), "{model}");
}

#[tokio::test]
async fn a_file_in_place_that_became_another_is_not_taken_for_its_older_self() {
    let mut world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, gguf()).unwrap();
    let body = json!({"path": path.to_str().unwrap(), "id": "org/embeds"});
    assert_eq!(world.post("/api/models", &body).await.0, 201);
    world.stop().await;
    age(&world, "org/embeds").await;
    std::fs::write(&path, [gguf(), vec![0; 64]].concat()).unwrap();
    world.restart().await;
    in_time("the note", async {
        while !world.get("/api/models/org/embeds").await.1["notes"][0]
            .as_str()
            .is_some_and(|note| note.contains("m.gguf") && note.contains("when it was registered"))
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

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
