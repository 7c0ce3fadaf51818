//! The engine through the SDK, as a worker drives it: load, prompts, overlapping answers, refusals.

#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod metal;
mod paged;
mod portable;

use std::path::{Path, PathBuf};

use engine_sdk::{
    DeviceBytes, Engine, EventKind, FinishReason, Model, ModelFile, ModelFiles, Progress, Prompt, Runner,
    Sampling, SequenceId, Settings, Status, StatusCode,
};
use gpt_oss_plugin::GptOss;
use serde::Deserialize;

/// Steps that no test needs.
const STEPS_MAX: usize = 20_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn files(dir: &Path) -> ModelFiles {
    let mut files: Vec<ModelFile> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| ModelFile { name: entry.file_name().into_string().unwrap(), path: entry.path() })
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    ModelFiles {
        id: "test/model".to_owned(),
        format: "safetensors".to_owned(),
        architecture: "gpt_oss".to_owned(),
        runtime: "gpt-oss".to_owned(),
        dir: dir.to_owned(),
        primary: "model.safetensors.index.json".to_owned(),
        files,
    }
}

fn demo() -> ModelFiles {
    files(&root().join("assets/demo-model"))
}

fn load(files: &ModelFiles, settings: &Settings) -> Result<Runner<<GptOss as Engine>::Model>, Status> {
    let mut report = |_, _| true;
    Runner::new(GptOss::load(files, settings, &[], &mut Progress::new(&mut report))?)
}

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Conversation>,
}

#[derive(Deserialize)]
struct Conversation {
    name: String,
    prompt: String,
    prompt_token_ids: Vec<u32>,
    completion: String,
    completion_token_ids: Vec<u32>,
}

