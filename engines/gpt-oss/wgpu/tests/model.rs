//! The whole model on a device, against recorded references; on a software adapter where there is no other.

#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_sdk::{Draw, History, Sampling};
use gpt_oss_model::{GptOssConfig, Oracle, Store};
use gpt_oss_wgpu::device::STAGING_BYTES_MAX;
use gpt_oss_wgpu::shaders::{Form, Shape};
use gpt_oss_wgpu::{
    Adapter, BLOCK_TOKENS, Bounds, DeviceError, Gpu, KeptWeights, KvGroups, LoadError, Needs, Span, Table,
    Verdict, WgpuModel, measure,
};
use serde::Deserialize;

/// How far off logits may be.
fn tolerance(model: &WgpuModel) -> f32 {
    match model.gpu().adapter().form {
        Form::Plain | Form::Subgroups => 1e-3,
        Form::Matrices { .. } => 5e-3,
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn fixture(shape: &str) -> PathBuf {
    root().join("tests/fixtures/gpt-oss").join(shape)
}

fn open(dir: &Path) -> Arc<Store<Vec<u8>>> {
    let read = |name: &str| std::fs::read(dir.join(name));
    Arc::new(Store::open("model.safetensors.index.json", read, read).unwrap())
}

fn adapter() -> Option<Adapter> {
    let Some(mut adapter) = Adapter::all().into_iter().find(|a| !matches!(a.verdict, Verdict::Unusable(_)))
    else {
        println!("skipped: no adapter (Mesa's lavapipe is installed by `cargo xtask test`)");
        return None;
    };
    // Weights of these tests are in memory of the process, which Metal is not to wrap.
    adapter.in_place = false;
    Some(adapter)
}

/// A model, and sequences that have all their blocks from the beginning.
struct Bed {
    model: WgpuModel,
    /// Of each sequence and group.
    tables: Vec<Vec<Vec<u32>>>,
    lengths: Vec<usize>,
}

/// Some tokens of a sequence, and whether the logits after the last are wanted.
type Part<'a> = (usize, &'a [u32], bool);

/// With a tokenizer that has every token.
fn load(
    adapter: Adapter,
    store: &Arc<Store<Vec<u8>>>,
    bounds: Bounds,
) -> Result<WgpuModel, LoadError<Infallible>> {
    let known = vec![true; store.config().vocabulary];
    let weights: KeptWeights = Arc::clone(store) as _;
    WgpuModel::load(adapter, store.config(), &weights, bounds, &known, |_| Ok(()))
}

fn bounds(config: &GptOssConfig, sequences: usize, tokens_max: usize) -> Bounds {
    let blocks = sequences * KvGroups::of(config).windows.len() * tokens_max.div_ceil(BLOCK_TOKENS);
    Bounds {
        context_length: tokens_max,
        sequences_max: sequences,
        batch_tokens_max: tokens_max.max(sequences),
        blocks,
    }
}

impl Bed {
    fn load(dir: &Path, sequences: usize, tokens_max: usize) -> Option<Bed> {
        let store = open(dir);
        let bounds = bounds(store.config(), sequences, tokens_max);
        Some(Bed::with(load(adapter()?, &store, bounds).unwrap(), sequences, tokens_max))
    }

    fn with(model: WgpuModel, sequences: usize, tokens_max: usize) -> Bed {
        let bounds = model.bounds();
        let blocks = tokens_max.div_ceil(BLOCK_TOKENS);
        // From the last one down: nothing depends on their order.
        let mut next = (0..bounds.blocks as u32).rev();
        let groups = model.groups().windows.len();
        let tables = (0..sequences)
            .map(|_| (0..groups).map(|_| next.by_ref().take(blocks).collect()).collect())
            .collect();
        Bed { model, tables, lengths: vec![0; sequences] }
    }

    fn forward(&mut self, parts: &[Part<'_>]) -> Vec<f32> {
        let tables: Vec<Vec<Table<'_>>> = parts
            .iter()
            .map(|(sequence, ..)| {
                self.tables[*sequence].iter().map(|blocks| Table { first: 0, blocks }).collect()
            })
            .collect();
        let spans: Vec<Span<'_>> = parts
            .iter()
            .zip(&tables)
            .map(|(&(sequence, tokens, wants_logits), tables)| Span {
                position: self.lengths[sequence],
                tokens,
                tables,
                wants_logits,
                chosen_by: None,
            })
            .collect();
        let wanted = parts.iter().filter(|p| p.2).count();
        let mut logits = vec![f32::NAN; wanted * self.model.config().vocabulary];
        let ok: Result<(), LoadError<Infallible>> = self.model.forward(&spans, &mut logits, |_, _| Ok(()));
        ok.unwrap();
        for (sequence, tokens, _) in parts {
            self.lengths[*sequence] += tokens.len();
        }
        logits
    }

    fn begin_anew(&mut self) {
        self.lengths.fill(0);
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map(|(i, _)| i as u32).unwrap()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().all(|x| x.is_finite()));
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
fn compare(shape: &str) {
    let dir = fixture(shape);
    let reference: Reference =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let recorded = std::fs::read(dir.join("logits.safetensors")).unwrap();
    let header = model_formats::Header::parse("logits", &recorded, recorded.len() as u64).unwrap();
    let longest = reference.prompts.iter().map(|p| p.token_ids.len() + p.greedy.len()).max().unwrap();
    let Some(mut bed) = Bed::load(&dir, 1, longest) else { return };
    let vocabulary = bed.model.config().vocabulary;
    let mut largest: f32 = 0.0;
    for (k, prompt) in reference.prompts.iter().enumerate() {
        let range = &header.tensors[&k.to_string()].range;
        let floats = recorded[range.start as usize..range.end as usize].as_chunks::<4>().0;
        let expected: Vec<f32> = floats.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let tokens: Vec<u32> = prompt.token_ids.iter().chain(&prompt.greedy).copied().collect();
        bed.begin_anew();
        let mut start = 0;
        for (position, expected) in prompt.positions.iter().zip(expected.chunks_exact(vocabulary)) {
            let logits = bed.forward(&[(0, &tokens[start..=*position], true)]);
            largest = largest.max(difference(&logits, expected));
            start = position + 1;
        }
        bed.begin_anew();
        let mut span = &prompt.token_ids[..];
        for (i, expected) in prompt.greedy.iter().enumerate() {
            let token = argmax(&bed.forward(&[(0, span, true)]));
            assert_eq!(token, *expected, "{shape} {}: {i}", prompt.name);
            span = &prompt.greedy[i..=i];
        }
    }
    println!("{shape}: off by {largest} at most, {} launches a token", bed.model.dispatches());
    assert!(largest < tolerance(&bed.model), "{shape}: off by {largest}");
}

#[test]
fn nano_equals_the_reference() {
    compare("nano");
}

#[test]
fn tiny_equals_the_reference() {
    compare("tiny");
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

/// Conversations of the demo model, decoded side by side in one batch.
fn check_demo(keep: impl Fn(&DemoPrompt) -> bool, count: usize) {
    let dir = root().join("assets/demo-model");
    let demo: Demo = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let prompts: Vec<&DemoPrompt> = demo.prompts.iter().filter(|p| keep(p)).collect();
    assert_eq!(prompts.len(), count);
    let longest =
        prompts.iter().map(|p| p.prompt_token_ids.len() + p.completion_token_ids.len()).max().unwrap();
    let Some(mut bed) = Bed::load(&dir, count, longest) else { return };
    let vocabulary = bed.model.config().vocabulary;
    let mut answers: Vec<Vec<u32>> = Vec::new();
    for (sequence, prompt) in prompts.iter().enumerate() {
        let logits = bed.forward(&[(sequence, &prompt.prompt_token_ids, true)]);
        for (id, expected) in &prompt.top20_at_prompt_end {
            let error = (logits[*id] - expected).abs();
            assert!(error < tolerance(&bed.model), "{}: logit {id} is off by {error}", prompt.name);
        }
        answers.push(vec![argmax(&logits)]);
    }
    loop {
        let running: Vec<usize> =
            (0..count).filter(|&s| answers[s].len() < prompts[s].completion_token_ids.len()).collect();
        if running.is_empty() {
            break;
        }
        let last: Vec<[u32; 1]> = running.iter().map(|&s| [*answers[s].last().unwrap()]).collect();
        let parts: Vec<Part<'_>> =
            running.iter().zip(&last).map(|(&s, tokens)| (s, &tokens[..], true)).collect();
        let logits = bed.forward(&parts);
        for (&s, logits) in running.iter().zip(logits.chunks_exact(vocabulary)) {
            answers[s].push(argmax(logits));
        }
    }
    for (prompt, answer) in prompts.iter().zip(&answers) {
        assert_eq!(*answer, prompt.completion_token_ids, "{}", prompt.name);
    }
}

#[test]
fn the_demo_model_answers_three_prompts_as_recorded() {
    check_demo(|p| ["sum", "tool_call", "developer_one_word"].contains(&p.name.as_str()), 3);
}

#[test]
#[ignore = "minutes on a software adapter: cargo xtask test --long"]
fn the_demo_model_answers_every_prompt_as_recorded() {
    check_demo(|_| true, 25);
}

/// How a prompt is cut and what runs beside it makes no difference beyond rounding.
#[test]
fn chunks_and_neighbours_do_not_change_the_result() {
    let dir = fixture("nano");
    let Some(mut bed) = Bed::load(&dir, 2, 150) else { return };
    let store = open(&dir);
    let tokens: Vec<u32> = (0..150).map(|i| (i * 37 + 11) % 1000).collect();
    let oracle = Oracle::new(store.config().clone(), &*store);
    let mut cache = oracle.new_cache();
    let mut expected = Vec::new();
    for token in &tokens {
        expected = oracle.forward(&mut cache, *token);
    }
    for chunk in [1, 7, 64, 149] {
        bed.begin_anew();
        let mut logits = Vec::new();
        for (i, tokens) in tokens.chunks(chunk).enumerate() {
            let other = [i as u32];
            logits = bed.forward(&[(1, &other, false), (0, tokens, true)]);
        }
        let error = difference(&logits, &expected);
        assert!(error < tolerance(&bed.model), "chunks of {chunk}: off by {error}");
    }
}

/// What the estimate says is what is allocated, byte for byte.
#[test]
fn the_estimate_is_what_a_load_allocates() {
    for (shape, sequences, tokens) in [("nano", 1, 70), ("tiny", 5, 200)] {
        let Some(bed) = Bed::load(&fixture(shape), sequences, tokens) else { return };
        let needs = Needs::of(bed.model.config(), bed.model.bounds());
        assert_eq!(bed.model.gpu().used(), needs.total(), "{shape}");
    }
}

/// On an adapter that is limited on purpose, before anything is allocated.
#[test]
fn a_model_that_is_too_large_for_a_buffer_is_refused_with_both_numbers() {
    let Some(mut adapter) = adapter() else { return };
    let store = open(&fixture("nano"));
    let bounds = bounds(store.config(), 1, 64);
    let (largest, of) = Needs::of(store.config(), bounds).largest;
    (adapter.buffer_max, adapter.binding_max) = (largest, largest - 4);
    let Err(LoadError::Device(DeviceError::TooLarge { what, wanted, limit })) =
        load(adapter.clone(), &store, bounds)
    else {
        panic!("it was loaded, or failed in another way");
    };
    assert_eq!((&what[..], wanted, limit), (of, largest, largest - 4));
    adapter.binding_max = largest;
    assert!(load(adapter, &store, bounds).is_ok(), "it has room");
}

fn open_metal(shape: &str) -> Arc<Store<Vec<u8>>> {
    let dir = fixture(shape);
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.bin");
    gpt_oss_synth::convert_metal(&dir, &path).unwrap();
    let bytes = std::fs::read(path).unwrap();
    Arc::new(Store::open_metal("model.metal.bin", bytes, |name: &str| std::fs::read(dir.join(name))).unwrap())
}

/// What Metal binds where files are mapped, with a copy of the pages in their place: every number is what it is uploaded. The
/// experts' blocks of a `model.bin` lie apart, up and down of a layer in one buffer.
#[test]
fn weights_that_stay_in_their_pages_compute_what_uploaded_ones_do() {
    if cfg!(target_os = "macos") {
        return println!(
            "skipped: a Mac wraps the pages, which have to be a file's; the self-test loads such"
        );
    }
    let (prompt, token) = ([5, 900, 17, 33, 2, 711], [42]);
    for (form, store) in [("safetensors", open(&fixture("tiny"))), ("model.bin", open_metal("tiny"))] {
        let bounds = bounds(store.config(), 1, 10);
        let run = |in_place: bool, weights_max: u64| {
            let mut adapter = adapter()?;
            (adapter.in_place, adapter.weights_max) = (in_place, weights_max);
            let mut bed = Bed::with(load(adapter, &store, bounds).unwrap(), 1, 10);
            let logits = [bed.forward(&[(0, &prompt, true)]), bed.forward(&[(0, &token, true)])];
            let gpu = bed.model.gpu();
            Some((logits, gpu.used(), gpu.buffers(), bed.model.dispatches()))
        };
        let Some(uploaded) = run(false, u64::MAX) else { return };
        let in_place = run(true, u64::MAX).unwrap();
        assert_eq!(uploaded.0, in_place.0, "{form}");
        assert_eq!(uploaded.1, in_place.1, "{form}: as many bytes of weights, each counted once");
        let layers = store.config().layers.len();
        match form {
            // Queries, keys and values are three matrices.
            "safetensors" => assert_eq!(in_place.3, uploaded.3 + 2 * layers),
            // The same launches, and two tensors of each layer are one buffer; small ones in the same pages are, too.
            _ => assert!(in_place.3 == uploaded.3 && in_place.2 <= uploaded.2 - layers, "{}", in_place.2),
        }
        // What lies in one piece in its file, beside what is uploaded in as many as can be.
        let both = run(true, 1 << 12).unwrap();
        assert_eq!(uploaded.0, both.0, "{form}");
        assert!(form == "safetensors" || both.3 > in_place.3, "{form}: {} launches", both.3);
    }
}

/// Parts of a `model.bin` are smaller than what is on its way at most, and are many.
#[test]
fn many_uploads_are_no_more_on_their_way_than_one_may_be() {
    const PART: usize = STAGING_BYTES_MAX / 4;
    const PARTS: usize = 12;
    // Of the driver's: blocks that it hands out whole.
    const SLACK: u64 = 8 << 20;
    let Some(adapter) = adapter() else { return };
    let mut gpu = Gpu::open(adapter, Shape { head_dim: 64, group: 8 }).unwrap();
    let to = gpu.allocate("a test", (PART * PARTS) as u64).unwrap();
    let Some(before) = gpu.driver_bytes() else {
        println!("skipped: wgpu does not count memory of this interface");
        return;
    };
    assert!(before >= (PART * PARTS) as u64, "{before}");
    let part: Vec<u8> = (0..PART).map(|i| i as u8).collect();
    let mut most = 0;
    for n in 0..PARTS {
        gpu.upload(to, (n * PART) as u64, &part).unwrap();
        most = most.max(gpu.driver_bytes().unwrap() - before);
    }
    println!("{most} bytes of staging at most, of {}", PART * PARTS);
    assert!(most >= PART as u64 && most <= STAGING_BYTES_MAX as u64 + SLACK, "{most}");
    let last = gpu.download(to, (PARTS * PART - 8) / 4, 2).unwrap();
    assert_eq!(
        last,
        [u32::from_le_bytes([0xf8, 0xf9, 0xfa, 0xfb]), u32::from_le_bytes([0xfc, 0xfd, 0xfe, 0xff])]
    );
}

/// Every tensor of rows is cut as often as it can be, and every number is what it was.
#[test]
fn a_model_in_pieces_computes_what_it_does_whole() {
    // The demo model's largest tensors in a dozen pieces, its experts one by one.
    for (dir, weights_max) in [(fixture("nano"), 1 << 12), (root().join("assets/demo-model"), 1 << 16)] {
        in_pieces(&dir, weights_max);
    }
}

fn in_pieces(dir: &Path, weights_max: u64) {
    let (prompt, token) = ([5, 900, 17, 33, 2, 711], [42]);
    let run = |mut bed: Bed| {
        let logits = bed.forward(&[(0, &prompt, true)]);
        let buffers = bed.model.gpu().buffers();
        ([logits, bed.forward(&[(0, &token, true)])], bed.model.dispatches(), bed.model.gpu().used(), buffers)
    };
    let Some(whole) = Bed::load(dir, 1, 10).map(run) else { return };
    let store = open(dir);
    let bounds = bounds(store.config(), 1, 10);
    let mut limited = adapter().unwrap();
    limited.weights_max = weights_max;
    let pieces = run(Bed::with(load(limited, &store, bounds).unwrap(), 1, 10));
    assert_eq!(whole.0, pieces.0);
    assert_eq!(whole.2, pieces.2, "as many bytes");
    assert!(
        pieces.1 > whole.1 && pieces.3 > whole.3,
        "{:?} launches and buffers",
        (whole.1, whole.3, pieces.1, pieces.3)
    );
}

#[test]
fn memory_that_is_refused_is_told_with_both_numbers() {
    let Some(mut adapter) = adapter() else { return };
    let store = open(&fixture("nano"));
    let bounds = bounds(store.config(), 1, 64);
    let total = Needs::of(store.config(), bounds).total();
    adapter.memory_max = Some(total - 1);
    let Err(LoadError::Device(DeviceError::OutOfMemory { wanted, used, cause, .. })) =
        load(adapter.clone(), &store, bounds)
    else {
        panic!("it was loaded, or failed in another way");
    };
    assert!(used < total && used + wanted == total && cause.contains(&(total - 1).to_string()), "{cause}");
    adapter.memory_max = Some(total);
    assert!(load(adapter, &store, bounds).is_ok(), "it has room");
}

/// In the middle of a conversation, between a launch and its collection: an error that says so, no panic and no silence.
#[test]
fn a_lost_device_is_an_error_of_every_later_step() {
    let Some(mut bed) = Bed::load(&fixture("nano"), 1, 10) else { return };
    bed.forward(&[(0, &[1, 2], true)]);
    let tables: Vec<Table<'_>> = bed.tables[0].iter().map(|blocks| Table { first: 0, blocks }).collect();
    let spans = [Span { position: 2, tokens: &[3], tables: &tables, wants_logits: true, chosen_by: None }];
    bed.model.gpu().lose();
    let mut logits = vec![0.0; bed.model.config().vocabulary];
    for _ in 0..2 {
        let ended: Result<(), LoadError<Infallible>> = bed.model.forward(&spans, &mut logits, |_, _| Ok(()));
        let Err(LoadError::Device(error)) = ended else { panic!("{ended:?}") };
        assert!(matches!(error, DeviceError::Lost { .. }), "{error}");
    }
}

/// A token that goes into the next pass before the host has seen it is the one that the host sees.
#[test]
fn a_pass_that_is_launched_ahead_goes_by_the_chosen_token() {
    let dir = fixture("nano");
    let reference: Reference =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let prompt = reference.prompts.iter().find(|p| p.greedy.len() > 3).unwrap();
    let length = prompt.token_ids.len();
    let Some(mut bed) = Bed::load(&dir, 1, length + prompt.greedy.len()) else { return };
    let tables: Vec<Table<'_>> = bed.tables[0].iter().map(|blocks| Table { first: 0, blocks }).collect();
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let history = History::default();
    let draw = Draw { sampling: &sampling, history: &history, position: 0, only: None };
    let mut chosen = Vec::new();
    for step in 0..prompt.greedy.len() {
        let (position, tokens) =
            if step == 0 { (0, &prompt.token_ids[..]) } else { (length + step - 1, &[0][..]) };
        let chosen_by = (step > 0).then_some(0);
        let span = Span { position, tokens, tables: &tables, wants_logits: true, chosen_by };
        let launched: Result<(), LoadError<Infallible>> =
            bed.model.launch(&[span], std::slice::from_ref(&draw), &[], |_, _| Ok(()));
        launched.unwrap();
        if step > 0 {
            chosen.extend(bed.model.collect().unwrap());
        }
    }
    chosen.extend(bed.model.collect().unwrap());
    let chosen: Vec<u32> = chosen.into_iter().map(|choice| choice.unwrap().unwrap().id).collect();
    assert_eq!(chosen, prompt.greedy);
}

#[test]
fn a_pass_ends_when_it_is_told_to() {
    let Some(mut bed) = Bed::load(&fixture("nano"), 1, 10) else { return };
    let mut logits = vec![0.0; bed.model.config().vocabulary];
    let tables: Vec<Table<'_>> = bed.tables[0].iter().map(|blocks| Table { first: 0, blocks }).collect();
    let spans =
        [Span { position: 0, tokens: &[1, 2, 3], tables: &tables, wants_logits: true, chosen_by: None }];
    let stopped = bed.model.forward(&spans, &mut logits, |done, total| {
        assert_eq!(total, 4);
        if done == 2 { Err("enough") } else { Ok(()) }
    });
    assert!(matches!(stopped, Err(LoadError::Stopped("enough"))), "{stopped:?}");
}

#[test]
fn a_software_adapter_is_used_only_with_leave() {
    let Some(software) = Adapter::all().into_iter().find(|a| a.verdict == Verdict::Software) else {
        println!("skipped: no software adapter");
        return;
    };
    assert!(matches!(Adapter::find(&software.id, false), Err(DeviceError::Software { .. })));
    assert_eq!(Adapter::find(&software.id, true).unwrap().id, software.id);
    let error = Adapter::find("vulkan:99", true).unwrap_err();
    assert!(error.to_string().contains(&software.id), "{error}");
}

#[test]
fn a_token_alone_is_294_launches_and_moves_little_but_weights() {
    let Some(adapter) = adapter() else { return };
    let token = measure::token(&adapter).unwrap();
    // Twelve a layer, three around them, and three that choose.
    assert_eq!(token.dispatches, 24 * 12 + 6);
    // The weights that are not experts', an eighth of those, and keys and values of 1,024 positions.
    assert!((3_760_000_000..3_770_000_000).contains(&token.bytes_min), "{token:?}");
    assert!(token.bytes > token.bytes_min && token.bytes < token.bytes_min / 100 * 101, "{token:?}");
    println!("a token, encoded in {:.3} ms: {token:?}", token.encode_seconds() * 1e3);
}
