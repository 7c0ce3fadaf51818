//! Registration and the catalog.

use fixture_hub::{Fault, Origin, Repo};
use model_formats::gguf::HeadWriter;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{FakeNode, World, answer, demo_model, in_time, join_as, tiny_repo};

/// Registers and expects a refusal whose message has all of `words`.
async fn refused(world: &World, body: Value, status: u16, code: &str, words: &[&str]) {
    let (found, answer) = world.post("/api/models", &body).await;
    let error = &answer["error"];
    assert_eq!((found.as_u16(), error["code"].as_str()), (status, Some(code)), "{body}: {answer}");
    let message = format!("{} {}", error["message"], error["hint"]);
    for word in words {
        assert!(message.contains(word), "{body}: `{word}` is not in {message}");
    }
}

#[tokio::test]
async fn a_model_is_registered_with_pinned_commit_and_hashes() {
    let world = World::new().await;
    let commit = world.hub.push(Repo::from_dir("org/demo", &demo_model()).unwrap());
    let model = world.register("org/demo").await;
    assert_eq!(model["id"], "org/demo");
    assert_eq!(model["format"], "safetensors");
    assert_eq!(model["architecture"], "gpt_oss");
    assert_eq!(model["state"], "no_node");
    assert!(model["reason"].as_str().unwrap().contains("no node is connected"), "{model}");
    assert_eq!(model["manifest"]["source"]["commit"], commit);
    let files = model["manifest"]["files"].as_array().unwrap();
    assert!(files.len() >= 7 && files.iter().all(|f| f["sha256"].as_str().unwrap().len() == 64), "{model}");
    let (_, shown) = world.get("/api/models/org/demo").await;
    assert_eq!(shown["fingerprint"], model["fingerprint"]);
    let (_, list) = world.get("/api/models").await;
    assert_eq!(list["models"].as_array().unwrap().len(), 1);
    let (_, ready) = world.get("/v1/models").await;
    assert_eq!(ready, json!({"object": "list", "data": []}));
    // No weights were read to register it.
    let shards =
        world.hub.requests().into_iter().filter(|r| format!("{r:?}").contains("-of-00001.safetensors"));
    assert_eq!(shards.count(), 0);
}

