//! What the cases work with: workers of the subject at each stage of their life.

use anyhow::{Context as _, Result, bail, ensure};
use engine_protocol::{
    Loaded, LogLevel, Model, Prompt, Sampling, SequenceId, Settings, Status, StatusCode, Submit, Task, ToNode,
};

use super::{Outcome, Subject};
use crate::manifest::Manifest;
use crate::worker::{Reply, Worker};

/// Context of most cases, in tokens: room for their prompts and answers, quick to fill.
pub const CONTEXT: u32 = 256;
pub const PROMPT: &str = "Say hello, please.";

/// A worker with the subject's engine.
pub struct Bench {
    pub worker: Worker,
    pub model: Model,
    pub manifest: Manifest,
}

impl Bench {
    /// A worker that said hello.
    pub fn start(subject: &Subject) -> Result<Bench> {
        let manifest = Manifest::read(&subject.engine_dir)?;
        let runtime = manifest.runtimes.first().context("manifest.json names no runtime")?;
        let model = crate::model::describe(&subject.model_dir, runtime)?;
        let arguments: Vec<&str> = subject.worker_arguments.iter().map(String::as_str).collect();
        Ok(Bench { worker: Worker::start(&subject.worker, &arguments)?, model, manifest })
    }

    /// With the engine open.
    pub fn open(subject: &Subject) -> Result<Bench> {
        let mut bench = Bench::start(subject)?;
        bench.worker.open(&subject.engine_dir)?.context("the engine does not open")?;
        Ok(bench)
    }

    /// With the model loaded.
    pub fn load(subject: &Subject, settings: &Settings) -> Result<(Bench, Loaded)> {
        let mut bench = Bench::open(subject)?;
        let loaded = bench.worker.load(&bench.model, settings, &[])?.context("the model does not load")?;
        Ok((bench, loaded))
    }

    /// With the model loaded for [`CONTEXT`] tokens and up to four sequences.
    pub fn ready(subject: &Subject) -> Result<(Bench, Loaded)> {
        Bench::load(subject, &settings(CONTEXT, 4))
    }

    /// Submits and expects a failure for this reason; returns its status.
    pub fn refused(&mut self, what: &str, submit: Submit, reason: &str) -> Result<Status> {
        let reply = self.worker.run(submit)?;
        let Some(status) = reply.failure() else { bail!("{what} was accepted: {:?}", reply.events) };
        ensure!(
            status.code == StatusCode::Unsupported && status.reason == reason,
            "{what}: expected UNSUPPORTED ({reason}), got {status}"
        );
        ensure!(reply.events.len() == 1, "{what}: events before the refusal: {:?}", reply.events);
        Ok(status.clone())
    }

    pub fn run_text(&mut self, sequence: SequenceId, text: &str, sampling: Sampling) -> Result<Reply> {
        let reply = self.worker.run(submit(sequence, text, sampling))?;
        if let Some(status) = reply.failure() {
            bail!("the prompt {text:?} failed: {status}");
        }
        Ok(reply)
    }

    /// Ends the case: the worker must still be alive, and have seen nothing against the contract.
    pub fn finish(mut self) -> Result<Outcome> {
        let stats = self.worker.stats()?;
        if let Ok(stats) = stats {
            ensure!(
                stats.sequences_running == 0 && stats.sequences_waiting == 0,
                "all sequences have ended, and stats says {} run and {} wait",
                stats.sequences_running,
                stats.sequences_waiting
            );
        }
        let complaint = self.worker.find_kept(|message| match message {
            ToNode::Log { level: LogLevel::Error, message, .. } if message.contains("broke the ABI") => {
                Some(message.clone())
            }
            _ => None,
        });
        if let Some(complaint) = complaint {
            bail!("{complaint}");
        }
        let status = self.worker.shut_down()?;
        ensure!(status.success(), "the worker ended with {status}; stderr: {:?}", self.worker.stderr_lines());
        Ok(Outcome::Passed)
    }
}

pub fn settings(context_length: u32, sequences_max: u32) -> Settings {
    Settings { context_length, sequences_max, ..Settings::default() }
}

/// Greedy, with at most so many tokens.
pub fn sampling(tokens_max: u32) -> Sampling {
    Sampling { temperature: 0.0, tokens_max, ..Sampling::default() }
}

/// Greedy, exactly so many tokens whatever they are.
pub fn endless(tokens_max: u32) -> Sampling {
    Sampling { ignore_end_tokens: true, ..sampling(tokens_max) }
}

pub fn submit(sequence: SequenceId, text: &str, sampling: Sampling) -> Submit {
    let prompt = Prompt::Text { text: text.to_owned(), literal: Vec::new() };
    let task = Task::Generate(Box::new(sampling));
    Submit { sequence, request_id: format!("conformance-{sequence}"), prompt, task, cache_salt: 0 }
}

pub fn submit_tokens(sequence: SequenceId, tokens: Vec<u32>, sampling: Sampling) -> Submit {
    Submit { prompt: Prompt::Tokens(tokens), ..submit(sequence, "", sampling) }
}
