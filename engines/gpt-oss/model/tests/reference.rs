//! The oracle against the recorded float32 reference, and the refusals of a checkpoint that does not fit together.

#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::path::{Path, PathBuf};

use gpt_oss_model::{OpenError, Oracle, Store};
use serde::Deserialize;

const TOLERANCE: f32 = 1e-3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn open(dir: &Path) -> Result<Store<Vec<u8>>, OpenError> {
    let read = |name: &str| std::fs::read(dir.join(name));
    Store::open("model.safetensors.index.json", read, read)
}

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    token_ids: Vec<u32>,
    greedy: Vec<u32>,
    positions: Vec<usize>,
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map(|(i, _)| i as u32).unwrap()
}

/// Teacher-forced logits at the recorded positions, and every greedy token.
fn check_shape(shape: &str) {
    let dir = root().join("tests/fixtures/gpt-oss").join(shape);
    let reference: Reference =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let recorded = std::fs::read(dir.join("logits.safetensors")).unwrap();
    let header =
        model_formats::Header::parse("logits.safetensors", &recorded, recorded.len() as u64).unwrap();
    let store = open(&dir).unwrap();
    let window = store.config().sliding_window;
    let vocabulary = store.config().vocabulary;
    let oracle = Oracle::new(store.config().clone(), &store);
    let mut past_window = 0;
    for (k, prompt) in reference.prompts.iter().enumerate() {
        let range = &header.tensors[&k.to_string()].range;
        let expected: Vec<f32> = recorded[range.start as usize..range.end as usize]
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let mut expected = expected.chunks_exact(vocabulary);
        let mut cache = oracle.new_cache();
        let tokens: Vec<u32> = prompt.token_ids.iter().chain(&prompt.greedy).copied().collect();
        for position in 0..tokens.len() - 1 {
            let logits = oracle.forward(&mut cache, tokens[position]);
            if position + 1 >= prompt.token_ids.len() {
                assert_eq!(
                    argmax(&logits),
                    tokens[position + 1],
                    "{shape} {}: token {position}",
                    prompt.name
                );
            }
            if prompt.positions.contains(&position) {
                let expected = expected.next().unwrap();
                let error = logits.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(error < TOLERANCE, "{shape} {}: position {position} is off by {error}", prompt.name);
                past_window += usize::from(position >= window);
            }
        }
        assert!(expected.next().is_none());
    }
    assert!(past_window >= 8, "the fixtures must reach past the window");
}

#[test]
fn nano_equals_the_reference() {
    check_shape("nano");
}

#[test]
fn tiny_equals_the_reference() {
    check_shape("tiny");
}

#[derive(Deserialize)]
struct Demo {
    prompts: Vec<DemoPrompt>,
}

#[derive(Deserialize)]
struct DemoPrompt {
    name: String,
    prompt_token_ids: Vec<u32>,
    completion_token_ids: Vec<u32>,
}

/// All of the demo model's conversations.
#[test]
fn the_demo_model_answers_as_recorded() {
    let dir = root().join("assets/demo-model");
    let demo: Demo = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let store = open(&dir).unwrap();
    assert_eq!(store.end_tokens(), [2004, 2001, 2014]);
    let oracle = Oracle::new(store.config().clone(), &store);
    assert_eq!(demo.prompts.len(), 25);
    for prompt in &demo.prompts {
        let mut cache = oracle.new_cache();
        let (last, before) = prompt.prompt_token_ids.split_last().unwrap();
        for &token in before {
            oracle.hidden(&mut cache, token);
        }
        let mut token = *last;
        for (i, &expected) in prompt.completion_token_ids.iter().enumerate() {
            token = argmax(&oracle.forward(&mut cache, token));
            assert_eq!(token, expected, "{}: token {i} of the answer", prompt.name);
        }
    }
}

/// Opens nano with some files replaced.
fn open_with(replace: impl Fn(&str) -> Option<std::io::Result<Vec<u8>>>) -> Result<(), OpenError> {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let read = |name: &str| replace(name).unwrap_or_else(|| std::fs::read(dir.join(name)));
    Store::open("model.safetensors.index.json", read, read).map(|_| ())
}

#[test]
fn a_missing_shard_is_named() {
    let error = open_with(|name| {
        (name == "model-00001-of-00001.safetensors").then(|| Err(std::io::ErrorKind::NotFound.into()))
    })
    .unwrap_err();
    assert_eq!(error.to_string(), "cannot read model-00001-of-00001.safetensors");
    assert!(error.is_corrupt());
}

#[test]
fn a_truncated_shard_names_file_and_tensor() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let error = open_with(|name| {
        (name == "model-00000-of-00001.safetensors").then(|| {
            let mut bytes = std::fs::read(dir.join(name))?;
            bytes.truncate(bytes.len() - 5);
            Ok(bytes)
        })
    })
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("model-00000-of-00001.safetensors") && error.contains("tensor model.layers."),
        "{error}"
    );
}

#[test]
fn swapped_shards_are_refused() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let error = open_with(|name| {
        let other = match name {
            "model-00000-of-00001.safetensors" => "model-00001-of-00001.safetensors",
            "model-00001-of-00001.safetensors" => "model-00000-of-00001.safetensors",
            _ => return None,
        };
        Some(std::fs::read(dir.join(other)))
    })
    .unwrap_err();
    assert!(matches!(error, OpenError::Checkpoint(_)), "{error}");
}

#[test]
fn a_config_of_another_shape_names_the_tensor() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let error = open_with(|name| {
        (name == "config.json").then(|| {
            let text = String::from_utf8(std::fs::read(dir.join(name))?).unwrap();
            Ok(text.replace("\"num_local_experts\": 5", "\"num_local_experts\": 6").into_bytes())
        })
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("model.layers.0.mlp.router.bias") && error.contains("[5]"), "{error}");
}

#[test]
fn end_tokens_beyond_the_vocabulary_are_refused() {
    let error = open_with(|name| {
        (name == "generation_config.json").then(|| Ok(b"{\"eos_token_id\":[1,4000]}".to_vec()))
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("generation_config.json") && error.contains("4000"), "{error}");
}

#[test]
fn without_a_generation_config_the_config_alone_says_what_ends_a_reply() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let read = |name: &str| match name {
        "generation_config.json" => Err(std::io::ErrorKind::NotFound.into()),
        _ => std::fs::read(dir.join(name)),
    };
    let store = Store::open("model.safetensors.index.json", read, read).unwrap();
    assert_eq!(store.end_tokens(), [1004]);
}
