//! The engine as a worker drives it, over GGUF files that are made on the spot.
//!
//! Where llama.cpp's toolchain is not there these tests say so and pass, unless `REQUIRE_LLAMA_CPP` is set.
//!
//! `LLAMA_CPP_TEST_ENGINE` names the folder of another build of the engine, such as one for Vulkan, and `LLAMA_CPP_TEST_DEVICE` the
//! device that everything here is then tried on.

#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod conforms;
mod demo;
mod draws;
mod embeddings;
mod files;
mod memory;
mod prefixes;
mod tokens;

use std::path::{Path, PathBuf};

use engine_protocol::{Loaded, Prompt, Sampling, Settings, Submit, Task};
use engine_testkit::build::{engine_dir, llama_cpp_is_missing, workspace_root};
use engine_testkit::suite::{Bench, Subject};
use gpt_oss_synth::{Dense, Family, convert_gguf, write_dense_gguf};
use tempfile::TempDir;

/// The same weights in every run.
const SEED: u64 = 1;

/// A folder with one model in it.
fn family(family: Family) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_dense_gguf(family, SEED, &dir.path().join("model.gguf")).unwrap();
    dir
}

/// A folder with the demo model, its dense parts as published.
fn demo() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (workspace_root().join("assets/demo-model"), dir.path().join("demo.gguf"));
    convert_gguf(&from, Dense::Bf16, &to, |_, _| {}).unwrap();
    dir
}

fn subject(dir: &Path) -> Subject {
    let other = std::env::var_os("LLAMA_CPP_TEST_ENGINE").map(PathBuf::from);
    Subject::new(other.unwrap_or_else(|| engine_dir("llama-cpp")), dir)
}

/// One thread: tests run beside each other, and threads of GGML wait for each other without giving way.
fn settings(context_length: u32, sequences_max: u32) -> Settings {
    let devices = device().into_iter().collect();
    Settings { context_length, sequences_max, threads: 1, devices, ..Settings::default() }
}

/// `None`: that of the build of every run, the CPU.
fn device() -> Option<String> {
    std::env::var("LLAMA_CPP_TEST_DEVICE").ok()
}

/// Whether the memory of the worker's process says nothing about a model, because a driver takes and keeps some of it too.
fn a_driver_takes_memory() -> bool {
    let Some(device) = device().filter(|device| device != "cpu") else { return false };
    println!("skipped: on {device} the driver takes memory of the process too");
    true
}

/// Loaded with room for four sequences.
fn load(dir: &Path, context_length: u32) -> (Bench, Loaded) {
    Bench::load(&subject(dir), &settings(context_length, 4)).unwrap()
}

fn greedy(tokens_max: u32) -> Sampling {
    Sampling { temperature: 0.0, tokens_max, ..Sampling::default() }
}

fn submit(sequence: u64, prompt: Prompt, sampling: Sampling) -> Submit {
    let task = Task::Generate(Box::new(sampling));
    Submit { sequence, request_id: format!("test-{sequence}"), prompt, task, cache_salt: 0 }
}

fn text(text: &str) -> Prompt {
    Prompt::Text { text: text.to_owned(), literal: Vec::new() }
}