fn conversations() -> Vec<Conversation> {
    let path = root().join("assets/demo-model/reference.json");
    let reference: Reference = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    reference.prompts
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

/// What came out for a sequence.
#[derive(Default, Clone, PartialEq, Debug)]
struct Answer {
    prompt_tokens: u32,
    cached_tokens: u32,
    ids: Vec<u32>,
    bytes: Vec<u8>,
    reason: Option<FinishReason>,
}

/// Steps until nothing runs any more. Sequence `i + 1` is answered in `answers[i]`.
fn run(runner: &mut Runner<<GptOss as Engine>::Model>, answers: &mut [Answer]) {
    let mut report = |_, _| true;
    for _ in 0..STEPS_MAX {
        let left = runner
            .step(&mut Progress::new(&mut report), &mut |event| {
                let answer = &mut answers[event.sequence as usize - 1];
                match &event.kind {
                    EventKind::Started { prompt_tokens, cached_tokens } => {
                        assert_eq!(answer.prompt_tokens, 0, "started twice");
                        (answer.prompt_tokens, answer.cached_tokens) = (*prompt_tokens, *cached_tokens);
                    }
                    EventKind::Token { id, piece, .. } => {
                        answer.ids.push(*id);
                        answer.bytes.extend_from_slice(piece.bytes);
                    }
                    EventKind::Finished { reason, completion_tokens } => {
                        assert_eq!(*completion_tokens as usize, answer.ids.len());
                        answer.reason = Some(*reason);
                    }
                    EventKind::Embedding(_) => panic!("nobody asked for an embedding"),
                    EventKind::Failed(status) => panic!("{status}"),
                }
            })
            .unwrap();
        if left == 0 {
            return;
        }
    }
    panic!("still running after {STEPS_MAX} steps");
}

/// Text in, text out: every conversation of the reference, all submitted at once, four running at a time.
#[test]
fn the_demo_model_answers_all_conversations_side_by_side() {
    let mut runner = load(&demo(), &Settings::default()).unwrap();
    let conversations = conversations();
    assert_eq!(conversations.len(), 25);
    for (i, conversation) in conversations.iter().enumerate() {
        let prompt = Prompt::Text { text: conversation.prompt.clone(), literal: Vec::new() };
        runner.submit(i as SequenceId + 1, prompt, greedy()).unwrap();
    }
    let mut answers = vec![Answer::default(); conversations.len()];
    run(&mut runner, &mut answers);
    for (conversation, answer) in conversations.iter().zip(&answers) {
        let name = &conversation.name;
        assert_eq!(answer.prompt_tokens as usize, conversation.prompt_token_ids.len(), "{name}");
        assert_eq!(answer.ids, conversation.completion_token_ids, "{name}");
        assert_eq!(String::from_utf8_lossy(&answer.bytes), conversation.completion, "{name}");
        assert_eq!(answer.reason, Some(FinishReason::Stop), "{name}");
    }
    assert!(runner.counters().batch_sequences_max >= 2, "answers did not share steps");
    assert_eq!(runner.memory().kv_bytes_used, 0, "a cache outlived its sequence");
}

#[test]
fn prompts_in_tiny_chunks_give_the_same_answer() {
    let settings = Settings { batch_tokens_max: Some(7), sequences_max: Some(2), ..Settings::default() };
    let mut runner = load(&demo(), &settings).unwrap();
    let conversations = conversations();
    for (i, conversation) in conversations[..4].iter().enumerate() {
        let prompt = Prompt::Tokens(conversation.prompt_token_ids.clone());
        runner.submit(i as SequenceId + 1, prompt, greedy()).unwrap();
    }
    let mut answers = vec![Answer::default(); 4];
    run(&mut runner, &mut answers);
    for (conversation, answer) in conversations.iter().zip(&answers) {
        assert_eq!(answer.ids, conversation.completion_token_ids, "{}", conversation.name);
    }
}

#[test]
fn every_end_token_of_the_generation_config_ends_an_answer() {
    let mut runner = load(&demo(), &Settings::default()).unwrap();
    assert_eq!(runner.spec().end_tokens, [2004, 2001, 2014]);
    let prompt = &conversations()[0].prompt_token_ids;
    for (sequence, end) in [2004, 2001, 2014].into_iter().enumerate() {
        let sampling = Sampling { logit_bias: vec![(end, 100.0)], ..greedy() };
        runner.submit(sequence as SequenceId + 1, Prompt::Tokens(prompt.clone()), sampling).unwrap();
    }
    let mut answers = vec![Answer::default(); 3];
    run(&mut runner, &mut answers);
    for (answer, end) in answers.iter().zip([2004, 2001, 2014]) {
        assert_eq!((answer.ids.as_slice(), answer.reason), (&[end][..], Some(FinishReason::Stop)));
    }
}

#[test]
fn sampling_with_a_seed_repeats_itself() {
    let mut answers = vec![Answer::default(); 2];
    for half in answers.chunks_mut(1) {
        let mut runner = load(&demo(), &Settings { sequences_max: Some(1), ..Settings::default() }).unwrap();
        let sampling = Sampling { temperature: 1.5, seed: 7, tokens_max: 20, ..Sampling::default() };
        let prompt = Prompt::Tokens(conversations()[3].prompt_token_ids.clone());
        runner.submit(1, prompt, sampling).unwrap();
        run(&mut runner, half);
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn the_estimate_is_what_a_load_may_use() {
    let settings = Settings { context_length: Some(512), sequences_max: Some(2), ..Settings::default() };
    let estimate = GptOss::estimate(&demo(), &settings).unwrap();
    assert_eq!(estimate.context_length_max, 131_072);
    let need = &estimate.devices[0];
    assert_eq!((need.weights, need.weights_mapped), (0, 5_008_352));
    let exact = need.workspace + 2 * (need.per_sequence + need.kv_fixed + 512 * need.kv_per_token);
    let mut report = |_, _| true;
    for (bytes, fits) in [(exact, true), (exact - 1, false)] {
        let budget = [DeviceBytes { device: "cpu".to_owned(), bytes }];
        let loaded = GptOss::load(&demo(), &settings, &budget, &mut Progress::new(&mut report));
        match loaded {
            Ok(model) => assert!(fits && model.spec().context_length == 512),
            Err(status) => {
                assert!(!fits);
                assert_eq!(
                    (status.code, status.needed, status.available),
                    (StatusCode::OomRam, exact, bytes)
                );
            }
        }
    }
}

/// The copy is memory of our own: it is in the estimate, in what a load may use, and in what is reported.
#[test]
fn an_eight_bit_copy_is_estimated_granted_and_reported() {
    let settings = |dense: &str| Settings {
        context_length: Some(512),
        sequences_max: Some(2),
        options_json: format!(r#"{{"dense_weights":"{dense}"}}"#),
        ..Settings::default()
    };
    let published = GptOss::estimate(&demo(), &settings("bf16")).unwrap().devices.remove(0);
    let need = GptOss::estimate(&demo(), &settings("int8")).unwrap().devices.remove(0);
    let replaced = published.weights_mapped - need.weights_mapped;
    assert_eq!((published.weights, published.workspace), (0, need.workspace));
    // One byte for two and a scale; rows of 192 numbers need 3 scales, which is exact.
    assert_eq!(need.weights * 128, replaced * 66, "{need:?}");
    let exact = need.weights + need.workspace + 2 * (need.kv_fixed + 512 * need.kv_per_token);
    let budget = |bytes| [DeviceBytes { device: "cpu".to_owned(), bytes }];
    let mut seen = Vec::new();
    let mut report = |done, total| {
        seen.push((done, total));
        true
    };
    let model =
        GptOss::load(&demo(), &settings("int8"), &budget(exact), &mut Progress::new(&mut report)).unwrap();
    assert!(seen.is_sorted() && seen.iter().all(|(done, total)| done <= total));
    let refused =
        GptOss::load(&demo(), &settings("int8"), &budget(exact - 1), &mut Progress::new(&mut |_, _| true));
    let status = refused.err().unwrap();
    assert_eq!((status.code, status.needed, status.available), (StatusCode::OomRam, exact, exact - 1));
    assert!(status.message.contains("copy of weights"), "{status}");

    let memory = model.memory();
    let mut quiet = |_, _| true;
    let without = GptOss::load(&demo(), &settings("bf16"), &[], &mut Progress::new(&mut quiet)).unwrap();
    assert_eq!(memory.devices[0].bytes - without.memory().devices[0].bytes, need.weights);
    let details: serde_json::Value = serde_json::from_str(&memory.details_json).unwrap();
    assert_eq!(details["dense_weights"], "int8");
    assert_eq!(details["weights_mapped_bytes"], need.weights_mapped);
    assert_eq!(details["weights_copy"]["bytes"], need.weights);
    assert!(details["weights_copy"]["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn a_load_that_makes_a_copy_can_be_stopped() {
    let settings = Settings { options_json: r#"{"dense_weights":"int8"}"#.to_owned(), ..Settings::default() };
    for reports in 1..20 {
        let mut left = reports;
        let mut stop = |_, _| {
            left -= 1;
            left > 0
        };
        let stopped = GptOss::load(&demo(), &settings, &[], &mut Progress::new(&mut stop));
        assert_eq!(stopped.err().unwrap().code, StatusCode::Cancelled, "after {reports} reports");
    }
}

/// All answers of the trained model stay the same, token by token; where processors sum in another order, one may not.
#[test]
fn answers_with_weights_in_eight_bits_are_the_same() {
    let settings = Settings { options_json: r#"{"dense_weights":"int8"}"#.to_owned(), ..Settings::default() };
    let mut runner = load(&demo(), &settings).unwrap();
    let conversations = conversations();
    for (i, conversation) in conversations.iter().enumerate() {
        let prompt = Prompt::Tokens(conversation.prompt_token_ids.clone());
        runner.submit(i as SequenceId + 1, prompt, greedy()).unwrap();
    }
    let mut answers = vec![Answer::default(); conversations.len()];
    run(&mut runner, &mut answers);
    let pairs = || conversations.iter().zip(&answers);
    let same = pairs().filter(|(c, a)| a.ids == c.completion_token_ids).count();
    println!("{same} of {} answers are the same", conversations.len());
    assert!(same >= 24, "{same}");
}

#[test]
fn running_sequences_stay_inside_the_estimate() {
    let settings = Settings { context_length: Some(600), sequences_max: Some(1), ..Settings::default() };
    let estimate = GptOss::estimate(&demo(), &settings).unwrap();
    let need = &estimate.devices[0];
    let mut runner = load(&demo(), &settings).unwrap();
    let prompt = conversations().into_iter().map(|c| c.prompt_token_ids).max_by_key(Vec::len).unwrap();
    let sampling = Sampling { ignore_end_tokens: true, ..greedy() };
    runner.submit(1, Prompt::Tokens(prompt), sampling).unwrap();
    let mut most = 0;
    let mut report = |_, _| true;
    while runner.step(&mut Progress::new(&mut report), &mut |_| {}).unwrap() > 0 {
        most = most.max(runner.memory().kv_bytes_used);
    }
    assert!(most > 0 && most <= need.kv_fixed + 600 * need.kv_per_token, "{most} bytes of KV");
    assert_eq!(runner.memory().kv_bytes_used, 0);
}

#[test]
fn a_load_reports_progress_and_can_be_stopped() {
    let mut seen = Vec::new();
    let mut report = |done, total| {
        seen.push((done, total));
        true
    };
    GptOss::load(&demo(), &Settings::default(), &[], &mut Progress::new(&mut report)).unwrap();
    assert!(seen.len() >= 4 && seen.is_sorted() && seen.last().is_some_and(|(done, total)| done == total));
    let mut stop = |_, _| false;
    let stopped = GptOss::load(&demo(), &Settings::default(), &[], &mut Progress::new(&mut stop));
    assert_eq!(stopped.err().unwrap().code, StatusCode::Cancelled);
}

#[test]
fn options_are_honoured_or_refused_by_name() {
    let with = |options: &str| Settings { options_json: options.to_owned(), ..Settings::default() };
    load(&demo(), &with(r#"{"isa":"scalar","activations":"f32","touch":false}"#)).unwrap();
    load(&demo(), &with(r#"{"activations":"int8","touch":false}"#)).unwrap();
    for (options, reason, named) in [
        (r#"{"speed":"fast"}"#, "unknown_option", "speed"),
        (r#"{"isa":"sse9"}"#, "invalid_settings", "isa"),
        (r#"{"activations":"f16"}"#, "invalid_settings", "activations"),
        (r#"{"touch":1}"#, "invalid_settings", "touch"),
        (r#"{"deterministic":"yes"}"#, "invalid_settings", "deterministic"),
        (r#"{"prefill_gap_ms":0}"#, "invalid_settings", "prefill_gap_ms"),
        (r#"{"prefill_gap_ms":60001}"#, "invalid_settings", "prefill_gap_ms"),
        (r#"{"pin":"no"}"#, "invalid_settings", "pin"),
        (r#"{"kv_format":"f16"}"#, "invalid_settings", "kv_format"),
        (r#"{"dense_weights":"int4"}"#, "invalid_settings", "dense_weights"),
        (r#"{"dense_weights":8}"#, "invalid_settings", "dense_weights"),
        (r#"{"kv_tokens":0}"#, "invalid_settings", "kv_tokens"),
        (r#"{"kv_tokens":99999999999999999999}"#, "invalid_settings", "kv_tokens"),
        (r#"{"kv_tokens":-1}"#, "invalid_settings", "kv_tokens"),
        ("[]", "invalid_settings", "options"),
        ("{", "invalid_settings", "options"),
    ] {
        for status in [load(&demo(), &with(options)).err(), GptOss::estimate(&demo(), &with(options)).err()] {
            let status = status.unwrap();
            assert_eq!((status.code, status.reason.as_ref()), (StatusCode::Unsupported, reason));
            assert!(status.message.contains(named), "{status}");
        }
    }
    let threads = Settings { threads: Some(1_000_000), ..Settings::default() };
    assert!(load(&demo(), &threads).err().unwrap().message.contains("1000000"));
    let device = Settings { devices: vec!["cuda:0".to_owned()], ..Settings::default() };
    assert_eq!(load(&demo(), &device).err().unwrap().reason, "unknown_device");
}

/// A copy of the nano checkpoint in which one file is changed.
fn broken(file: &str, change: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, Status) {
    let dir = tempfile::tempdir().unwrap();
    let source = root().join("tests/fixtures/gpt-oss/nano");
    for entry in std::fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join(file);
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    let status = load(&files(dir.path()), &Settings::default()).err().unwrap();
    (dir, status)
}

#[test]
fn a_damaged_shard_is_model_corrupt_and_names_file_and_tensor() {
    let shard = "model-00001-of-00001.safetensors";
    let (_dir, status) = broken(shard, |bytes| bytes.truncate(bytes.len() - 100));
    assert_eq!((status.code, status.reason.as_ref()), (StatusCode::ModelCorrupt, "file_corrupt"));
    assert!(status.message.contains(shard) && status.message.contains("tensor "), "{status}");
}

#[test]
fn a_wrong_dtype_is_model_corrupt_and_names_file_and_tensor() {
    let shard = "model-00001-of-00001.safetensors";
    let (_dir, status) = broken(shard, |bytes| {
        let at = bytes.windows(6).position(|w| w == b"\"BF16\"").unwrap();
        bytes[at..at + 6].copy_from_slice(b"\"I16\" ");
    });
    assert_eq!(status.code, StatusCode::ModelCorrupt);
    assert!(status.message.contains(shard) && status.message.contains("is I16, not BF16"), "{status}");
}

#[test]
fn a_missing_shard_is_model_corrupt_and_named() {
    let dir = root().join("tests/fixtures/gpt-oss/nano");
    let mut files = files(&dir);
    files.files.retain(|f| f.name != "model-00000-of-00001.safetensors");
    let status = load(&files, &Settings::default()).err().unwrap();
    assert_eq!(status.code, StatusCode::ModelCorrupt);
    assert!(status.message.contains("model-00000-of-00001.safetensors"), "{status}");
}

#[test]
fn broken_configs_are_model_corrupt_and_name_file_and_field() {
    let (_dir, status) = broken("config.json", |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replace("\"head_dim\": 32", "\"head_dim\": 33").into_bytes();
    });
    assert_eq!(status.code, StatusCode::ModelCorrupt);
    assert!(status.message.contains("config.json") && status.message.contains("head_dim"), "{status}");
    let (_dir, status) =
        broken("generation_config.json", |bytes| *bytes = b"{\"eos_token_id\":\"x\"}".to_vec());
    assert!(status.message.contains("generation_config.json"), "{status}");
    let (_dir, status) = broken("tokenizer.json", |bytes| bytes.truncate(1000));
    assert_eq!(status.code, StatusCode::ModelCorrupt);
    assert!(status.message.contains("tokenizer.json"), "{status}");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let (_dir, status) = broken("tokenizer.json", |bytes| {
        *bytes = std::fs::read(root().join("assets/demo-model/tokenizer.json")).unwrap();
    });
    assert_eq!(status.code, StatusCode::ModelCorrupt);
    assert!(status.message.contains("tokenizer.json") && status.message.contains("1024"), "{status}");
}

#[test]
fn what_is_no_gpt_oss_is_unsupported() {
    let mut files = demo();
    files.architecture = "llama".to_owned();
    assert_eq!(load(&files, &Settings::default()).err().unwrap().code, StatusCode::Unsupported);
}

#[test]
fn the_manifest_says_what_the_library_says() {
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let info = GptOss::info();
    assert_eq!(manifest["id"], info.id);
    assert_eq!(manifest["version"], info.version);
    assert_eq!(manifest["abi_version"], "1.2");
    let devices = GptOss::devices().unwrap();
    let kinds = manifest["devices"].as_array().unwrap();
    assert!(devices.iter().all(|d| kinds.iter().any(|kind| *kind == *d.kind)), "{devices:?}");
    let cpu = devices.last().unwrap();
    assert_eq!((&*cpu.id, kinds.last().unwrap().as_str()), ("cpu", Some("cpu")));
    assert!(cpu.memory_total >= cpu.memory_free && cpu.memory_free > 0);
}
