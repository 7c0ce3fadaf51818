//! Requests at once over HTTP: the product, and llama-server.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::found;
use crate::Common;
use crate::process::{Process, llm_router};
use crate::router::connection::{Connection, get, post};
use crate::statistics::median;

/// Of each request.
pub const PROMPT_TOKENS: u32 = 16;
/// Context of each sequence: more than any request here needs.
const CONTEXT: u32 = 512;
const SEQUENCES: u32 = super::STREAMS_MAX;
/// The product reads 14 GB to know their hash, the peer copies them.
const READY_LIMIT: Duration = Duration::from_secs(300);
const REQUESTS_LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);
/// Each is one token after a space, in the vocabulary that the generator makes.
const LETTERS: &[u8] = b"etaoinshrdlucmfwypvbgkjqxz";
/// Tokens that the two may count differently, for one that begins every prompt.
const PROMPT_TOLERANCE: u64 = 1;

/// A model by its name in the rows and in the folder of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    pub name: &'static str,
}

impl Model {
    pub const SMALL: Model = Model { name: "small" };
    pub const BIG: Model = Model { name: "20b" };
}

/// The prompts of requests that begin together, all different. In one turn they are the same for both sides: what a mixture of
/// experts has to read depends on them.
pub struct Prompts {
    texts: Vec<String>,
    /// Of each.
    tokens: u32,
}

impl Prompts {
    /// The turn before the first.
    pub const WARM_UP: u32 = u32::MAX;

    /// Others in each turn and for each `count`.
    pub fn new(turn: u32, count: u32, tokens: u32) -> Prompts {
        let mut random = StdRng::seed_from_u64(u64::from(turn) << 32 | u64::from(count));
        let mut letter = || char::from(LETTERS[random.random_range(0..LETTERS.len())]).to_string();
        let mut text = || (0..tokens).map(|_| letter()).collect::<Vec<_>>().join(" ");
        Prompts { texts: (0..count).map(|_| text()).collect(), tokens }
    }
}

/// Of requests that began together.
pub struct Outcome {
    /// Of all answers, from the first byte sent to the last event.
    pub tokens_per_s: f64,
    /// Median.
    pub first_token_s: f64,
}

/// How llama-server holds a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// In memory of its own, in huge pages: the fastest.
    Copied,
    /// Where the file is mapped, which is its default.
    Mapped,
}

/// A process that answers `/v1/completions`.
pub struct Server {
    process: Process,
    address: SocketAddr,
    model: String,
    /// From its start to the moment it takes requests.
    pub start_s: f64,
    _folder: TempDir,
}

impl Server {
    /// Router, node and worker, with the model of this folder.
    pub async fn ours(common: &Common, checkpoint: &Path) -> Result<Server> {
        let start = Instant::now();
        let folder = tempfile::tempdir()?;
        // No hub is asked for a model on this machine.
        let mut command = llm_router(&common.bin_dir, folder.path(), "http://127.0.0.1:9")?;
        command.arg("--json").arg("--data-dir").arg(folder.path().join("data"));
        command.args(["up", "--listen", "127.0.0.1:0", "--device", "cpu", "--exit-with-stdin"]);
        command.arg("--engines-dir").arg(std::path::absolute(common.bin_dir.join("engines"))?);
        let mut process = Process::start(command, folder.path(), "product")?;
        let line: Value = serde_json::from_str(&process.first_line().await?)?;
        let url = line["url"].as_str().context("the product did not say its address")?;
        let address = url.trim_start_matches("http://").parse().context("the product's address")?;
        let model = "bench".to_owned();
        let mut server = Server { process, address, model, start_s: 0.0, _folder: folder };
        let path = std::path::absolute(checkpoint)?;
        let settings = json!({"context_length": CONTEXT, "sequences_max": SEQUENCES});
        let body = json!({"path": path, "id": server.model, "settings": settings});
        let answer = server.ask(&post("/api/models", &body.to_string())).await?;
        ensure!((200..300).contains(&answer.0), "the model was not registered: {answer:?}");
        let ready = |(_, model): &(u16, Value)| matches!(model["state"].as_str(), Some("ready" | "loaded"));
        server.wait(&get(&format!("/api/models/{}", server.model)), ready).await?;
        server.start_s = start.elapsed().as_secs_f64();
        Ok(server)
    }

