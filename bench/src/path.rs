//! `bench path`: from the engine's event to the byte on the client's socket.
//!
//! Everything is in it: a client on a TCP connection, the router, the node, the worker, the echo engine. The engine steps at a
//! fixed pace, each step beginning at a whole multiple of [`PACE`] on the clock that all processes of the machine share, so the
//! time of a token is what is left of its arrival after the last such multiple. Tokens of the first steps do not count.
//!
//! That there is one event for each token, and that none is held back for the next, is checked and not measured: an answer
//! with another number of events, or two tokens of one sequence in one step, fails the run.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use fixture_hub::FixtureHub;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::process::{Process, llm_router};
use crate::record::Row;
use crate::register::register;
use crate::router::connection::{Connection, Streamed, post};
use crate::statistics::{median, percentile};
use crate::{Common, ROUNDS, repo};

/// A step of the engine: 50 tokens a second for each sequence, so that a late token is late in its own step.
const PACE: Duration = Duration::from_millis(20);
/// Of each answer.
const TOKENS: usize = 100;
/// The first ones: the sequences begin one after another.
const SETTLING_TOKENS: usize = 10;
/// After the tokens: the reason of the end, and `[DONE]`.
const LAST_EVENTS: usize = 2;
/// A token that comes with the next one was held back. Scheduling may make one late on a busy machine; more are a fault.
const HELD_BACK_SHARE_MAX: f64 = 0.01;
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct PathArguments {
    /// Answers that are streamed at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
}

pub fn run(arguments: &PathArguments, common: &Common) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(arguments, common))
}

async fn measure(arguments: &PathArguments, common: &Common) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let hub = FixtureHub::start([repo::repo()]).await.context("the hub does not listen")?;
    let mut command = llm_router(&common.bin_dir, folder.path(), hub.url())?;
    command.arg("--json").arg("--data-dir").arg(folder.path().join("data"));
    command.args(["up", "--listen", "127.0.0.1:0", "--device", "cpu", "--exit-with-stdin"]);
    command.arg("--engines-dir").arg(std::path::absolute(common.bin_dir.join("engines"))?);
    let mut product = Process::start(command, folder.path(), "product")?;
    let line: Value = serde_json::from_str(&product.first_line().await?)?;
    let url = line["url"].as_str().context("the product did not say its address")?;
    let address = url.trim_start_matches("http://").parse().context("the product's address")?;
    let settings = json!({
        "context_length": repo::CONTEXT,
        "sequences_max": arguments.streams.max(2),
        "options": {"step_us": PACE.as_micros() as u64},
    });
    register(&mut Connection::open(address).await?, Some(settings), "ready")
        .await
        .with_context(|| format!("it logged:\n{}", product.log()))?;

    let body = json!({
        "model": repo::REPO, "prompt": "hello", "stream": true, "temperature": 0, "max_tokens": TOKENS,
        "min_tokens": TOKENS,
    });
    let request = post("/v1/completions", &body.to_string());
    let mut late_us = Vec::new();
    // The first round loads the model and warms up.
    for round in 0..=common.rounds(ROUNDS) {
        let mut running = JoinSet::new();
        for _ in 0..arguments.streams {
            let (mut connection, request) = (Connection::open(address).await?, request.clone());
            running.spawn(async move { connection.stream(&request, now).await });
        }
        while let Some(one) =
            timeout(ROUND_TIMEOUT, running.join_next()).await.context("a round took too long")?
        {
            let Streamed { status, times, .. } = one??;
            ensure!(
                status == 200,
                "a stream was refused with {status}; the product logged:\n{}",
                product.log()
            );
            if round > 0 {
                late_us.extend(latenesses_us(&times)?);
            }
        }
    }
    let rounds = common.rounds(ROUNDS);
    let name = |figure: &str| match arguments.streams {
        1 => figure.to_owned(),
        streams => format!("{figure}-{streams}"),
    };
    Ok(vec![
        Row::new(name("event-to-socket-us"), "us", median(&mut late_us), rounds),
        Row::new(name("event-to-socket-p99-us"), "us", percentile(&mut late_us, 0.99), rounds),
    ])
}

/// Of each token that counts, in microseconds from the beginning of its step.
fn latenesses_us(times: &[u64]) -> Result<Vec<f64>> {
    let events = times.len();
    ensure!(
        events == TOKENS + LAST_EVENTS,
        "{TOKENS} tokens came in {events} events, with {LAST_EVENTS} at the end"
    );
    let pace = u64::try_from(PACE.as_nanos())?;
    let tokens = &times[SETTLING_TOKENS..TOKENS];
    let together = tokens.windows(2).filter(|pair| pair[0] / pace == pair[1] / pace).count();
    #[expect(clippy::cast_precision_loss, reason = "counts below a thousand")]
    let share = together as f64 / tokens.len() as f64;
    ensure!(share <= HELD_BACK_SHARE_MAX, "{together} of {} tokens came with another one", tokens.len());
    #[expect(clippy::cast_precision_loss, reason = "less than one step")]
    Ok(tokens.iter().map(|at| (at % pace) as f64 / 1000.0).collect())
}

/// Nanoseconds since 1970, the clock that all processes of a machine share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(late: impl Fn(usize) -> u64) -> Vec<u64> {
        let pace = u64::try_from(PACE.as_nanos()).unwrap();
        (0..TOKENS + LAST_EVENTS).map(|n| 1000 * pace + n as u64 * pace + late(n)).collect()
    }

    #[test]
    fn a_token_is_late_by_what_is_left_of_its_step() {
        let late = latenesses_us(&times(|_| 250_000)).unwrap();
        assert_eq!(late, vec![250.0; TOKENS - SETTLING_TOKENS]);
    }

    #[test]
    fn tokens_that_are_held_back_or_merged_fail_the_run() {
        let pace = u64::try_from(PACE.as_nanos()).unwrap();
        let every_second_waits = times(|n| if n % 2 == 0 { pace } else { 0 });
        assert!(latenesses_us(&every_second_waits).unwrap_err().to_string().contains("with another one"));
        let merged = &times(|_| 0)[1..];
        assert!(latenesses_us(merged).unwrap_err().to_string().contains("events"));
    }
}
