//! Measures a checkpoint on this machine: load, time to first token, tokens per second, private memory.
//!
//! `cargo run --release -p gpt-oss-cpu --example first_token -- DIR [--name 20b] [--date D] [--commit C] [--prompt 64]
//! [--tokens 32] [--threads N] [--isa NAME] [--activations bf16|f32|int8] [--deterministic yes] [--dense bf16|int8]`. The
//! output is one JSON object a row, in the form of `bench/results`. Run it twice: the second time the disk cache is warm.

use std::convert::Infallible;
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use gpt_oss_cpu::mapped::TOUCH_BYTES;
use gpt_oss_cpu::{Activations, CpuModel, DenseBytes, Isa, Mapped, Pool, PrepareError, Sequences};
use gpt_oss_model::Store;

/// Sequences of the row that decodes several at once.
const TOGETHER: usize = 4;
/// Bytes read to see how fast this machine reads mapped files just now.
const READ_BYTES: usize = 3 << 30;
const READ_PIECE_BYTES: usize = 4 << 20;
/// The same reading, this many times; the fastest counts.
const READ_TIMES: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("name the folder of a checkpoint")?);
    let (mut name, mut date, mut commit) = ("20b".to_owned(), String::new(), String::new());
    let (mut prompt, mut tokens, mut isa) = (64usize, 32usize, Isa::detect());
    let mut activations = Activations::Int8;
    let (mut deterministic, mut int8) = (false, false);
    let mut threads = std::thread::available_parallelism()?.get();
    while let Some(key) = arguments.next() {
        let value = arguments.next().ok_or("a value is missing")?;
        match key.as_str() {
            "--name" => name = value,
            "--date" => date = value,
            "--commit" => commit = value,
            "--prompt" => prompt = value.parse()?,
            "--tokens" => tokens = value.parse()?,
            "--threads" => threads = value.parse()?,
            "--deterministic" => deterministic = value == "yes",
            "--dense" => match value.as_str() {
                "bf16" => int8 = false,
                "int8" => int8 = true,
                _ => return Err("dense is bf16 or int8".into()),
            },
            "--isa" => {
                isa = Isa::named(&value).ok_or("isa is scalar, avx2, avx512, avx512bf16, amx or neon")?;
            }
            "--activations" => {
                activations = Activations::named(&value).ok_or("activations are bf16, f32 or int8")?;
            }
            _ => return Err(format!("{key} is not an option").into()),
        }
    }

    let start = Instant::now();
    let store = Store::open(
        "model.safetensors.index.json",
        |name| std::fs::read(dir.join(name)),
        |name| Mapped::open(&dir.join(name)),
    )?;
    let mut model = CpuModel::new(store, Pool::new(threads)?, isa);
    if int8 {
        model.prepare_int8(|_| Ok(())).map_err(|error: PrepareError<Infallible>| match error {
            PrepareError::Io(error) => error,
            PrepareError::Stopped(never) => match never {},
        })?;
    }
    for (shard, range) in model.parts_read() {
        for start in range.clone().step_by(TOUCH_BYTES) {
            model.store().shards()[shard].touch(start..range.end.min(start + TOUCH_BYTES))?;
        }
    }
    let load_seconds = start.elapsed().as_secs_f64();
    let read_rate = read_rate(&Pool::new(threads)?, &model);
    model = model.with_activations(activations);
    if deterministic {
        model = model.deterministic();
    }

    let vocabulary = model.config().vocabulary;
    let ids: Vec<u32> = (0..prompt as u32).map(|i| (i * 7919 + 13) % vocabulary as u32).collect();
    let mut caches = Sequences::new(model.kv_shape(), TOGETHER, prompt + tokens);
    let mut logits = vec![0.0; vocabulary];
    let start = Instant::now();
    run(&model, &[(0, &ids, true)], &mut caches, &mut logits);
    let mut next = [argmax(&logits)];
    let first_token_seconds = start.elapsed().as_secs_f64();

    let mut gaps = Vec::new();
    for _ in 1..tokens {
        let start = Instant::now();
        run(&model, &[(0, &next, true)], &mut caches, &mut logits);
        next = [argmax(&logits)];
        gaps.push(start.elapsed().as_secs_f64());
    }

    let mut logits = vec![0.0; TOGETHER * vocabulary];
    for sequence in 1..TOGETHER {
        run(&model, &[(sequence, &ids[..1], false)], &mut caches, &mut []);
    }
    caches.clear(0);
    let mut next: Vec<[u32; 1]> = (0..TOGETHER as u32).map(|s| [s * 101 % vocabulary as u32]).collect();
    let mut together = Vec::new();
    for _ in 0..tokens.min(prompt + tokens - 1) {
        let start = Instant::now();
        let parts: Vec<_> =
            next.iter().enumerate().map(|(sequence, tokens)| (sequence, &tokens[..], true)).collect();
        run(&model, &parts, &mut caches, &mut logits);
        next = logits.chunks_exact(vocabulary).map(|l| [argmax(l)]).collect();
        together.push(start.elapsed().as_secs_f64());
    }

    let token_bytes = bytes_a_token(&model) as f64;
    let kind = if int8 { " int8" } else { "" };
    let row = |row: &str, unit: &str, ours: f64, limit: Option<f64>, n: usize| {
        let limit = limit.map_or("null".to_owned(), |limit| format!("{limit:.2}"));
        println!(
            "{{\"date\":\"{date}\",\"commit\":\"{commit}\",\"row\":\"{name} {}{kind} {threads}t {row}\",\"unit\":\"{unit}\",\
             \"ours\":{ours:.2},\"peer\":null,\"peer_name\":null,\"limit\":{limit},\"n\":{n}}}",
            isa.as_str()
        );
    };
    row("read mapped", "GB/s", read_rate / 1e9, None, READ_TIMES);
    row("load", "s", load_seconds, None, 1);
    if let Some(copy) = model.dense_copy() {
        row("copy", "s", copy.seconds(), None, 1);
        row("copy", "MiB", (copy.bytes() >> 20) as f64, None, 1);
        if let Some(huge) = copy.huge_bytes() {
            row("copy in huge pages", "MiB", (huge >> 20) as f64, Some((copy.bytes() >> 20) as f64), 1);
        }
    }
    row(&format!("first token after {prompt}"), "s", first_token_seconds, None, 1);
    row(&format!("prefill {prompt}"), "tok/s", prompt as f64 / first_token_seconds, None, 1);
    row("decode 1", "tok/s", 1.0 / median(&mut gaps), Some(read_rate / token_bytes), gaps.len());
    row(
        &format!("decode {TOGETHER}"),
        "tok/s",
        TOGETHER as f64 / median(&mut together),
        None,
        together.len(),
    );
    if let Some(mib) = private_mib() {
        row("private memory", "MiB", mib as f64, Some(1024.0), 1);
    }
    Ok(())
}

