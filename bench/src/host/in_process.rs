//! The echo engine in this process, through the engine SDK: no worker, no node, no pipe.

use anyhow::{Result, bail};
use echo::Echo;
use engine_sdk::{
    DeviceBytes, Engine as _, EventKind, ModelFile, ModelFiles, Progress, Prompt, Runner, Sampling, Settings,
};

use super::streams::Arrivals;
use super::{STREAMS, Speed, now};
use crate::repo::CONTEXT;

/// Runs `streams` sequences to their end on this thread.
pub fn run(speed: Speed, streams: u32) -> Result<Arrivals> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config.json");
    let json = serde_json::json!({"model_type": "echo", "max_position_embeddings": CONTEXT});
    std::fs::write(&config, json.to_string())?;
    let files = ModelFiles {
        id: "bench".to_owned(),
        format: "safetensors".to_owned(),
        architecture: "echo".to_owned(),
        runtime: "echo".to_owned(),
        dir: folder.path().to_owned(),
        primary: "config.json".to_owned(),
        files: vec![ModelFile { name: "config.json".to_owned(), path: config }],
    };
    let options = speed.options();
    let settings = Settings {
        context_length: Some(CONTEXT),
        sequences_max: STREAMS.iter().copied().max(),
        options_json: if options.is_empty() {
            String::new()
        } else {
            serde_json::Value::Object(options).to_string()
        },
        ..Settings::default()
    };
    let budget = [DeviceBytes { device: "cpu".to_owned(), bytes: u64::MAX }];
    let mut go_on = |_: u64, _: u64| true;
    let mut runner = Runner::new(Echo::load(&files, &settings, &budget, &mut Progress::new(&mut go_on))?)?;
    let tokens = speed.tokens(streams);
    // 0 is no number of a sequence.
    for sequence in 1..=streams {
        runner.submit(u64::from(sequence), prompt(), sampling(tokens))?;
    }
    let mut arrivals = Arrivals { sequences: vec![Vec::with_capacity(tokens as usize); streams as usize] };
    let mut failed = None;
    loop {
        let left = runner.step(&mut Progress::new(&mut go_on), &mut |event| match &event.kind {
            EventKind::Token { .. } => {
                let sequence = usize::try_from(event.sequence - 1).ok();
                if let Some(list) = sequence.and_then(|s| arrivals.sequences.get_mut(s)) {
                    list.push(now());
                }
            }
            EventKind::Failed(status) => failed = Some(status.to_string()),
            EventKind::Started { .. } | EventKind::Embedding(_) | EventKind::Finished { .. } => {}
        })?;
        if let Some(why) = failed {
            bail!("a sequence failed in this process: {why}");
        }
        if left == 0 {
            return Ok(arrivals);
        }
    }
}

fn prompt() -> Prompt {
    Prompt::Tokens(super::through::PROMPT.bytes().map(u32::from).collect())
}

/// As many tokens as asked for: echo gives spaces when it has nothing left to say and must go on.
fn sampling(tokens: u32) -> Sampling {
    Sampling { temperature: 0.0, tokens_max: tokens, tokens_min: tokens, ..Sampling::default() }
}