    /// llama-server, with the model of this file.
    pub async fn peer(mut command: Command, file: &Path, weights: Weights) -> Result<Server> {
        let start = Instant::now();
        let folder = tempfile::tempdir()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let threads = super::THREADS.to_string();
        command.arg("-m").arg(file).args(["-t", &threads, "-tb", &threads]);
        if weights == Weights::Copied {
            command.args(["-lm", "none"]);
        }
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["-np", &SEQUENCES.to_string(), "-c", &(SEQUENCES * CONTEXT).to_string()]);
        // Every prompt is new: room for old ones is of no use to it.
        command.args(["--cache-ram", "0"]);
        let process = Process::start(command, folder.path(), "llama-server")?;
        let model = "bench".to_owned();
        let mut server = Server { process, address, model, start_s: 0.0, _folder: folder };
        server.wait(&get("/health"), |(status, _)| *status == 200).await?;
        server.start_s = start.elapsed().as_secs_f64();
        Ok(server)
    }

    /// Private memory of its process.
    pub fn private_mib(&self) -> Option<f64> {
        found::private_mib(&self.process.id().to_string())
    }

    async fn ask(&self, request: &[u8]) -> Result<(u16, Value)> {
        let answer = Connection::open(self.address).await?.send(request, true).await?;
        let body = answer.body.unwrap_or_default();
        Ok((answer.status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    async fn wait(&self, request: &[u8], ready: impl Fn(&(u16, Value)) -> bool) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        let mut ticks = tokio::time::interval(POLL);
        loop {
            ticks.tick().await;
            // Before it listens nobody answers.
            let answer = self.ask(request).await;
            if answer.as_ref().is_ok_and(&ready) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("it was not ready in {} s: {answer:?}; {}", READY_LIMIT.as_secs(), self.last_words());
            }
        }
    }

    fn last_words(&self) -> String {
        let log = self.process.log();
        let lines: Vec<&str> = log.lines().collect();
        format!("it logged:\n{}", lines[lines.len().saturating_sub(15)..].join("\n"))
    }

    /// A request with each of these prompts, all at once. They have to be new to the server.
    pub async fn requests(&self, prompts: &Prompts, tokens: u32) -> Result<Outcome> {
        let all = timeout(REQUESTS_LIMIT, self.together(prompts, tokens)).await;
        let all = all.with_context(|| format!("longer than {} s", REQUESTS_LIMIT.as_secs()))?;
        all.with_context(|| self.last_words())
    }

    async fn together(&self, prompts: &Prompts, tokens: u32) -> Result<Outcome> {
        let mut connections = Vec::new();
        for prompt in &prompts.texts {
            connections.push((Connection::open(self.address).await?, self.request(prompt, tokens)));
        }
        let count = u32::try_from(connections.len())?;
        let start = now();
        let mut running = JoinSet::new();
        for (mut connection, request) in connections {
            running.spawn(async move { connection.stream(&request, now).await });
        }
        let (mut firsts, mut last) = (Vec::new(), start);
        while let Some(streamed) = running.join_next().await {
            let streamed = streamed??;
            let text = String::from_utf8_lossy(&streamed.body);
            ensure!(streamed.status == 200, "refused with {}: {text}", streamed.status);
            check_usage(&text, prompts.tokens, tokens)?;
            let first = streamed.times.first().context("an answer without events")?;
            firsts.push((first - start) as f64 / 1e9);
            last = last.max(*streamed.times.last().unwrap_or(first));
        }
        let seconds = (last - start) as f64 / 1e9;
        Ok(Outcome { tokens_per_s: f64::from(count * tokens) / seconds, first_token_s: median(&mut firsts) })
    }

    fn request(&self, prompt: &str, tokens: u32) -> Vec<u8> {
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true,
            "temperature": 0, "stream": true, "stream_options": {"include_usage": true},
        });
        post("/v1/completions", &body.to_string())
    }
}

/// The last event but `[DONE]` counts tokens: both are measured with equally many.
fn check_usage(events: &str, prompt_tokens: u32, tokens: u32) -> Result<()> {
    let data = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let values = data.filter_map(|text| serde_json::from_str::<Value>(text).ok());
    let usage = values.rev().find_map(|v| v.get("usage").filter(|u| u.is_object()).cloned());
    let usage = usage.with_context(|| format!("the answer does not count its tokens: {events}"))?;
    let (prompt, answer) = (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64());
    ensure!(answer == Some(u64::from(tokens)), "{answer:?} tokens came instead of {tokens}");
    let prompt = prompt.context("the answer does not count its prompt")?;
    ensure!(
        prompt.abs_diff(u64::from(prompt_tokens)) <= PROMPT_TOLERANCE,
        "the prompt has {prompt} tokens instead of {prompt_tokens}"
    );
    Ok(())
}

/// Nanoseconds since this process began to measure.
fn now() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let since = START.get_or_init(std::time::Instant::now).elapsed();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_tokens_that_were_asked_for() {
        let events = |usage: Value| format!("data: {{\"choices\":[]}}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
        let usage = |prompt: u32, answer: u32| {
            events(json!({"usage": {"prompt_tokens": prompt, "completion_tokens": answer}}))
        };
        check_usage(&usage(16, 4), 16, 4).expect("as asked for");
        check_usage(&usage(17, 4), 16, 4).expect("one that begins every prompt");
        for (events, expected) in [
            (usage(16, 3), "3) tokens came"),
            (usage(20, 4), "20 tokens instead"),
            (events(Value::Null), "does not count"),
        ] {
            let error = check_usage(&events, 16, 4).expect_err("another number").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
