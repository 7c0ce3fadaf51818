//! The cpu device against the recorded float32 reference, on every kernel this processor has.

#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use gpt_oss_cpu::{CpuModel, Isa, Kv, Mapped, Pool, Span};
use gpt_oss_model::{Oracle, Store};
use serde::Deserialize;

const TOLERANCE: f32 = 1e-3;
const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn open(dir: &Path, isa: Isa, threads: usize) -> CpuModel {
    let store = Store::open(
        "model.safetensors.index.json",
        |name| std::fs::read(dir.join(name)),
        |name| Mapped::open(&dir.join(name)),
    );
    CpuModel::new(store.unwrap(), Pool::new(threads).unwrap(), isa)
}

fn forward(model: &CpuModel, spans: &[Span<'_>], caches: &mut [Option<Kv>]) -> Vec<f32> {
    let wanted = spans.iter().filter(|s| s.wants_logits).count();
    let mut logits = vec![f32::NAN; wanted * model.config().vocabulary];
    let ok: Result<(), Infallible> = model.forward(spans, caches, &mut logits, |_, _| Ok(()));
    ok.unwrap();
    logits
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map(|(i, _)| i as u32).unwrap()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
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

/// Logits at the recorded positions, fed in chunks that end there, and every greedy token.
fn check_shape(shape: &str, isa: Isa) {
    if !isa.is_available() {
        println!("skipped: no {}", isa.as_str());
        return;
    }
    let dir = root().join("tests/fixtures/gpt-oss").join(shape);
    let reference: Reference =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let recorded = std::fs::read(dir.join("logits.safetensors")).unwrap();
    let header = model_formats::Header::parse("logits", &recorded, recorded.len() as u64).unwrap();
    let model = open(&dir, isa, 3);
    let vocabulary = model.config().vocabulary;
    for (k, prompt) in reference.prompts.iter().enumerate() {
        let range = &header.tensors[&k.to_string()].range;
        let floats = recorded[range.start as usize..range.end as usize].as_chunks::<4>().0;
        let expected: Vec<f32> = floats.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let tokens: Vec<u32> = prompt.token_ids.iter().chain(&prompt.greedy).copied().collect();

        let mut caches = [Some(model.new_kv(tokens.len()))];
        let mut start = 0;
        for (position, expected) in prompt.positions.iter().zip(expected.chunks_exact(vocabulary)) {
            let span = Span { sequence: 0, tokens: &tokens[start..=*position], wants_logits: true };
            let error = difference(&forward(&model, &[span], &mut caches), expected);
            assert!(error < TOLERANCE, "{shape} {isa:?} {}: {position} is off by {error}", prompt.name);
            start = position + 1;
        }

        let mut caches = [Some(model.new_kv(tokens.len()))];
        let mut span = &prompt.token_ids[..];
        for (i, expected) in prompt.greedy.iter().enumerate() {
            let spans = [Span { sequence: 0, tokens: span, wants_logits: true }];
            assert_eq!(
                argmax(&forward(&model, &spans, &mut caches)),
                *expected,
                "{shape} {}: {i}",
                prompt.name
            );
            span = &prompt.greedy[i..=i];
        }
    }
}

#[test]
fn nano_equals_the_reference() {
    ALL.iter().for_each(|isa| check_shape("nano", *isa));
}

#[test]
fn tiny_equals_the_reference() {
    ALL.iter().for_each(|isa| check_shape("tiny", *isa));
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
    top20_at_prompt_end: Vec<(usize, f32)>,
}

/// All 25 conversations of the demo model, decoded side by side in one batch.
#[test]
fn the_demo_model_answers_as_recorded() {
    let dir = root().join("assets/demo-model");
    let demo: Demo = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    assert_eq!(demo.prompts.len(), 25);
    let model = open(&dir, Isa::detect(), 2);
    let vocabulary = model.config().vocabulary;
    let mut caches: Vec<Option<Kv>> = demo.prompts.iter().map(|_| Some(model.new_kv(1024))).collect();
    let mut answers: Vec<Vec<u32>> = Vec::new();
    for (sequence, prompt) in demo.prompts.iter().enumerate() {
        let spans = [Span { sequence, tokens: &prompt.prompt_token_ids, wants_logits: true }];
        let logits = forward(&model, &spans, &mut caches);
        for (id, expected) in &prompt.top20_at_prompt_end {
            assert!((logits[*id] - expected).abs() < TOLERANCE, "{}: logit {id}", prompt.name);
        }
        answers.push(vec![argmax(&logits)]);
    }
    loop {
        let running: Vec<usize> = (0..answers.len())
            .filter(|&s| answers[s].len() < demo.prompts[s].completion_token_ids.len())
            .collect();
        if running.is_empty() {
            break;
        }
        let last: Vec<[u32; 1]> = running.iter().map(|&s| [*answers[s].last().unwrap()]).collect();
        let spans: Vec<Span<'_>> = running
            .iter()
            .zip(&last)
            .map(|(&sequence, tokens)| Span { sequence, tokens, wants_logits: true })
            .collect();
        let logits = forward(&model, &spans, &mut caches);
        for (&s, logits) in running.iter().zip(logits.chunks_exact(vocabulary)) {
            answers[s].push(argmax(logits));
        }
    }
    for (prompt, answer) in demo.prompts.iter().zip(&answers) {
        assert_eq!(*answer, prompt.completion_token_ids, "{}", prompt.name);
    }
}

/// How a prompt is cut and what runs beside it makes no difference beyond rounding.
#[test]
fn chunks_and_neighbours_do_not_change_the_result() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let model = open(&dir, Isa::detect(), 2);
    let tokens: Vec<u32> = (0..150).map(|i| (i * 37 + 11) % 1000).collect();
    let oracle = Oracle::new(model.config().clone(), model.store());
    let mut cache = oracle.new_cache();
    let mut expected = Vec::new();
    for token in &tokens {
        expected = oracle.forward(&mut cache, *token);
    }
    for chunk in [1, 7, 64, 149, 150] {
        let mut caches = [Some(model.new_kv(150)), Some(model.new_kv(150))];
        let mut logits = Vec::new();
        for (i, tokens) in tokens.chunks(chunk).enumerate() {
            let other = [i as u32];
            let spans = [
                Span { sequence: 1, tokens: &other, wants_logits: false },
                Span { sequence: 0, tokens, wants_logits: true },
            ];
            logits = forward(&model, &spans, &mut caches);
        }
        let error = difference(&logits, &expected);
        assert!(error < TOLERANCE, "chunks of {chunk}: off by {error}");
    }
}

#[test]
fn a_pass_that_wants_no_logits_only_fills_the_cache() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let model = open(&dir, Isa::detect(), 2);
    let mut caches = [Some(model.new_kv(10))];
    let spans = [Span { sequence: 0, tokens: &[1, 2, 3], wants_logits: false }];
    assert!(forward(&model, &spans, &mut caches).is_empty());
    assert_eq!(caches[0].as_ref().unwrap().len(), 3);
    assert!(caches[0].as_ref().unwrap().bytes() > 0);
}

#[test]
fn a_pass_ends_when_it_is_told_to() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let model = open(&dir, Isa::detect(), 1);
    let mut logits = vec![0.0; model.config().vocabulary];
    let spans = [Span { sequence: 0, tokens: &[1], wants_logits: true }];
    let result = model.forward(&spans, &mut [Some(model.new_kv(4))], &mut logits, |done, total| {
        assert_eq!(total, 4);
        if done == 2 { Err("enough") } else { Ok(()) }
    });
    assert_eq!(result, Err("enough"));
}
