//! Measures steps that only decode, in this process: time of a step with so many streams, and what of it is spent where.
//!
//! `cargo run --release -p gpt-oss-plugin --example decode -- DIR [--streams 1,4,16] [--steps 100] [--prompt 16]
//! [--threads 2] [--options JSON] [--temperature 0] [--name small] [--date D] [--commit C]`. One JSON object a row, in the
//! form of `bench/results`.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use engine_sdk::{EventKind, Progress, Prompt, Sampling, SequenceId, Settings};

#[path = "shared/loaded.rs"]
mod loaded;

use loaded::{Loaded, load, percentile};

/// Steps before those that are measured.
const WARM_UP_STEPS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("name the folder of a checkpoint")?);
    let (mut streams, mut steps, mut prompt) = (vec![1u64, 4, 16], 100usize, 16u32);
    let (mut threads, mut temperature, mut options) = (None, 0.0f32, String::new());
    let (mut name, mut date, mut commit) = ("small".to_owned(), String::new(), String::new());
    while let Some(key) = arguments.next() {
        let value = arguments.next().ok_or("a value is missing")?;
        match key.as_str() {
            "--streams" => streams = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--steps" => steps = value.parse()?,
            "--prompt" => prompt = value.parse()?,
            "--threads" => threads = Some(value.parse()?),
            "--temperature" => temperature = value.parse()?,
            "--options" => options = value,
            "--name" => name = value,
            "--date" => date = value,
            "--commit" => commit = value,
            _ => return Err(format!("{key} is not an option").into()),
        }
    }
    let most = streams.iter().copied().max().unwrap_or(1) as u32;
    let settings = Settings {
        context_length: Some(prompt + (steps + WARM_UP_STEPS + 16) as u32),
        sequences_max: Some(most),
        threads,
        options_json: options,
        ..Settings::default()
    };
    let mut runner = load(&dir, &settings)?;
    let sampling = Sampling { temperature, ignore_end_tokens: true, ..Sampling::default() };
    let mut report = |_, _| true;
    let mut progress = Progress::new(&mut report);
    let mut last: SequenceId = 0;
    for &count in &streams {
        let first = last + 1;
        for _ in 0..count {
            last += 1;
            let tokens = (0..u64::from(prompt)).map(|i| ((i * 7919 + last * 613) % 1000) as u32).collect();
            runner.submit(last, Prompt::Tokens(tokens), Sampling { seed: last, ..sampling.clone() })?;
        }
        let mut begun = 0;
        while begun < count {
            runner.step(&mut progress, &mut |event| {
                begun += u64::from(matches!(event.kind, EventKind::Started { .. }));
            })?;
        }
        for _ in 0..WARM_UP_STEPS {
            runner.step(&mut progress, &mut |_| {})?;
        }
        let mut milliseconds = Vec::with_capacity(steps);
        let before = forward_seconds(&runner)?;
        for _ in 0..steps {
            let start = Instant::now();
            let mut tokens = 0;
            runner.step(&mut progress, &mut |event| {
                tokens += u64::from(matches!(event.kind, EventKind::Token { .. }));
            })?;
            milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
            if tokens != count {
                return Err(format!("{tokens} tokens came in a step of {count} streams").into());
            }
        }
        let after = forward_seconds(&runner)?;
        (first..=last).for_each(|sequence| runner.cancel(sequence));
        runner.step(&mut progress, &mut |_| {})?;
        let median = percentile(&mut milliseconds, 0.5);
        let row = |row: &str, unit: &str, ours: f64| {
            println!(
                "{{\"date\":\"{date}\",\"commit\":\"{commit}\",\"row\":\"{name} {count} streams {row}\",\
                 \"unit\":\"{unit}\",\"ours\":{ours:.3},\"peer\":null,\"peer_name\":null,\"limit\":null,\"n\":{steps}}}"
            );
        };
        row("step", "ms", median);
        row("decode", "tok/s", count as f64 * 1e3 / median);
        let all = milliseconds.iter().sum::<f64>() / 1e3;
        let parts: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        for (part, seconds) in FORWARD_PARTS.iter().zip(&parts) {
            row(&format!("share of {part}"), "%", 100.0 * seconds / all);
        }
        row("share of scheduler, sampler, events", "%", 100.0 * (1.0 - parts.iter().sum::<f64>() / all));
    }
    Ok(())
}

/// Of a forward pass, as `stats` names them.
const FORWARD_PARTS: [&str; 3] = ["matrices", "attention", "rest"];

/// Seconds of each part since the load.
fn forward_seconds(runner: &Loaded) -> Result<[f64; 3], Box<dyn Error>> {
    let details: serde_json::Value = serde_json::from_str(&runner.memory().details_json)?;
    Ok(FORWARD_PARTS.map(|part| details["forward_seconds"][part].as_f64().unwrap_or(f64::NAN)))
}