/// A GGUF file of so many bytes whose vocabulary takes most of them.
fn gguf(architecture: &str, template: &str, bytes: usize) -> Vec<u8> {
    let tokens: Vec<String> = (0..200_000).map(|n| format!("token number {n}")).collect();
    let mut tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    (tokens[1], tokens[2], tokens[3]) = ("<s>", "</s>", "<|im_start|>");
    let kinds: Vec<i32> = (0..tokens.len()).map(|n| if (1..=3).contains(&n) { 3 } else { 1 }).collect();
    let head = HeadWriter::default()
        .text("general.architecture", architecture)
        .number(&format!("{architecture}.context_length"), 8192)
        .texts("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .number("tokenizer.ggml.bos_token_id", 1)
        .text("tokenizer.chat_template", template);
    let mut file = head.finish(&[]);
    file.resize(bytes, 7);
    file
}

const GGUF_BYTES: usize = 48 << 20;

#[tokio::test]
async fn a_gguf_file_says_what_it_is_and_only_its_head_is_read() {
    let world = World::new().await;
    let repo = Repo::new("org/quantized")
        .file("m-Q4_K_M.gguf", gguf("llama", "{{ bos_token }}{{ messages[0].content }}", GGUF_BYTES))
        .file("m-Q8_0.gguf", gguf("qwen2", "", GGUF_BYTES))
        .file("config.json", r#"{"model_type": "gpt_oss"}"#);
    let commit = world.hub.push(repo);
    let several = json!({"repo": "org/quantized"});
    refused(&world, several, 400, "gguf_ambiguous", &["m-Q4_K_M.gguf", "m-Q8_0.gguf", "org/repo:Q4_K_M"])
        .await;
    let wrong = json!({"repo": "org/quantized:q4_k_m"});
    refused(&world, wrong, 400, "quantization_unknown", &["m-Q4_K_M.gguf", "case"]).await;
    let both = json!({"repo": "org/quantized:Q4_K_M", "file": "m-Q8_0.gguf"});
    refused(&world, both, 400, "invalid_value", &["Q4_K_M", "file"]).await;

    let (status, model) = world.post("/api/models", &json!({"repo": "org/quantized:Q4_K_M"})).await;
    assert_eq!(status, 201, "{model}");
    assert_eq!((&model["id"], &model["format"]), (&json!("org/quantized:Q4_K_M"), &json!("gguf")));
    assert_eq!((&model["architecture"], &model["context_length_max"]), (&json!("llama"), &json!(8192)));
    let reason = model["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("llama"), "what nothing runs is told with its architecture: {model}");
    let url = format!("{}/org/quantized/resolve/main/m-Q8_0.gguf", world.hub.url());
    let (status, model) = world.post("/api/models", &json!({"url": url, "id": "org/eight"})).await;
    assert_eq!((status.as_u16(), &model["architecture"]), (201, &json!("qwen2")), "{model}");
    assert_eq!(model["manifest"]["primary"], "m-Q8_0.gguf");
    let parts: Vec<_> = world
        .hub
        .requests()
        .into_iter()
        .filter(|request| request.origin == Origin::ContentNetwork)
        .map(|request| request.range.unwrap_or_default())
        .collect();
    assert!(!parts.is_empty() && parts.iter().all(|range| range.starts_with("bytes=0-")), "{parts:?}");
    let last = |range: &String| range.rsplit('-').next().and_then(|last| last.parse::<usize>().ok());
    assert!(parts.iter().all(|range| last(range).is_some_and(|last| last < 17 << 20)), "{commit}: {parts:?}");
}

#[tokio::test]
async fn a_request_names_its_quantization_or_gets_the_default_that_was_registered() {
    let world = World::new().await;
    let head = |tokens: u32| {
        HeadWriter::default()
            .text("general.architecture", "llama")
            .number("llama.context_length", tokens)
            .finish(&[])
    };
    world.hub.push(Repo::new("org/several").file("m-Q4_K_M.gguf", head(8)).file("m-Q8_0.gguf", head(16)));
    let ask = async |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
        let (status, answer) = world.post("/v1/chat/completions", &body).await;
        let message = format!("{} {}", answer["error"]["message"], answer["error"]["hint"]);
        (status.as_u16(), answer["error"]["code"].as_str().unwrap_or_default().to_owned(), message)
    };
    assert_eq!(ask("org/several").await.0, 404);
    for quantization in ["Q4_K_M", "Q8_0"] {
        world.register(&format!("org/several:{quantization}")).await;
    }
    let (status, code, message) = ask("org/several").await;
    assert_eq!((status, code.as_str()), (400, "quantization_not_named"), "{message}");
    assert!(message.contains("org/several:Q4_K_M") && message.contains("org/several:Q8_0"), "{message}");
    assert!(message.contains("--id org/several"), "{message}");
    for wrong in ["org/several:q8_0", "org/several:Q8-0", "org/severa"] {
        assert_eq!(ask(wrong).await.0, 404, "{wrong}");
    }
    let default = json!({"repo": "org/several:Q8_0", "id": "org/several"});
    assert_eq!(world.post("/api/models", &default).await.0, 201);
    let (_, model) = world.get("/api/models/org/several").await;
    assert_eq!(model["context_length_max"], 16, "{model}");
    // It is known, and no node is there to run it.
    assert_eq!(ask("org/several").await.1, "model_not_ready");
}

#[tokio::test]
async fn a_projector_beside_a_gguf_model_is_listed_and_images_are_refused_all_the_same() {
    let world = World::new().await;
    let repo = Repo::new("org/sees")
        .file("m-Q8_0.gguf", gguf("llama", "{{ messages[0].content }}", 8 << 20))
        .file("mmproj-m-f16.gguf", "what reads images");
    world.hub.push(repo);
    world.register("org/sees").await;
    let (_, list) = world.get("/api/models").await;
    let (_, model) = world.get("/api/models/org/sees").await;
    assert_eq!(list["models"][0]["files"], 2, "{list}");
    let files = model["manifest"]["files"].as_array().unwrap();
    let roles: Vec<_> = files.iter().map(|file| (&file["name"], &file["role"], &file["optional"])).collect();
    let expected = [
        (&json!("m-Q8_0.gguf"), &json!("weights"), &json!(false)),
        (&json!("mmproj-m-f16.gguf"), &json!("projector"), &json!(true)),
    ];
    assert_eq!(roles, expected);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    for content in [json!([image]), json!([{"type": "text", "text": "what is this?"}, image])] {
        let body = json!({"model": "org/sees", "messages": [{"role": "user", "content": content}]});
        let (status, answer) = world.post("/v1/chat/completions", &body).await;
        let error = &answer["error"];
        assert_eq!((status.as_u16(), &error["code"]), (400, &json!("unsupported_parameter")), "{answer}");
        assert!(error["message"].as_str().unwrap().contains("`image_url`"), "{answer}");
    }
}

#[tokio::test]
async fn a_gguf_file_of_this_machine_is_registered_in_place() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("My Model.Q4_K_M.gguf");
    std::fs::write(&path, gguf("llama", "{{ messages[0].content }}", 8 << 20)).unwrap();
    std::fs::write(dir.path().join("other.gguf"), "GGUF").unwrap();
    let body = json!({"path": path.to_str().unwrap()});
    let (status, model) = world.post("/api/models", &body).await;
    assert_eq!(status, 201, "{model}");
    assert_eq!((&model["id"], &model["files"]), (&json!("local/My-Model-Q4_K_M"), &json!(1)), "{model}");
    let broken = json!({"path": dir.path().join("other.gguf").to_str().unwrap()});
    refused(&world, broken, 400, "file_invalid", &["other.gguf", "truncated"]).await;
    std::fs::write(dir.path().join("none.gguf"), "no such format").unwrap();
    let none = json!({"path": dir.path().join("none.gguf").to_str().unwrap()});
    refused(&world, none, 400, "file_invalid", &["none.gguf", "does not begin with GGUF"]).await;
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let world = World::new().await;
    for file in ["config.json", "tokenizer.json"] {
        world.hub.push(tiny_repo("org/less").without(file));
        refused(&world, json!({"repo": "org/less"}), 400, "missing_file", &[file]).await;
        world.hub.remove("org/less");
    }
    world.hub.push(tiny_repo("org/two").file("second.safetensors", "more"));
    refused(&world, json!({"repo": "org/two"}), 400, "index_missing", &["second.safetensors", "index"]).await;
    let index = json!({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).to_string();
    let sharded = tiny_repo("org/sharded").without("model.safetensors").file("model-1.safetensors", "one");
    world.hub.push(sharded.file("model.safetensors.index.json", index));
    refused(&world, json!({"repo": "org/sharded"}), 400, "shard_missing", &["model-2.safetensors"]).await;
    world.hub.push(tiny_repo("org/both").file("model.gguf", "GGUF"));
    refused(
        &world,
        json!({"repo": "org/both"}),
        400,
        "format_ambiguous",
        &["model.safetensors", "model.gguf", "format="],
    )
    .await;
    let (status, _) = world.post("/api/models", &json!({"repo": "org/both", "format": "safetensors"})).await;
    assert_eq!(status, 201);
    world.hub.push(tiny_repo("org/broken").file("tokenizer.json", "{"));
    refused(&world, json!({"repo": "org/broken"}), 400, "file_invalid", &["tokenizer.json"]).await;
    world.hub.push(tiny_repo("org/odd").file("tokenizer_config.json", r#"{"chat_template": 7}"#));
    refused(&world, json!({"repo": "org/odd"}), 400, "file_invalid", &["chat_template"]).await;
    let (_, list) = world.get("/api/models").await;
    assert_eq!(list["models"].as_array().unwrap().len(), 1, "what was refused is not there");
}

#[tokio::test]
async fn what_the_hub_refuses_has_its_own_status() {
    let world = World::new().await;
    refused(
        &world,
        json!({"repo": "org/absent"}),
        404,
        "repository_absent_or_private",
        &["org/absent", "absent", "private"],
    )
    .await;
    world.hub.push(tiny_repo("org/secret").private());
    refused(
        &world,
        json!({"repo": "org/secret"}),
        404,
        "repository_absent_or_private",
        &["absent", "private"],
    )
    .await;
    world.hub.push(tiny_repo("org/gated").gated());
    refused(&world, json!({"repo": "org/gated"}), 403, "repository_gated", &["org/gated", "access"]).await;
    refused(&world, json!({"repo": "org/tiny", "revision": "v9"}), 404, "revision_not_found", &["v9"]).await;
    world.hub.fault("revision/main", Fault::Status(500), 9);
    refused(&world, json!({"repo": "org/tiny"}), 502, "hub_failed", &["500"]).await;
}

#[tokio::test]
async fn how_long_the_hub_wants_to_be_left_alone_is_passed_on() {
    let world = World::new().await;
    world.hub.fault("revision/main", Fault::RateLimited { retry_after_s: 900 }, 9);
    let response = world.send("/api/models", &json!({"repo": "org/tiny"})).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (503, &"900".parse().unwrap())
    );
}

#[tokio::test]
async fn a_failure_that_only_a_person_can_end_is_not_to_be_retried() {
    let world = World::new().await;
    world.register("org/tiny").await;
    let reason = "model.safetensors is truncated".to_owned();
    let state = node_api::ModelState::Failed { reason, retrying: false };
    let _node = FakeNode::join_with(&world, join_as("node-1"), state).await;
    world.wait_for_state("org/tiny", "failed").await;
    let chat = json!({"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]});
    let response = world.send("/v1/chat/completions", &chat).await;
    assert_eq!(response.status().as_u16(), 503);
    assert_eq!(response.headers()["x-should-retry"], "false");
    assert!(!response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_502() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let world = World::with(|config| config.hub.endpoint = format!("http://{closed}").parse().unwrap()).await;
    refused(&world, json!({"repo": "org/tiny"}), 502, "hub_unreachable", &[&closed.port().to_string()]).await;
}

#[tokio::test]
async fn the_source_has_to_be_one_and_clear() {
    let world = World::new().await;
    refused(&world, json!({}), 400, "source_ambiguous", &["repo", "url", "path"]).await;
    refused(&world, json!({"repo": "a/b", "path": "/x"}), 400, "source_ambiguous", &["exactly one"]).await;
    refused(&world, json!({"repo": "a/b/c"}), 400, "invalid_value", &["a/b/c"]).await;
    refused(&world, json!({"repo": "../etc"}), 400, "invalid_value", &["../etc"]).await;
    refused(&world, json!({"path": "relative/folder"}), 400, "invalid_value", &["absolute"]).await;
    refused(&world, json!({"url": "https://example.com/a/b"}), 400, "invalid_value", &["example.com"]).await;
    refused(&world, json!({"repo": "org/tiny", "id": "a//b"}), 400, "invalid_value", &["id"]).await;
    refused(&world, json!({"repo": "org/tiny", "colour": 1}), 400, "unknown_parameter", &["colour"]).await;
    let file = json!({"repo": "org/tiny", "file": "model.safetensors"});
    refused(&world, file, 400, "file_not_chosen", &["model.safetensors"]).await;
    refused(&world, json!(["org/tiny"]), 400, "invalid_value", &["object"]).await;
    refused(&world, json!({"repo": "org/tiny", "format": "onnx"}), 400, "invalid_value", &["format"]).await;
    refused(&world, json!({"path": "/does/not/exist"}), 404, "folder_absent", &["/does/not/exist"]).await;
    let url = format!("{}/org/tiny/tree/main", world.hub.url());
    let (status, model) = world.post("/api/models", &json!({"url": url})).await;
    assert_eq!((status.as_u16(), model["id"].as_str()), (201, Some("org/tiny")), "{model}");
}

#[tokio::test]
async fn a_second_registration_changes_nothing_also_at_the_same_time() {
    let world = World::new().await;
    let bodies: Vec<Value> =
        (1..=6).map(|n| json!({"repo": "org/tiny", "settings": {"sequences_max": n}})).collect();
    let answers = futures_util::future::join_all(bodies.iter().map(|b| world.post("/api/models", b))).await;
    let created: Vec<&Value> =
        answers.iter().filter(|(s, _)| *s == StatusCode::CREATED).map(|(_, b)| b).collect();
    assert_eq!(created.len(), 1, "{answers:?}");
    for (_, body) in answers.iter().filter(|(s, _)| *s != StatusCode::CREATED) {
        assert_eq!(body["error"]["code"], "model_exists", "{body}");
    }
    let (_, shown) = world.get("/api/models/org/tiny").await;
    assert_eq!(shown["settings"], created[0]["settings"]);
    refused(&world, json!({"repo": "org/other", "id": "org/tiny"}), 409, "model_exists", &["org/tiny"]).await;
    let (status, _) = world.post("/api/models", &json!({"repo": "org/tiny", "id": "mine/alias"})).await;
    assert_eq!(status, 201, "the same repository under another id is another model");
}

#[tokio::test]
async fn a_model_without_an_engine_is_kept_and_never_ready_or_refused_when_asked() {
    let world = World::new().await;
    world.hub.push(tiny_repo("org/new").file("config.json", r#"{"model_type": "brand_new"}"#));
    let wanted = json!({"repo": "org/new", "require_engine": true});
    refused(&world, wanted, 400, "no_engine", &["brand_new", "safetensors"]).await;
    let model = world.register("org/new").await;
    assert!(model["reason"].as_str().unwrap().contains("brand_new"), "{model}");
    let _node = FakeNode::join_with(
        &world,
        join_as("node-1"),
        node_api::ModelState::Unsupported { reason: "no engine here runs brand_new".into() },
    )
    .await;
    world.wait_for_state("org/new", "unsupported").await;
    let chat = json!({"model": "org/new", "messages": [{"role": "user", "content": "hi"}]});
    let response = world.send("/v1/chat/completions", &chat).await;
    assert_eq!(response.headers()["x-should-retry"], "false");
    let (status, body) = answer(response).await;
    assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (503, Some("model_not_ready")));
    assert!(body["error"]["message"].as_str().unwrap().contains("brand_new"), "{body}");
}

#[tokio::test]
async fn a_folder_is_registered_in_place() {
    let world = World::new().await;
    let (status, model) = world.post("/api/models", &json!({"path": demo_model()})).await;
    assert_eq!(status, 201, "{model}");
    assert_eq!(model["id"], "local/demo-model");
    assert_eq!(model["manifest"]["source"]["kind"], "local");
    let node = FakeNode::join(&world, "node-1").await;
    let wish = node.desired(|d| d.models.len() == 1).await;
    assert_eq!(wish.models[0].manifest.id, "local/demo-model");
}

#[tokio::test]
async fn folders_are_only_offered_to_nodes_on_the_same_machine() {
    let world = World::with(|config| config.machine_id = Some("machine-1".into())).await;
    world.post("/api/models", &json!({"path": demo_model()})).await;
    world.register("org/tiny").await;
    let mut elsewhere = join_as("node-2");
    elsewhere.node.machine_id = "machine-2".into();
    let far = FakeNode::join_with(&world, elsewhere, crate::support::ready()).await;
    let wish = far.desired(|d| !d.models.is_empty()).await;
    assert_eq!(wish.models.iter().map(|m| m.manifest.id.as_str()).collect::<Vec<_>>(), ["org/tiny"]);
    let model = world.wait_for_state("local/demo-model", "unsupported").await;
    assert!(model["reason"].as_str().unwrap().contains("router's machine"), "{model}");
    let near = FakeNode::join(&world, "node-1").await;
    near.desired(|d| d.models.len() == 2).await;
    world.wait_for_state("local/demo-model", "ready").await;
}

#[tokio::test]
async fn settings_are_changed_checked_and_told_to_the_nodes() {
    let (world, node) = World::ready().await;
    let patch = async |settings: Value| {
        let request = world.client.patch(format!("{}/api/models/org/tiny", world.url));
        answer(request.json(&json!({"settings": settings})).send().await.unwrap()).await
    };
    let (status, model) = patch(json!({"context_length": 32})).await;
    assert_eq!((status.as_u16(), model["settings"]["context_length"].as_u64()), (200, Some(32)), "{model}");
    node.desired(|d| d.models[0].settings.context_length == Some(32)).await;
    let (status, body) = patch(json!({"context_length": 65})).await;
    assert_eq!((status.as_u16(), body["error"]["param"].as_str()), (400, Some("settings.context_length")));
    assert!(body["error"]["message"].as_str().unwrap().contains("64"), "{body}");
    let (status, body) = patch(json!({"sequences_max": 0})).await;
    assert_eq!((status.as_u16(), body["error"]["param"].as_str()), (400, Some("settings.sequences_max")));
    let (status, body) = patch(json!({"context_lenght": 1})).await;
    assert_eq!(
        (status.as_u16(), body["error"]["param"].as_str()),
        (400, Some("settings.context_lenght")),
        "{body}"
    );
}

#[tokio::test]
async fn a_removed_model_is_gone_everywhere() {
    let (world, node) = World::ready().await;
    node.desired(|d| d.models.len() == 1).await;
    let delete = async || {
        answer(world.client.delete(format!("{}/api/models/org/tiny", world.url)).send().await.unwrap()).await
    };
    assert_eq!(delete().await, (StatusCode::OK, json!({"id": "org/tiny", "deleted": true})));
    // An operator's removal is told as one: the node may delete what it downloaded.
    let told: Vec<_> =
        node.model_commands().into_iter().map(|command| (command.model, command.action)).collect();
    assert_eq!(told, [("org/tiny".to_owned(), node_api::ModelAction::Remove)]);
    node.desired(|d| d.models.is_empty()).await;
    assert_eq!(world.get("/api/models/org/tiny").await.0, 404);
    assert_eq!(world.get("/v1/models/org/tiny").await.0, 404);
    assert_eq!(delete().await.0, 404);
    world.register("org/tiny").await;
}

#[tokio::test]
async fn v1_models_lists_what_is_ready_with_slashes_in_ids() {
    let (world, node) = World::ready().await;
    let (_, list) = world.get("/v1/models").await;
    assert_eq!(list["data"][0]["id"], "org/tiny");
    assert_eq!(list["data"][0]["owned_by"], "org");
    for path in ["/v1/models/org/tiny", "/v1/models/org%2Ftiny"] {
        let (status, model) = world.get(path).await;
        assert_eq!(
            (status.as_u16(), model["id"].as_str(), model["object"].as_str()),
            (200, Some("org/tiny"), Some("model"))
        );
    }
    let loaded = node_api::ModelState::Loaded {
        engine: "echo".into(),
        engine_version: "1.0.0".into(),
        device: "cpu".into(),
        context_length: 48,
        sequences_max: 4,
        worker: 7,
    };
    node.set_state("org/tiny", loaded);
    world.wait_for_state("org/tiny", "loaded").await;
    assert_eq!(world.get("/v1/models/org/tiny").await.1["max_model_len"], 48);
    node.set_state(
        "org/tiny",
        node_api::ModelState::Downloading { bytes_done: 1, bytes_total: 4, files: vec![] },
    );
    let model = world.wait_for_state("org/tiny", "downloading").await;
    assert!(model["reason"].as_str().unwrap().contains("25 %"), "{model}");
    let (status, body) = world.get("/v1/models/org/tiny").await;
    assert_eq!((status.as_u16(), body["error"]["code"].as_str()), (503, Some("model_not_ready")));
    assert_eq!(world.get("/v1/models").await.1["data"], json!([]));
}

#[tokio::test]
async fn models_that_are_known_to_work_are_listed() {
    let world = World::new().await;
    let (_, list) = world.get("/api/available").await;
    let models = list["models"].as_array().unwrap();
    assert!(models.iter().any(|m| m["repo"] == "openai/gpt-oss-20b" && m["registered"] == false), "{list}");
}

#[tokio::test]
async fn a_caller_that_leaves_a_registration_leaves_nothing_half() {
    let world = World::new().await;
    world.hub.fault("tokenizer.json", Fault::StallAfter(1), 1);
    let request = world.client.post(format!("{}/api/models", world.url)).json(&json!({"repo": "org/tiny"}));
    let sending = tokio::spawn(request.send());
    in_time("the registration to reach the hub", async {
        while !world.hub.requests().iter().any(|r| format!("{r:?}").contains("tokenizer.json")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    sending.abort();
    world.hub.release_stalls();
    world.hub.clear_faults();
    assert_eq!(world.get("/api/models").await.1["models"], json!([]));
    world.register("org/tiny").await;
}
