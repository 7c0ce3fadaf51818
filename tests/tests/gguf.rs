//! GGUF models from registration to a token, through the engine llama-cpp.
//!
//! Where its toolchain is not there these tests say so and pass, unless `REQUIRE_LLAMA_CPP` is set.

use engine_testkit::build::{engine_dir, llama_cpp_is_missing};
use fixture_hub::{Origin, Repo};
use gpt_oss_synth::{
    BertShape, Family, Pooling, write_bert_gguf, write_dense_gguf, write_pooled_gguf, write_split_gguf,
};
use serde_json::json;
use system_tests::process::runs;
use system_tests::reference::MODEL;
use system_tests::{Reference, System, repos, until};

fn family(of: Family, id: &str) -> Repo {
    family_with(of, id, &[])
}

/// With bytes of its file replaced, each of which is there once and becomes as many others; together they keep the length.
fn family_with(of: Family, id: &str, changes: &[(&[u8], &[u8])]) -> Repo {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    write_dense_gguf(of, 1, &path).expect("a temporary folder");
    let mut file = std::fs::read(&path).expect("just written");
    let length = file.len();
    for (from, to) in changes {
        let found: Vec<usize> =
            (0..=file.len() - from.len()).filter(|at| file[*at..].starts_with(from)).collect();
        let [at] = found[..] else { panic!("{} is there {} times", from.escape_ascii(), found.len()) };
        file.splice(at..at + from.len(), to.iter().copied());
    }
    assert_eq!(file.len(), length, "what follows lies where it lay");
    Repo::new(id).file("model-F32.gguf", file)
}