fn run(model: &CpuModel, parts: &[(usize, &[u32], bool)], caches: &mut Sequences, logits: &mut [f32]) {
    let result: Result<(), Infallible> = caches.forward(model, parts, logits, |_, _| Ok(()));
    match result {
        Ok(()) => {}
    }
}

/// Bytes of weights that one token alone has to read: everything but the embedding and the experts it does not visit.
fn bytes_a_token(model: &CpuModel) -> u64 {
    let config = model.config();
    let visited = |bytes: u64| bytes * config.experts_per_token as u64 / config.experts as u64;
    let tensors = &model.store().checkpoint().tensors;
    let dense = DenseBytes::of(config);
    let copied = if model.dense_copy().is_some() { dense.copy as i64 - dense.replaced as i64 } else { 0 };
    let stored: u64 = tensors
        .iter()
        .filter(|(name, _)| *name != "model.embed_tokens.weight")
        .map(|(name, place)| {
            let bytes = place.tensor.byte_len();
            if name.contains(".mlp.experts.") { visited(bytes) } else { bytes }
        })
        .sum();
    stored.saturating_add_signed(copied)
}

/// Bytes a second at which all threads together sum up mapped weights.
fn read_rate(pool: &Pool, model: &CpuModel) -> f64 {
    let shards = model.store().shards();
    let pieces: Vec<&[u8]> = model
        .parts_read()
        .into_iter()
        .flat_map(|(shard, range)| shards[shard].as_ref()[range].chunks(READ_PIECE_BYTES))
        .take(READ_BYTES / READ_PIECE_BYTES)
        .collect();
    let bytes: usize = pieces.iter().map(|p| p.len()).sum();
    let seconds = (0..READ_TIMES).map(|_| {
        let start = Instant::now();
        pool.run(pieces.len(), |i| {
            let words = pieces[i].as_chunks::<64>().0;
            let sum = words.iter().fold([0u8; 64], |mut sum, word| {
                sum.iter_mut().zip(word).for_each(|(s, w)| *s ^= w);
                sum
            });
            std::hint::black_box(sum);
        });
        start.elapsed().as_secs_f64()
    });
    bytes as f64 / seconds.fold(f64::INFINITY, f64::min)
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(i, _)| i as u32)
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Anonymous resident memory, where the system tells.
fn private_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}
