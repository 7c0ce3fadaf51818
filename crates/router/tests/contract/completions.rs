//! `/v1/completions` from request to answer.

use fixture_hub::Repo;
use model_formats::gguf::HeadWriter;
use node_api::{FinishReason, Prompt};
use serde_json::{Value, json};

use crate::support::*;

fn body(change: Value) -> Value {
    let mut body = json!({"model": "org/tiny", "prompt": "say"});
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test]
async fn both_ways_give_the_same_text() {
    let (world, node) = World::ready().await;
    node.reply_events(words(&["one", " two"]));
    let (status, whole) = world.post("/v1/completions", &body(json!({"echo": true}))).await;
    assert_eq!(status, 200, "{whole}");
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["choices"][0]["text"], "sayone two");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole["usage"]["completion_tokens"], 3);
    let request = node.call().await.request;
    assert_eq!(request.prompt, Prompt::Text { text: "say".into(), literal: Vec::new() });
    assert_eq!(request.sampling.tokens_max, 16);

    node.reply_events(words(&["one", " two"]));
    let streamed = body(json!({"echo": true, "stream": true, "stream_options": {"include_usage": true}}));
    let chunks = Events::read(world.send("/v1/completions", &streamed).await).await.chunks();
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "sayone two");
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_text_begins_as_the_vocabulary_says_and_once() {
    let world = World::new().await;
    for (id, says, begins) in [("org/begins", None, true), ("org/begins-not", Some(false), false)] {
        let head = HeadWriter::default()
            .text("general.architecture", "llama")
            .number("llama.context_length", 64)
            .text("tokenizer.ggml.model", "llama")
            .texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>"])
            .integers("tokenizer.ggml.token_type", &[2, 3, 3]);
        let head = says.into_iter().fold(head, |head, says| head.flag("tokenizer.ggml.add_bos_token", says));
        world.hub.push(Repo::new(id).file("model.gguf", head.finish(&[])));
        world.register(id).await;
        let node = FakeNode::join(&world, &id.replace('/', "-")).await;
        world.wait_for_state(id, "ready").await;
        let of = |text: &str| Prompt::Text { text: text.to_owned(), literal: Vec::new() };
        for (prompt, expected) in [
            (json!("say"), of(if begins { "<s>say" } else { "say" })),
            (json!("<s>say"), of("<s>say")),
            (json!([0]), Prompt::Tokens(vec![0])),
        ] {
            node.reply_events(words(&["one"]));
            let request = json!({"model": id, "prompt": prompt, "echo": prompt.is_string()});
            let (status, whole) = world.post("/v1/completions", &request).await;
            assert_eq!(status, 200, "{whole}");
            assert_eq!(node.call().await.request.prompt, expected);
            let echoed = prompt.as_str().unwrap_or_default();
            assert_eq!(whole["choices"][0]["text"], format!("{echoed}one"), "what was asked is what is told");
        }
        node.leave();
        world.wait_for_nodes(0).await;
    }
}

#[tokio::test]
async fn several_prompts_have_several_choices_in_order() {
    let (world, node) = World::ready().await;
    let (status, whole) =
        world.post("/v1/completions", &body(json!({"prompt": [[1, 2], [3]], "n": 2}))).await;
    assert_eq!(status, 200, "{whole}");
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(whole["usage"]["prompt_tokens"], 14, "each prompt counts once");
    let mut prompts = Vec::new();
    for _ in 0..4 {
        prompts.push(format!("{:?}", node.call().await.request.prompt));
    }
    prompts.sort();
    assert_eq!(prompts, ["Tokens([1, 2])", "Tokens([1, 2])", "Tokens([3])", "Tokens([3])"]);
}

#[tokio::test]
async fn stop_strings_go_to_the_engine_and_are_cut_here() {
    let (world, node) = World::ready().await;
    node.reply_events(vec![started(), text("abc E"), text("ND tail"), finished(FinishReason::Stop, 2)]);
    let (_, whole) = world.post("/v1/completions", &body(json!({"stop": "END"}))).await;
    assert_eq!(
        (whole["choices"][0]["text"].as_str(), whole["choices"][0]["finish_reason"].as_str()),
        (Some("abc "), Some("stop"))
    );
    assert_eq!(node.call().await.request.sampling.stop, ["END"]);
    // What only began like one comes out at the end.
    node.reply_events(vec![started(), text("abc E"), text("N"), finished(FinishReason::Length, 2)]);
    let (_, whole) = world.post("/v1/completions", &body(json!({"stop": "END"}))).await;
    assert_eq!(
        (whole["choices"][0]["text"].as_str(), whole["choices"][0]["finish_reason"].as_str()),
        (Some("abc EN"), Some("length"))
    );
}

#[tokio::test]
async fn logprobs_have_one_entry_a_token() {
    let (world, node) = World::ready().await;
    let token = |text: &str| {
        let entry = |text: &str, logprob| node_api::TokenLogprob {
            id: 1,
            logprob,
            bytes: text.as_bytes().to_vec().into(),
        };
        node_api::GenerateEvent::Token(node_api::Token {
            id: 1,
            bytes: text.as_bytes().to_vec().into(),
            control: false,
            logprobs: vec![entry(text, -1.0), entry("best", -0.25)],
        })
    };
    node.reply_events(vec![started(), token("né"), token(" b"), finished(FinishReason::Length, 2)]);
    let (_, whole) = world.post("/v1/completions", &body(json!({"logprobs": 1}))).await;
    let logprobs = &whole["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["né", " b"]));
    assert_eq!(logprobs["token_logprobs"], json!([-1.0, -1.0]));
    assert_eq!(logprobs["top_logprobs"][0], json!({"best": -0.25}));
    assert_eq!(logprobs["text_offset"], json!([0, 2]));
}

#[tokio::test]
async fn empty_prompts_and_unsupported_fields_are_refused() {
    let (world, _node) = World::ready().await;
    for (change, param) in [
        (json!({"prompt": ""}), "prompt"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"messages": []}), "messages"),
    ] {
        let (status, answer) = world.post("/v1/completions", &body(change)).await;
        assert_eq!((status.as_u16(), answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    }
}
