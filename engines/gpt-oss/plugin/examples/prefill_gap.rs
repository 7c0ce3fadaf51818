//! Measures what a long prompt costs the streams beside it: the time between two tokens before and while it arrives.
//!
//! `cargo run --release -p gpt-oss-plugin --example prefill_gap -- DIR [--gap-ms 20] [--prompt 4000] [--streams 4]
//! [--quiet 200] [--seconds 0] [--name small] [--date D] [--commit C]`. With `--seconds` it ends after so many, wherever the prompt
//! then is. One JSON object a row, in the form of `bench/results`; the limit of the added gap is the
//! setting.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use engine_sdk::{EventKind, Progress, Prompt, Sampling, SequenceId, Settings};

#[path = "shared/loaded.rs"]
mod loaded;

use loaded::{Loaded, load, percentile};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("name the folder of a checkpoint")?);
    let (mut gap_ms, mut prompt, mut streams) = (20u64, 4000u32, 4u64);
    // Tokens of each stream before the long prompt comes; how long its arrival is looked at, 0: to its end.
    let (mut quiet_tokens, mut seconds_max) = (200usize, 0.0f64);
    let (mut name, mut date, mut commit) = ("small".to_owned(), String::new(), String::new());
    while let Some(key) = arguments.next() {
        let value = arguments.next().ok_or("a value is missing")?;
        match key.as_str() {
            "--gap-ms" => gap_ms = value.parse()?,
            "--prompt" => prompt = value.parse()?,
            "--streams" => streams = value.parse()?,
            "--quiet" => quiet_tokens = value.parse()?,
            "--seconds" => seconds_max = value.parse()?,
            "--name" => name = value,
            "--date" => date = value,
            "--commit" => commit = value,
            _ => return Err(format!("{key} is not an option").into()),
        }
    }
    let settings = Settings {
        context_length: Some(prompt + 4096),
        sequences_max: Some(streams as u32 + 1),
        batch_tokens_max: Some(512),
        options_json: format!("{{\"prefill_gap_ms\":{gap_ms}}}"),
        ..Settings::default()
    };
    let mut report = |_, _| true;
    let mut progress = Progress::new(&mut report);
    let mut runner = load(&dir, &settings)?;
    let sampling = Sampling { temperature: 0.0, ignore_end_tokens: true, ..Sampling::default() };
    for stream in 1..=streams {
        runner.submit(stream, Prompt::Tokens(vec![stream as u32; 16]), sampling.clone())?;
    }
    // Until every stream has so many tokens; then until the long prompt has its first.
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    let long: SequenceId = streams + 1;
    for _ in 0..quiet_tokens {
        quiet.push(step(&mut runner, &mut progress, long)?.0);
    }
    let tokens: Vec<u32> = (0..prompt).map(|i| (i * 7919 + 13) % 1000).collect();
    runner.submit(long, Prompt::Tokens(tokens), sampling)?;
    let start = Instant::now();
    loop {
        let (milliseconds, arrived) = step(&mut runner, &mut progress, long)?;
        busy.push(milliseconds);
        if arrived || (seconds_max > 0.0 && start.elapsed().as_secs_f64() > seconds_max) {
            break;
        }
    }
    let details: serde_json::Value = serde_json::from_str(&runner.memory().details_json)?;
    let pace = |figure: &str| details["prefill"][figure].as_f64().unwrap_or(f64::NAN);
    let usual = percentile(&mut quiet, 0.5);
    let row = |row: &str, unit: &str, ours: f64, limit: Option<u64>, n: usize| {
        let limit = limit.map_or("null".to_owned(), |limit| limit.to_string());
        println!(
            "{{\"date\":\"{date}\",\"commit\":\"{commit}\",\"row\":\"{name} prefill-gap {gap_ms}ms {prompt} {row}\",\
             \"unit\":\"{unit}\",\"ours\":{ours:.2},\"peer\":null,\"peer_name\":null,\"limit\":{limit},\"n\":{n}}}"
        );
    };
    row("between tokens, quiet, median", "ms", usual, None, quiet.len());
    row("between tokens, quiet, longest", "ms", percentile(&mut quiet, 1.0), None, quiet.len());
    for (name, share) in [("median", 0.5), ("p99", 0.99), ("longest", 1.0)] {
        let added = (percentile(&mut busy, share) - usual).max(0.0);
        row(&format!("added, {name}"), "ms", added, Some(gap_ms), busy.len());
    }
    row("chunk at the end", "tokens", pace("chunk_tokens"), None, 1);
    row("prompt's tokens in the added time", "tok/s", pace("tokens_per_second"), None, 1);
    Ok(())
}

/// Milliseconds of a step, and whether a token of `long` came.
fn step(
    runner: &mut Loaded,
    progress: &mut Progress<'_>,
    long: SequenceId,
) -> Result<(f64, bool), Box<dyn Error>> {
    let mut arrived = false;
    let start = Instant::now();
    runner.step(progress, &mut |event| {
        arrived |= event.sequence == long && matches!(event.kind, EventKind::Token { .. });
    })?;
    Ok((start.elapsed().as_secs_f64() * 1e3, arrived))
}
