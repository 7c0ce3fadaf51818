//! The demo model's recorded answers, token for token, on the emulated device.

#![cfg(emulated)]
#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use engine_sdk::{Draw, History, Sampling};
use gpt_oss_cuda::emulated::Emulated;
use gpt_oss_cuda::plan::BLOCK_TOKENS;
use gpt_oss_cuda::weights::LoadError;
use gpt_oss_cuda::{Bounds, CudaModel, DeviceError, Needs, Span};
use gpt_oss_model::Store;
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    prompt_token_ids: Vec<u32>,
    completion_token_ids: Vec<u32>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn store(dir: &Path) -> Store<Vec<u8>> {
    let read = |name: &str| std::fs::read(dir.join(name));
    Store::open("model.safetensors.index.json", read, read).unwrap()
}

fn load(device: Emulated, bounds: Bounds) -> Result<CudaModel, LoadError<Infallible>> {
    let store = store(&root().join("assets/demo-model"));
    let known = vec![true; store.config().vocabulary];
    CudaModel::load(Box::new(device), store.config(), &store, bounds, &known, |_| Ok(()))
}

/// Sequences that are read side by side, each in blocks of its own.
struct Chat {
    prompt: Prompt,
    /// Of each group.
    blocks: Vec<Vec<u32>>,
    tokens: Vec<u32>,
    /// Tokens whose keys and values are there.
    done: usize,
}

fn prompt(name: &str) -> Prompt {
    let bytes = std::fs::read(root().join("assets/demo-model/reference.json")).unwrap();
    let reference: Reference = serde_json::from_slice(&bytes).unwrap();
    reference.prompts.into_iter().find(|p| p.name == name).unwrap()
}

/// Answers the prompts together: prompts in chunks, then a token each, chosen on the device.
fn answer(names: &[&str], chunk: usize, schedule: u64) {
    let per_sequence = 4;
    let bounds = Bounds {
        context_length: per_sequence * BLOCK_TOKENS,
        sequences_max: names.len(),
        batch_tokens_max: chunk * names.len(),
        blocks: names.len() * per_sequence * 2,
    };
    let mut model = load(Emulated::new(schedule), bounds).unwrap();
    let groups = model.groups().windows.len();
    let mut free = (0..bounds.blocks as u32).rev();
    let mut chats: Vec<Chat> = names
        .iter()
        .map(|name| {
            let prompt = prompt(name);
            let blocks = (0..groups).map(|_| free.by_ref().take(per_sequence).collect()).collect();
            Chat { tokens: prompt.prompt_token_ids.clone(), prompt, blocks, done: 0 }
        })
        .collect();
    let is_answered =
        |c: &Chat| c.tokens.len() == c.prompt.prompt_token_ids.len() + c.prompt.completion_token_ids.len();
    while chats.iter().any(|c| !is_answered(c)) {
        let mut at_work: Vec<&mut Chat> = chats.iter_mut().filter(|c| !is_answered(c)).collect();
        let spans: Vec<Span<'_>> = at_work
            .iter()
            .map(|chat| {
                let end = chat.tokens.len().min(chat.done + chunk);
                Span {
                    position: chat.done,
                    tokens: &chat.tokens[chat.done..end],
                    tables: chat.blocks.iter().map(|blocks| (0, &blocks[..])).collect(),
                    wants_logits: end == chat.tokens.len(),
                }
            })
            .collect();
        model.forward(&spans).unwrap();
        let (sampling, history) = (Sampling { temperature: 0.0, ..Sampling::default() }, History::default());
        let lengths: Vec<(usize, bool)> = spans.iter().map(|s| (s.tokens.len(), s.wants_logits)).collect();
        let draws: Vec<Draw<'_>> = (0..lengths.iter().filter(|l| l.1).count())
            .map(|_| Draw { sampling: &sampling, history: &history, position: 0, only: None })
            .collect();
        let mut chosen = Vec::new();
        if !draws.is_empty() {
            let choices = model.sample(&draws, &[]).unwrap();
            chosen.extend(choices.into_iter().map(|c| c.unwrap().unwrap().id));
        }
        let mut chosen = chosen.into_iter();
        for (chat, (length, wanted)) in at_work.iter_mut().zip(lengths) {
            chat.done += length;
            if wanted {
                let at = chat.tokens.len() - chat.prompt.prompt_token_ids.len();
                let token = chosen.next().unwrap();
                assert_eq!(token, chat.prompt.completion_token_ids[at], "{}: token {at}", chat.prompt.name);
                chat.tokens.push(token);
            }
        }
    }
}

#[test]
fn sum_is_answered_token_for_token() {
    answer(&["sum"], 64, 0);
}

#[test]
fn tool_call_is_answered_token_for_token() {
    answer(&["tool_call"], 48, 5);
}

#[test]
fn developer_one_word_is_answered_token_for_token() {
    answer(&["developer_one_word"], 7, 0);
}

#[test]
fn side_by_side_they_are_answered_the_same() {
    answer(&["sum", "developer_one_word", "tool_call"], 32, 4);
}

/// More than the kernels for few tokens take, and fewer than the step that is recorded has room for.
#[test]
fn a_crowd_is_answered_the_same() {
    answer(&["capital_low"; 9], 64, 0);
}

#[test]
fn the_estimate_is_what_a_load_needs() {
    let bounds = Bounds { context_length: 1000, sequences_max: 3, batch_tokens_max: 100, blocks: 40 };
    let config = store(&root().join("assets/demo-model")).config().clone();
    let total = Needs::of(&config, bounds, 4).total();
    let model = load(Emulated::with_memory(0, total), bounds).unwrap();
    let free = model.device().info().unwrap().memory_free;
    // Allocations begin and end at pages of 2 MiB: one for each layer, and three.
    assert!(free < (config.layers.len() as u64 + 3) << 21, "{free} of {total} bytes are left");
    match load(Emulated::with_memory(0, total - 1), bounds) {
        Err(LoadError::Device(DeviceError::OutOfMemory { wanted, free })) => {
            assert_eq!((wanted, free), (total, total - 1));
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}
