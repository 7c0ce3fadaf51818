use std::collections::HashMap;
use std::path::Path;

use engine_sdk::{EventKind, ModelFile, Prompt, Runner, Sampling, Tokenize as _};

use super::*;

fn config() -> GptOssConfig {
    let config = r#"{"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "sliding_window": 128, "eos_token_id": 200002, "hidden_act": "silu",
        "rope_theta": 150000, "attention_bias": true, "quantization_config": {"quant_method": "mxfp4"}}"#;
    GptOssConfig::parse(config.as_bytes()).expect("the published fields")
}

fn asked(context: u32, sequences: u32) -> Asked {
    let settings =
        Settings { context_length: Some(context), sequences_max: Some(sequences), ..Settings::default() };
    Asked::of(&config(), &settings).expect("it can be")
}

#[test]
fn ids_of_devices_are_read() {
    assert_eq!(number("cuda:0"), Some(0));
    assert_eq!(number("cuda:12"), Some(12));
    assert_eq!([number("cuda"), number("cuda:"), number("cpu"), number("cuda:x")], [None; 4]);
}

#[test]
fn what_is_chosen_fits_what_is_granted() {
    let config = config();
    for granted in [16u64 << 30, 20 << 30, 80 << 30] {
        let bounds = fit(&config, &asked(8192, 32), 132, granted).expect("there is room");
        assert!(Needs::of(&config, bounds, 132).total() <= granted);
    }
    // With room for all nothing more is taken.
    let layout = layout(&config, 0);
    let all = layout.blocks_per_sequence(8192) * 32 + layout.blocks_per_step(DEFAULTS.batch_tokens);
    assert_eq!(fit(&config, &asked(8192, 32), 132, 80 << 30).map(|b| b.blocks as u64), Ok(all));
}

