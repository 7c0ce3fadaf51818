//! Loads a checkpoint through the plugin's own code, measures what it was asked for, prints one line of JSON and ends.

#[path = "../cpu/found.rs"]
mod found;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use engine_sdk::{
    Engine, EventKind, ModelFile, ModelFiles, Progress, Prompt, Runner, Sampling, SequenceId, Settings,
};
use found::Found;
use gpt_oss_plugin::GptOss;

/// Prompt before an answer whose pace is measured: short, so that attention adds nothing to what is compared.
const DECODE_PROMPT: u32 = 8;
/// Before anything but the first token is measured.
const WARM_UP_TOKENS: u32 = 4;
/// Tokens of the prompts are below this: any vocabulary has as many.
const TOKENS_END: u64 = 1000;

/// Measures gpt-oss on the cpu, in one process.
#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    checkpoint: PathBuf,
    #[arg(long)]
    threads: u32,
    /// Of the engine, a JSON object
    #[arg(long, default_value = "")]
    options: String,
    /// Time the first token after a prompt of this length, before anything else
    #[arg(long)]
    first: Option<u32>,
    /// Time prompts of these lengths
    #[arg(long, value_delimiter = ',')]
    prefill: Vec<u32>,
    /// Time an answer of so many tokens; 0: none
    #[arg(long, default_value_t = 0)]
    decode: u32,
    #[arg(long, default_value_t = 1)]
    repeat: u32,
}

#[expect(clippy::print_stdout, reason = "the line is what it is started for")]
fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut engine = Started::load(&arguments)?;
    let mut found = Found {
        load_s: engine.load_s,
        first_token_s: None,
        prefill: Vec::new(),
        decode: Vec::new(),
        private_mib: None,
    };
    if let Some(first) = arguments.first {
        found.first_token_s = Some(engine.answer(first, 1)?.first_s);
    } else {
        engine.answer(DECODE_PROMPT, WARM_UP_TOKENS)?;
    }
    for &length in &arguments.prefill {
        let mut rates = Vec::new();
        for _ in 0..arguments.repeat {
            rates.push(f64::from(length) / engine.answer(length, 1)?.first_s);
        }
        found.prefill.push((length, rates));
    }
    for _ in 0..if arguments.decode == 0 { 0 } else { arguments.repeat } {
        let answer = engine.answer(DECODE_PROMPT, arguments.decode + 1)?;
        found.decode.push(f64::from(arguments.decode) / answer.rest_s);
    }
    found.private_mib = found::private_mib("self");
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

struct Started {
    runner: Runner<<GptOss as Engine>::Model>,
    load_s: f64,
    sequences: SequenceId,
}

struct Answer {
    /// From the prompt to the first token.
    first_s: f64,
    /// From the first token to the last.
    rest_s: f64,
}

impl Started {
    fn load(arguments: &Arguments) -> Result<Started> {
        let dir = std::path::absolute(&arguments.checkpoint)?;
        let entries = std::fs::read_dir(&dir)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| format!("cannot list {}", dir.display()))?;
        let file = |entry: std::fs::DirEntry| ModelFile {
            name: entry.file_name().to_string_lossy().into_owned(),
            path: entry.path(),
        };
        let files = ModelFiles {
            id: "measured".to_owned(),
            format: "safetensors".to_owned(),
            architecture: "gpt_oss".to_owned(),
            runtime: "gpt-oss".to_owned(),
            primary: "model.safetensors.index.json".to_owned(),
            files: entries.into_iter().map(file).collect(),
            dir,
        };
        let longest = arguments.prefill.iter().copied().max().unwrap_or(0).max(arguments.first.unwrap_or(0));
        let settings = Settings {
            context_length: Some(longest + DECODE_PROMPT + arguments.decode + 64),
            sequences_max: Some(1),
            threads: Some(arguments.threads),
            options_json: arguments.options.clone(),
            ..Settings::default()
        };
        let start = Instant::now();
        let mut report = |_, _| true;
        let model = GptOss::load(&files, &settings, &[], &mut Progress::new(&mut report)).map_err(said)?;
        let runner = Runner::new(model).map_err(said)?;
        Ok(Started { runner, load_s: start.elapsed().as_secs_f64(), sequences: 0 })
    }

    /// Runs one sequence to its end, with a prompt that none had before: nothing of it is in the prefix cache.
    fn answer(&mut self, prompt: u32, tokens: u32) -> Result<Answer> {
        self.sequences += 1;
        let sequence = self.sequences;
        let prompt: Vec<u32> =
            (0..u64::from(prompt)).map(|i| ((i * 7919 + sequence * 613) % TOKENS_END) as u32).collect();
        let sampling =
            Sampling { temperature: 0.0, tokens_max: tokens, ignore_end_tokens: true, ..Sampling::default() };
        let start = Instant::now();
        self.runner.submit(sequence, Prompt::Tokens(prompt), sampling).map_err(said)?;
        let (mut times, mut failed, mut cached) = (Vec::new(), None, 0);
        loop {
            let mut report = |_, _| true;
            let left = self.runner.step(&mut Progress::new(&mut report), &mut |event| match &event.kind {
                EventKind::Token { .. } => times.push(start.elapsed().as_secs_f64()),
                EventKind::Started { cached_tokens, .. } => cached = *cached_tokens,
                EventKind::Failed(status) => failed = Some(said((*status).clone())),
                EventKind::Embedding(_) | EventKind::Finished { .. } => {}
            });
            if left.map_err(said)? == 0 {
                break;
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        ensure!(cached == 0, "{cached} tokens of the prompt were in the prefix cache");
        ensure!(times.len() == tokens as usize, "{} tokens came instead of {tokens}", times.len());
        let [first, .., last] = times[..] else {
            let Some(&first_s) = times.first() else { bail!("no token came") };
            return Ok(Answer { first_s, rest_s: 0.0 });
        };
        Ok(Answer { first_s: first, rest_s: last - first })
    }
}

fn said(status: engine_sdk::Status) -> anyhow::Error {
    anyhow::anyhow!("{status}")
}
