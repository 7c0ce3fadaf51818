//! The demo model's recorded answers, token for token, on the emulated device.

#![cfg(emulated)]
#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

#[cfg(stand_in_driver)]
mod driver;

use std::cell::Cell;
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use engine_sdk::{Draw, History, Sampling};
use gpt_oss_cuda::device::{Address, Device, Fetch, Info, Launch, Recording};
use gpt_oss_cuda::emulated::Emulated;
use gpt_oss_cuda::ops::embed::chosen;
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

fn load(device: impl Device + 'static, bounds: Bounds) -> Result<CudaModel, LoadError<Infallible>> {
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
fn answer(device: impl Device + 'static, names: &[&str], chunk: usize) {
    let tokens = |name: &&str| {
        let prompt = prompt(name);
        prompt.prompt_token_ids.len() + prompt.completion_token_ids.len()
    };
    let per_sequence = names.iter().map(tokens).max().unwrap_or(0).div_ceil(BLOCK_TOKENS).max(4);
    let bounds = Bounds {
        context_length: per_sequence * BLOCK_TOKENS,
        sequences_max: names.len(),
        batch_tokens_max: chunk * names.len(),
        blocks: names.len() * per_sequence * 2,
    };
    let mut model = load(device, bounds).unwrap();
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
        let (sampling, history) = (Sampling { temperature: 0.0, ..Sampling::default() }, History::default());
        let lengths: Vec<(usize, bool)> = spans.iter().map(|s| (s.tokens.len(), s.wants_logits)).collect();
        let draws: Vec<Draw<'_>> = (0..lengths.iter().filter(|l| l.1).count())
            .map(|_| Draw { sampling: &sampling, history: &history, position: 0, only: None })
            .collect();
        model.launch(&spans, &draws, &[]).unwrap();
        let mut chosen = model.collect().unwrap().into_iter().map(|c| c.unwrap().unwrap().id);
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
    answer(Emulated::new(0), &["sum"], 64);
}

#[test]
fn tool_call_is_answered_token_for_token() {
    answer(Emulated::new(5), &["tool_call"], 48);
}

#[test]
fn developer_one_word_is_answered_token_for_token() {
    answer(Emulated::new(0), &["developer_one_word"], 7);
}

#[test]
fn side_by_side_they_are_answered_the_same() {
    answer(Emulated::new(4), &["sum", "developer_one_word", "tool_call"], 32);
}

/// More than the kernels for few tokens take, and fewer than the step that is recorded has room for.
#[test]
fn a_crowd_is_answered_the_same() {
    answer(Emulated::new(0), &["capital_low"; 9], 64);
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn every_prompt_is_answered_token_for_token() {
    let bytes = std::fs::read(root().join("assets/demo-model/reference.json")).unwrap();
    let reference: Reference = serde_json::from_slice(&bytes).unwrap();
    let names: Vec<&str> = reference.prompts.iter().map(|p| &*p.name).collect();
    for (n, names) in names.chunks(5).enumerate() {
        answer(Emulated::new(n as u64), names, 64);
    }
}

fn span(position: usize, tokens: &[u32], wants_logits: bool) -> Span<'_> {
    Span { position, tokens, tables: vec![(0, &[3, 1, 6, 4][..]), (0, &[0, 7, 2, 5])], wants_logits }
}

/// On a device that does nothing before somebody waits, and then no more than that.
#[test]
fn a_step_reads_the_token_that_the_one_before_chooses() {
    answer_ahead(Emulated::new(2).late());
}

/// Every step but the first is launched before the token that it reads is known here.
fn answer_ahead(device: impl Device + 'static) {
    let bounds = Bounds { context_length: 256, sequences_max: 1, batch_tokens_max: 64, blocks: 8 };
    let mut model = load(device, bounds).unwrap();
    let Prompt { prompt_token_ids, completion_token_ids, .. } = prompt("sum");
    let (sampling, history) = (Sampling { temperature: 0.0, ..Sampling::default() }, History::default());
    let draw = Draw { sampling: &sampling, history: &history, position: 0, only: None };
    let mut position = 0;
    for chunk in prompt_token_ids.chunks(64) {
        let is_last = position + chunk.len() == prompt_token_ids.len();
        model
            .launch(&[span(position, chunk, is_last)], &[draw.clone()][..usize::from(is_last)], &[])
            .unwrap();
        position += chunk.len();
        if !is_last {
            assert_eq!(model.collect().unwrap().len(), 0);
        }
    }
    for (n, want) in completion_token_ids.iter().enumerate() {
        if n + 1 < completion_token_ids.len() {
            let token = [chosen(0)];
            model.launch(&[span(position, &token, true)], std::slice::from_ref(&draw), &[]).unwrap();
            position += 1;
        }
        let choice = model.collect().unwrap().pop().unwrap().unwrap().unwrap();
        assert_eq!(choice.id, *want, "token {n}");
    }
}

#[test]
fn the_estimate_is_what_a_load_needs() {
    let bounds = Bounds { context_length: 1000, sequences_max: 3, batch_tokens_max: 100, blocks: 40 };
    let config = store(&root().join("assets/demo-model")).config().clone();
    let total = Needs::of(&config, bounds, 4).total();
    let device = Emulated::with_memory(0, total);
    let usage = device.usage();
    let mut model = load(device, bounds).unwrap();
    // Allocations of a driver are whole pages.
    assert_eq!(usage.page_bytes(), total);
    let tables = vec![(0, &[0][..]); 2];
    model.launch(&[Span { position: 0, tokens: &[1], tables, wants_logits: false }], &[], &[]).unwrap();
    model.collect().unwrap();
    assert_eq!(usage.page_bytes(), total, "a step allocates nothing");
    drop(model);
    assert_eq!((usage.bytes(), usage.page_bytes()), (0, 0));
    match load(Emulated::with_memory(0, total - 1), bounds) {
        Err(LoadError::Device(DeviceError::OutOfMemory { wanted, free })) => {
            assert_eq!((wanted, free), (total, total - 1));
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}

/// What a device does until it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// This allocation finds no memory, though there was enough at the beginning: another process took it.
    Allocation(usize),
    /// This call fails, and every later one.
    Call(usize),
}

/// The emulated device with a fault. Counts what came before it.
#[derive(Debug)]
struct Faulty {
    device: Emulated,
    fault: Fault,
    allocations: Cell<usize>,
    calls: Cell<usize>,
}

impl Faulty {
    fn new(fault: Fault) -> Faulty {
        Faulty { device: Emulated::new(0), fault, allocations: Cell::new(0), calls: Cell::new(0) }
    }

    fn call(&self) -> Result<&Emulated, DeviceError> {
        let calls = self.calls.replace(self.calls.get() + 1);
        match self.fault {
            Fault::Call(first) if calls >= first => {
                Err(DeviceError::Failed { operation: "work".into(), cause: "an illegal address".into() })
            }
            _ => Ok(&self.device),
        }
    }
}

impl Device for Faulty {
    fn info(&self) -> Result<Info, DeviceError> {
        self.call()?.info()
    }

    fn allocate(&self, bytes: u64) -> Result<Address, DeviceError> {
        let allocations = self.allocations.replace(self.allocations.get() + 1);
        if self.fault == Fault::Allocation(allocations) {
            return Err(DeviceError::OutOfMemory { wanted: bytes, free: bytes / 2 });
        }
        self.call()?.allocate(bytes)
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.call()?.upload(to, bytes)
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.call()?.download(from, bytes)
    }

    fn begin_fetch(&self, from: Address, bytes: usize) -> Result<Fetch, DeviceError> {
        self.call()?.begin_fetch(from, bytes)
    }

    fn end_fetch(&self, fetch: Fetch, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.call()?.end_fetch(fetch, bytes)
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        self.call()?.launch(launch)
    }

    fn begin_recording(&self) -> Result<(), DeviceError> {
        self.call()?.begin_recording()
    }

    fn end_recording(&self) -> Result<Recording, DeviceError> {
        self.call()?.end_recording()
    }

    fn replay(&self, recording: Recording) -> Result<(), DeviceError> {
        self.call()?.replay(recording)
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.call()?.wait()
    }

    fn seconds(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        self.call()?.seconds(work)
    }
}

const SMALL: Bounds = Bounds { context_length: 64, sequences_max: 1, batch_tokens_max: 16, blocks: 4 };

#[test]
fn whichever_allocation_of_a_load_fails_everything_is_freed_and_both_numbers_are_said() {
    let config = store(&root().join("assets/demo-model")).config().clone();
    // Workspace, KV, the weights before and behind the layers, and each layer's.
    let allocations = 3 + config.layers.len();
    for n in 0..=allocations {
        let device = Faulty::new(Fault::Allocation(n));
        let usage = device.device.usage();
        match load(device, SMALL) {
            Err(LoadError::Device(DeviceError::OutOfMemory { wanted, free })) => {
                assert!(n < allocations && wanted > 0 && free == wanted / 2, "{n}: {wanted}, {free}");
            }
            Ok(_) => assert_eq!(n, allocations, "allocation {n} did not fail"),
            other => panic!("{:?}", other.map(|_| ())),
        }
        assert_eq!(usage.bytes(), 0, "allocation {n}");
    }
}

#[test]
fn whichever_call_fails_its_cause_is_told_and_everything_is_freed() {
    let step = |device: Faulty| -> Result<usize, DeviceError> {
        let mut model = load(device, SMALL).map_err(|error| match error {
            LoadError::Device(error) => error,
            LoadError::Stopped(never) => match never {},
        })?;
        let tables = vec![(0, &[0][..]), (0, &[1][..])];
        let sampling = Sampling::default();
        let history = History::default();
        let draw = Draw { sampling: &sampling, history: &history, position: 1, only: None };
        let span = Span { position: 0, tokens: &[1], tables, wants_logits: true };
        model.launch(&[span], std::slice::from_ref(&draw), &[])?;
        Ok(model.collect()?.len())
    };
    let (mut n, mut failed) = (0, 0);
    loop {
        let device = Faulty::new(Fault::Call(n));
        let usage = device.device.usage();
        let done = step(device);
        assert_eq!(usage.bytes(), 0, "call {n}");
        match done {
            Err(DeviceError::Failed { cause, .. }) => assert_eq!(cause, "an illegal address", "call {n}"),
            Err(other) => panic!("call {n}: {other}"),
            Ok(_) => break,
        }
        failed += 1;
        // All of the first ones, then fewer: a load has some hundred, and so has a step.
        n += 1 + n / 16;
    }
    assert!(failed > 30, "{failed} calls, up to {n}");
}
