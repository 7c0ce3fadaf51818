//! GGUF models from registration to a token, through the engine llama-cpp.
//!
//! Where its toolchain is not there these tests say so and pass, unless `REQUIRE_LLAMA_CPP` is set.

use engine_testkit::build::{engine_dir, llama_cpp_is_missing, workspace_root};
use fixture_hub::{Origin, Repo};
use gpt_oss_synth::{Dense, Family, convert_gguf, write_dense_gguf};
use serde_json::json;
use system_tests::reference::MODEL;
use system_tests::{Reference, System};

const DEMO_FILE: &str = "demo-model-BF16.gguf";

/// The demo model as one file.
fn demo() -> Repo {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join(DEMO_FILE);
    convert_gguf(&workspace_root().join("assets/demo-model"), Dense::Bf16, &path, |_, _| {})
        .expect("the demo model is in the tree");
    Repo::new(MODEL).file(DEMO_FILE, std::fs::read(&path).expect("just written"))
}

fn family(of: Family, id: &str) -> Repo {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    write_dense_gguf(of, 1, &path).expect("a temporary folder");
    Repo::new(id).file("model-F32.gguf", std::fs::read(&path).expect("just written"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_models_answers_are_those_of_the_reference() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let system = System::start(vec![demo()]).await;
    system.api.register(&json!({"repo": format!("{MODEL}:BF16"), "id": MODEL})).await.ok();
    system.api.until_ready(MODEL).await;
    for prompt in Reference::read().prompts {
        let name = &prompt.name;
        let reply = system.api.chat(&prompt.request()).await.ok();
        let message = &reply["choices"][0]["message"];
        assert_eq!(reply["usage"]["prompt_tokens"], prompt.prompt_token_ids.len(), "{name}: {reply}");
        assert_eq!(reply["usage"]["completion_tokens"], prompt.completion_token_ids.len(), "{name}: {reply}");
        let content = prompt.content.clone().unwrap_or_default();
        assert_eq!(message["content"].as_str().unwrap_or_default(), content, "{name}");
        assert_eq!(message["reasoning"].as_str(), prompt.reasoning.as_deref(), "{name}");
        let call = &message["tool_calls"][0]["function"];
        for part in ["name", "arguments"] {
            let expected = prompt.tool_call.as_ref().and_then(|call| call[part].as_str());
            assert_eq!(call[part].as_str(), expected, "{name}");
        }
    }
    let model = system.api.model(MODEL).await;
    assert_eq!(model["format"], "gguf", "{model}");
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_have_logprobs_seeds_and_stop_strings_as_from_every_engine() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let system = System::start(vec![family(Family::Llama, "acme/llama")]).await;
    system.api.register(&json!({"repo": "acme/llama", "id": "llama"})).await.ok();
    system.api.until_ready("llama").await;
    let ask = async |more: serde_json::Value| {
        let mut body = json!({"model": "llama", "prompt": "once there was", "max_tokens": 12, "seed": 7});
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        system.api.post("/v1/completions", &body).await.ok()
    };
    let one = ask(json!({"temperature": 1.0, "logprobs": 3})).await;
    let two = ask(json!({"temperature": 1.0})).await;
    let (one_text, two_text) = (&one["choices"][0]["text"], &two["choices"][0]["text"]);
    assert_eq!(one_text, two_text, "the same seed");
    let tokens = one["choices"][0]["logprobs"]["tokens"].as_array().map_or(0, Vec::len);
    assert_eq!(one["usage"]["completion_tokens"], tokens, "{one}");
    let greedy = ask(json!({"temperature": 0})).await;
    let text = greedy["choices"][0]["text"].as_str().expect("a text").to_owned();
    let (middle, next) = text.char_indices().nth(4).map(|(at, c)| (at, c.to_string())).expect("12 tokens");
    if !text[..middle].contains(&next) {
        let stopped = ask(json!({"temperature": 0, "stop": [next]})).await;
        assert_eq!(stopped["choices"][0]["text"], text[..middle], "{greedy}");
    }
    // Images are refused, not left out.
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let body = json!({"model": "llama", "messages": [{"role": "user", "content": [image]}]});
    system.api.chat(&body).await.refused(400, &["messages[0].content[0]"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_architecture_that_no_engine_runs_is_shown_with_its_reason_and_not_fetched() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let head = model_formats::gguf::HeadWriter::default()
        .text("general.architecture", "nonesuch")
        .number("nonesuch.context_length", 64);
    // Weights that nobody has to read to know that.
    let mut file = head.finish(&[]);
    file.resize(4 << 20, 7);
    let system = System::start(vec![Repo::new("acme/nonesuch").file("m-Q4_0.gguf", file)]).await;
    system.api.register(&json!({"repo": "acme/nonesuch", "id": "odd"})).await.ok();
    let model = system.api.until_state("odd", &["unsupported"]).await;
    let reason = model["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("nonesuch") && reason.contains("gguf"), "{model}");
    for request in system.hub.requests() {
        let whole = matches!(request.origin, Origin::ContentNetwork) && request.range.is_none();
        assert!(!whole, "{request:?}");
    }
}