#[test]
fn what_does_not_fit_says_both_numbers() {
    let status = fit(&config(), &asked(131_072, 1), 132, 14 << 30).expect_err("weights alone take 13 GB");
    assert_eq!((status.code, status.available), (StatusCode::OomVram, 14 << 30));
    assert!(status.needed > 14 << 30);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let refused = |settings: Settings| match Asked::of(&config(), &settings) {
        Ok(_) => panic!("{settings:?} is taken"),
        Err(status) => status.param.into_owned(),
    };
    let plain = Settings::default;
    assert_eq!(refused(Settings { context_length: Some(1 << 20), ..plain() }), "context_length");
    assert_eq!(refused(Settings { sequences_max: Some(0), ..plain() }), "sequences_max");
    assert_eq!(refused(Settings { batch_tokens_max: Some(9000), ..plain() }), "batch_tokens_max");
    assert_eq!(refused(Settings { options_json: r#"{"isa": "avx2"}"#.into(), ..plain() }), "isa");
}

#[test]
fn a_failed_device_is_the_engines_end_and_a_full_one_is_not() {
    let failed = DeviceError::Failed { operation: "embed".into(), cause: "an illegal address".into() };
    let got = status(&failed);
    assert_eq!((got.code, &*got.reason), (StatusCode::Internal, reason::DEVICE_FAILED));
    assert!(got.message.contains("embed") && got.message.contains("an illegal address"));
    let got = status(&DeviceError::OutOfMemory { wanted: 7, free: 5 });
    assert_eq!((got.code, got.needed, got.available), (StatusCode::OomVram, 7, 5));
}

#[test]
fn without_a_driver_there_is_no_gpu_and_asking_for_one_says_why() {
    if gpus().is_ok() {
        println!("skipped: there is a driver");
        return;
    }
    assert_eq!(devices(), []);
    let status = find(0).expect_err("there is no driver");
    assert_eq!((status.code, &*status.reason), (StatusCode::Unsupported, reason::UNKNOWN_DEVICE));
    assert!(status.message.starts_with("device cuda:0: "), "{}", status.message);
}

/// A recorded conversation of the demo model: the tokens of its prompt and of its answer.
struct Recorded {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

fn recorded(name: &str) -> Recorded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo-model/reference.json");
    let reference: Value = serde_json::from_slice(&std::fs::read(path).expect("it is there")).expect("JSON");
    let prompts = reference["prompts"].as_array().expect("a list");
    let prompt = prompts.iter().find(|p| p["name"] == name).expect("a prompt of this name");
    let ids = |field: &str| serde_json::from_value(prompt[field].clone()).expect("numbers");
    Recorded { prompt: ids("prompt_token_ids"), answer: ids("completion_token_ids") }
}

fn demo() -> ModelFiles {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../assets/demo-model");
    let entries = std::fs::read_dir(&dir).expect("it is there").map(|entry| entry.expect("it can be read"));
    let file = |entry: std::fs::DirEntry| ModelFile {
        name: entry.file_name().to_string_lossy().into_owned(),
        path: entry.path(),
    };
    ModelFiles {
        id: "demo".to_owned(),
        format: "safetensors".to_owned(),
        architecture: "gpt_oss".to_owned(),
        runtime: "gpt-oss".to_owned(),
        primary: "model.safetensors.index.json".to_owned(),
        files: entries.map(file).collect(),
        dir,
    }
}

/// The demo model on the emulated device; none where there is no such device.
fn emulated(bounds: Bounds) -> Option<Runner<CudaGptOss>> {
    let Some(device) = gpt_oss_cuda::emulated_device(3) else {
        println!("skipped: this build has no emulated device");
        return None;
    };
    let store = files::open(&demo(), &Settings::default()).expect("the demo model").store;
    let tokenizer = files::tokenizer(&demo()).expect("its tokenizer");
    let known: Vec<bool> =
        (0..store.config().vocabulary as u32).map(|id| tokenizer.piece(id).is_some()).collect();
    let loaded = CudaModel::load(device, store.config(), &store, bounds, &known, |_| Ok::<(), Status>(()));
    let Ok(model) = loaded else { panic!("the load failed") };
    let place = Place { device: "cuda:0".to_owned(), driver_bytes: DRIVER_BYTES };
    let model = CudaGptOss::new(model, tokenizer, store.end_tokens().to_vec(), place);
    Some(Runner::new(model).expect("a sound model"))
}

/// Runs until all have ended: the tokens of each, and how many were found in blocks.
fn run(runner: &mut Runner<CudaGptOss>) -> HashMap<u64, (Vec<u32>, u32)> {
    let mut answers: HashMap<u64, (Vec<u32>, u32)> = HashMap::new();
    while runner.sequences() != (0, 0) {
        let mut sink = |event: &engine_sdk::Event<'_>| {
            let answer = answers.entry(event.sequence).or_default();
            match event.kind {
                EventKind::Started { cached_tokens, .. } => answer.1 = cached_tokens,
                EventKind::Token { id, .. } => answer.0.push(id),
                EventKind::Embedding(_) | EventKind::Finished { .. } => {}
                EventKind::Failed(status) => panic!("{status}"),
            }
        };
        runner.step(&mut Progress::new(&mut |_, _| true), &mut sink).expect("the device works");
    }
    answers
}

/// Windows that have let blocks go, a prompt in chunks beside answers, prefixes found again, and an answer held to its
/// beginning: all by the SDK's own scheduler.
#[test]
fn the_scheduler_drives_it_to_the_recorded_answers() {
    let bounds = Bounds { context_length: 512, sequences_max: 3, batch_tokens_max: 100, blocks: 30 };
    let Some(mut runner) = emulated(bounds) else { return };
    let (long, short) = (recorded("memory_long"), recorded("sum"));
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    // The most likely one of a few is the most likely one.
    let likeliest = Sampling { top_k: 1, temperature: 1.0, ..Sampling::default() };
    let held = Sampling { begin_with: vec![beginning(&short)], ..likeliest.clone() };
    let submit = |n: u64, recorded: &Recorded, sampling: &Sampling, runner: &mut Runner<CudaGptOss>| {
        runner.submit(n, Prompt::Tokens(recorded.prompt.clone()), sampling.clone()).expect("it can be");
    };
    submit(1, &long, &greedy, &mut runner);
    submit(2, &short, &greedy, &mut runner);
    submit(3, &short, &likeliest, &mut runner);
    let answers = run(&mut runner);
    assert_eq!(answers[&1].0, long.answer);
    assert_eq!(answers[&2].0, short.answer);
    assert_eq!(answers[&3].0, short.answer);
    submit(4, &long, &greedy, &mut runner);
    submit(5, &short, &held, &mut runner);
    let answers = run(&mut runner);
    assert_eq!(answers[&4].0, long.answer);
    assert_eq!(answers[&5].0, short.answer);
    assert!(answers[&4].1 >= 64, "{} tokens were found again", answers[&4].1);
}

/// Each changes every logit, and a step has room for three of them: the logits of one row leave the device.
#[test]
fn rows_that_change_too_much_are_chosen_by_the_host() {
    let bounds = Bounds { context_length: 128, sequences_max: 4, batch_tokens_max: 64, blocks: 30 };
    let Some(mut runner) = emulated(bounds) else { return };
    let vocabulary = runner.spec().vocabulary_size;
    let short = recorded("sum");
    for n in 1..=4 {
        let logit_bias = (0..vocabulary).map(|id| (id, 0.0)).collect();
        let sampling = Sampling { temperature: 0.0, logit_bias, ..Sampling::default() };
        runner.submit(n, Prompt::Tokens(short.prompt.clone()), sampling).expect("it can be");
    }
    for (n, (tokens, _)) in run(&mut runner) {
        assert_eq!(tokens, short.answer, "sequence {n}");
    }
}

/// The spelling of the first two tokens of an answer.
fn beginning(recorded: &Recorded) -> String {
    let tokenizer = files::tokenizer(&demo()).expect("its tokenizer");
    let pieces = recorded.answer[..2].iter().filter_map(|id| tokenizer.piece(*id));
    String::from_utf8(pieces.flat_map(|piece| piece.bytes.to_vec()).collect()).expect("text")
}

/// Blocks for little more than one of them: they give way to one another and are read again.
#[test]
fn sequences_that_give_way_are_answered_the_same() {
    let bounds = Bounds { context_length: 128, sequences_max: 3, batch_tokens_max: 64, blocks: 7 };
    let Some(mut runner) = emulated(bounds) else { return };
    let short = recorded("sum");
    for n in 1..=3 {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        runner.submit(n, Prompt::Tokens(short.prompt.clone()), greedy).expect("it can be");
    }
    for (n, (tokens, _)) in run(&mut runner) {
        assert_eq!(tokens, short.answer, "sequence {n}");
    }
}