/// A text as a GGUF file has it.
fn counted(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_models_answers_are_those_of_the_reference() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let system = System::start(vec![repos::demo_gguf()]).await;
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
    // This vocabulary begins a text, once, whoever writes the beginning.
    let spelled = ask(json!({"temperature": 0, "prompt": "<|begin|>once there was"})).await;
    let plain = ask(json!({"temperature": 0})).await;
    assert_eq!(plain["choices"][0]["text"], spelled["choices"][0]["text"]);
    assert_eq!(plain["usage"]["prompt_tokens"], spelled["usage"]["prompt_tokens"]);
    let ids = ask(json!({"temperature": 0, "prompt": [600, 5]})).await;
    assert_eq!(ids["usage"]["prompt_tokens"], 2, "ids are taken as they are");
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

/// An answer to the schema of the test below, with all the white space it may have.
const HELD_TOKENS: u32 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_drawn_fits_its_schema() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let system = System::start(vec![family(Family::Llama, "acme/llama")]).await;
    system.api.register(&json!({"repo": "acme/llama", "id": "llama"})).await.ok();
    system.api.until_ready("llama").await;
    let schema = json!({"type": "array", "items": {"enum": ["left", "right"]}, "minItems": 1, "maxItems": 2});
    let format = json!({"type": "json_schema", "json_schema": {"name": "turns", "schema": schema}});
    for seed in 1..5 {
        let body = json!({
            "model": "llama", "messages": [{"role": "user", "content": "Which way?"}], "temperature": 1, "seed": seed,
            "max_tokens": HELD_TOKENS, "response_format": format,
        });
        let reply = system.api.chat(&body).await.ok();
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "seed {seed}: {reply}");
        let turns: Vec<String> =
            serde_json::from_str(choice["message"]["content"].as_str().unwrap_or_default()).expect("a list");
        assert!((1..=2).contains(&turns.len()), "{turns:?}");
        assert!(turns.iter().all(|turn| turn == "left" || turn == "right"), "{turns:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_parts_by_address_or_from_this_machine_a_model_answers_alike() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let whole = dir.path().join("whole-F32.gguf");
    write_dense_gguf(Family::Llama, 1, &whole).expect("a temporary folder");
    let parts = [1, 2, 3].map(|n| dir.path().join(format!("parts-F32-{n:05}-of-00003.gguf")));
    write_split_gguf(Family::Llama, 1, &parts).expect("a temporary folder");
    let read = |path: &std::path::Path| std::fs::read(path).expect("just written");
    let mut repo = Repo::new("acme/parts");
    for part in &parts {
        let name = part.file_name().and_then(|name| name.to_str()).expect("a name");
        repo = repo.file(name, read(part));
    }
    let one = Repo::new("acme/one").file("one-F32.gguf", read(&whole)).file("other-F32.gguf", "GGUF");
    let system = System::start(vec![repo, one]).await;
    let address = format!("{}/acme/one/resolve/main/one-F32.gguf", system.hub.url());
    let mut answers = Vec::new();
    for (id, source) in [
        ("parts", json!({"repo": "acme/parts:F32"})),
        ("address", json!({"url": address})),
        ("local", json!({"path": whole})),
    ] {
        let mut body = source;
        body["id"] = json!(id);
        system.api.register(&body).await.ok();
        let model = system.api.until_ready(id).await;
        assert_eq!(model["files"], if id == "parts" { 3 } else { 1 }, "{model}");
        let ask = json!({"model": id, "prompt": "once there was", "max_tokens": 16, "temperature": 0});
        answers.push(system.api.post("/v1/completions", &ask).await.ok()["choices"][0]["text"].clone());
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    assert!(answers[0].as_str().is_some_and(|text| !text.is_empty()));
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

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_of_ggml_ends_its_worker_alone_and_is_named() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    // A norm that adds less than nothing to a mean of squares: it loads, and GGML ends the process at the first pass.
    let key = b"layer_norm_rms_epsilon\x06\0\0\0".as_slice();
    let [sound, broken] = [1e-5f32, -1.0].map(|value| [key, &value.to_le_bytes()].concat());
    let repos = vec![
        family_with(Family::Llama, "acme/broken", &[(&sound, &broken)]),
        family(Family::Llama, "acme/sound"),
    ];
    let system = System::start(repos).await;
    for (repo, id) in [("acme/broken", "broken"), ("acme/sound", "sound")] {
        system.api.register(&json!({"repo": repo, "id": id})).await.ok();
        system.api.until_ready(id).await;
    }
    let ask = async |model: &str| {
        let body = json!({"model": model, "prompt": "once", "max_tokens": 4, "temperature": 0});
        system.api.post("/v1/completions", &body).await
    };
    ask("sound").await.ok();
    let answer = ask("broken").await;
    let message = answer.body["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(answer.status >= 500 && message.contains("GGML_ASSERT(eps >= 0.0f)"), "{answer:?}");
    ask("sound").await.ok();
    let log = system.node.as_ref().expect("it was started").log();
    let of_engine = |level: &str, words: &str| {
        let is_it = |line: &&str| {
            line.contains(level) && line.contains(words) && line.contains("engine_id=\"llama-cpp\"")
        };
        assert!(log.lines().any(|line| is_it(&line)), "no line of {level} with {words}:\n{log}");
    };
    of_engine("ERROR", "llama.cpp ends the process");
    // Of llama.cpp's own lines what it warns of; what it tells at length is below what a node keeps.
    of_engine("WARN", "special_eos_id is not in special_eog_ids");
    assert!(!log.contains("llama_model_loader"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exception_of_llama_cpp_is_a_refusal_and_ends_nobody() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    // A vocabulary that is said to write what it does not know byte by byte, and has no bytes: llama.cpp throws when it looks
    // for one.
    let changes =
        [("gpt2", "llama"), ("llama-bpe", "llama-bp")].map(|(from, to)| (counted(from), counted(to)));
    let changes: Vec<(&[u8], &[u8])> = changes.iter().map(|(from, to)| (&from[..], &to[..])).collect();
    let system = System::start(vec![family_with(Family::Llama, "acme/no-bytes", &changes)]).await;
    system.api.register(&json!({"repo": "acme/no-bytes", "id": "odd"})).await.ok();
    system.api.until_ready("odd").await;
    let ask = async |prompt: serde_json::Value| {
        let body = json!({"model": "odd", "prompt": prompt, "max_tokens": 4, "temperature": 0});
        system.api.post("/v1/completions", &body).await
    };
    let before = ask(json!([5, 6, 7])).await.ok();
    let worker = system.worker().await;
    ask(json!("once")).await.refused(400, &["llama.cpp", "throws"]);
    let after = ask(json!([5, 6, 7])).await.ok();
    assert_eq!(before["choices"][0]["text"], after["choices"][0]["text"]);
    assert_eq!(worker, system.worker().await);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_worker_aborted_is_loaded_again() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let system = System::start(vec![family(Family::Qwen3, "acme/qwen")]).await;
    system.api.register(&json!({"repo": "acme/qwen", "id": "qwen"})).await.ok();
    system.api.until_ready("qwen").await;
    let ask = async || {
        let body = json!({"model": "qwen", "prompt": "once", "max_tokens": 4, "temperature": 0});
        system.api.post("/v1/completions", &body).await.ok()["choices"][0]["text"].clone()
    };
    let before = ask().await;
    let worker = system.worker().await;
    let status = std::process::Command::new("kill").args(["-ABRT", &worker.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "the worker runs");
    until("the end of the worker", || async {
        if runs(worker) { Err("it runs".to_owned()) } else { Ok(()) }
    })
    .await;
    assert_eq!(before, ask().await);
    assert_ne!(worker, system.worker().await, "another worker has it");
    let log = system.node.as_ref().expect("it was started").log();
    assert!(log.contains("SIGABRT"), "the log tells how the worker ended:\n{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_made_for_embeddings_gives_them_and_no_answers() {
    if llama_cpp_is_missing() {
        return;
    }
    engine_dir("llama-cpp");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (encoder, decoder) = (dir.path().join("bert.gguf"), dir.path().join("qwen3.gguf"));
    write_bert_gguf(Pooling::Mean, 1, &encoder).expect("a temporary folder");
    write_pooled_gguf(Family::Qwen3, Pooling::Last, 1, &decoder).expect("a temporary folder");
    let file = |path| std::fs::read(path).expect("just written");
    let system = System::start(vec![
        Repo::new("acme/bert").file("bert-F32.gguf", file(&encoder)),
        Repo::new("acme/qwen").file("qwen-F32.gguf", file(&decoder)),
        family(Family::Llama, "acme/llama"),
    ])
    .await;
    for name in ["bert", "qwen", "llama"] {
        system.api.register(&json!({"repo": format!("acme/{name}"), "id": name})).await.ok();
        let model = system.api.until_ready(name).await;
        let tasks = if name == "llama" { json!(["generate"]) } else { json!(["embed"]) };
        assert_eq!(model["tasks"], tasks, "{model}");
    }
    for (name, size) in [("bert", BertShape::HIDDEN), ("qwen", 96)] {
        let body = json!({"model": name, "input": ["the one", "another", "the one"], "dimensions": size});
        let answer = system.api.post("/v1/embeddings", &body).await.ok();
        let vectors: Vec<Vec<f64>> = (0..3)
            .map(|n| serde_json::from_value(answer["data"][n]["embedding"].clone()).expect("numbers"))
            .collect();
        let product =
            |a: usize, b: usize| -> f64 { vectors[a].iter().zip(&vectors[b]).map(|(a, b)| a * b).sum() };
        assert!(vectors.iter().all(|v| v.len() == size) && (product(1, 1) - 1.0).abs() < 1e-3, "{answer}");
        assert!(product(0, 2) > 0.999 && product(0, 1) < product(0, 2), "{answer}");
        assert!(answer["usage"]["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 3), "{answer}");
        let chat = json!({"model": name, "messages": [{"role": "user", "content": "a"}]});
        system.api.chat(&chat).await.refused(400, &["gives embeddings and no answers"]);
        let long = json!({"model": name, "input": ["a", "a b c d ".repeat(3000)]});
        system.api.post("/v1/embeddings", &long).await.refused(400, &["tokens", "context"]);
    }
    let body = json!({"model": "llama", "input": "a"});
    system.api.post("/v1/embeddings", &body).await.refused(400, &["llama", "pooling_type"]);
}
