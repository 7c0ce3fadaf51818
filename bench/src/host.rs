//! `bench host`: what node and worker cost per token.
//!
//! The engine is echo both times, asked for the same tokens, at 1, 16 and 64 sequences at once:
//!
//! - **through the host**: a `llm-router node` process with its worker process; the caller stands where the router
//!   stands, at the other end of the node's HTTP/2 connection over loopback TCP, and reads every event;
//! - **in this process**: the same engine through the engine SDK, its events taken where the worker takes them.
//!
//! Two things are measured:
//!
//! - **time per token** (`token-added-us-N`, `tokens-per-s-N`): the engine steps as fast as it can. Time per token is the
//!   length of the span in which all N sequences run, divided by the tokens of all N that arrive in it. The row is that
//!   time through the host less that time in this process: what each token costs more, in µs of wall clock. It is the
//!   median of the rounds.
//! - **latency of a token** (`token-latency-us-N`, `token-latency-p99-us-N`): the engine steps at a fixed pace, as a device
//!   would, each step beginning at a whole multiple of [`PACE`] on the machine's clock. A token's time is from the
//!   beginning of its step to the moment the caller has it, decoded. The row is the median over all tokens through the host
//!   less the median in this process; the 99th percentiles likewise. All N tokens of a step come to be at once, so the
//!   median one waits for half of the others to be written, carried and read.

mod in_process;
mod link;
mod streams;
mod through;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::record::Row;
use crate::statistics::{median, percentile};
use crate::{Common, ROUNDS};
use streams::Arrivals;

/// Sequences at once.
const STREAMS: [u32; 3] = [1, 16, 64];
/// A step of the paced engine: 100 tokens a second for each sequence.
const PACE: Duration = Duration::from_millis(10);
/// Steps of a paced round.
const PACED_STEPS: u32 = 150;
/// Tokens of each sequence in a round at full speed: enough that all of them run for most of it, though the first has a
/// start before the last.
fn full_speed_tokens(streams: u32) -> u32 {
    match streams {
        1 => 30_000,
        2..=16 => 8_000,
        _ => 4_000,
    }
}
/// On a busy machine the first sequences may end before the last begin; then the round is run again, so often.
const TRIES: u32 = 5;

#[derive(Args)]
pub struct HostArguments {}

/// How the engine steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    Full,
    Paced,
}

impl Speed {
    /// The engine's options that make it so.
    fn options(self) -> serde_json::Map<String, serde_json::Value> {
        let mut options = serde_json::Map::new();
        if self == Speed::Paced {
            options.insert("step_us".to_owned(), u64::try_from(PACE.as_micros()).unwrap_or(u64::MAX).into());
        }
        options
    }

    fn tokens(self, streams: u32) -> u32 {
        match self {
            Speed::Full => full_speed_tokens(streams),
            Speed::Paced => PACED_STEPS,
        }
    }
}

pub fn run(_: &HostArguments, common: &Common) -> Result<Vec<Row>> {
    // One thread reads: as many as the events of one node need, and as a router's connection to a node has.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let host = through::Host::start(common).await?;
        let mut rows = Vec::new();
        for streams in STREAMS {
            eprintln!("{streams} sequences …");
            rows.extend(rows_of(&host, streams, common.rounds(ROUNDS)).await?);
        }
        Ok(rows)
    })
}

async fn rows_of(host: &through::Host, streams: u32, rounds: u32) -> Result<Vec<Row>> {
    let (mut through_us, mut alone_us) = (Vec::new(), Vec::new());
    let (mut through_late, mut alone_late) = (Vec::new(), Vec::new());
    // In turn, so that both see the same machine. The first round of each warms up.
    for round in 0..=rounds {
        let full = full_speed(host, streams).await.context("through the host")?;
        let alone = us_per_token(&in_process::run(Speed::Full, streams)?).context("in this process")?;
        let paced = host.run(Speed::Paced, streams).await.context("through the host, paced")?;
        let paced_alone = in_process::run(Speed::Paced, streams)?;
        if round > 0 {
            through_us.push(full);
            alone_us.push(alone);
            through_late.extend(latenesses_us(&paced));
            alone_late.extend(latenesses_us(&paced_alone));
        }
    }
    let mut added: Vec<f64> = through_us.iter().zip(&alone_us).map(|(t, a)| t - a).collect();
    let per_second = |us: f64| 1e6 / us;
    let alone = "echo in this process";
    let late = |share: f64, through: &mut [f64], alone: &mut [f64]| {
        percentile(through, share) - percentile(alone, share)
    };
    Ok(vec![
        Row::new(format!("tokens-per-s-{streams}"), "tok/s", per_second(median(&mut through_us)), rounds)
            .peer(alone, Some(per_second(median(&mut alone_us)))),
        Row::new(format!("token-added-us-{streams}"), "us", median(&mut added), rounds),
        Row::new(
            format!("token-latency-us-{streams}"),
            "us",
            late(0.5, &mut through_late, &mut alone_late),
            rounds,
        ),
        Row::new(
            format!("token-latency-p99-us-{streams}"),
            "us",
            late(0.99, &mut through_late, &mut alone_late),
            rounds,
        ),
    ])
}

async fn full_speed(host: &through::Host, streams: u32) -> Result<f64> {
    for _ in 0..TRIES {
        if let Some(us) = us_per_token(&host.run(Speed::Full, streams).await?) {
            return Ok(us);
        }
    }
    bail!(
        "{streams} sequences did not run at the same time in {TRIES} tries\nhint: the machine is too busy to measure"
    )
}

fn us_per_token(arrivals: &Arrivals) -> Option<f64> {
    let span = arrivals.common_span()?;
    #[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of seconds are far below 2^52")]
    Some(span.nanoseconds as f64 / 1000.0 / span.tokens as f64)
}

/// Of every token but those of the first steps, from the beginning of its step.
fn latenesses_us(arrivals: &Arrivals) -> Vec<f64> {
    let pace = PACE.as_nanos() as u64;
    #[expect(clippy::cast_precision_loss, reason = "less than one step")]
    arrivals.after(SETTLING_TOKENS).map(|at| (at % pace) as f64 / 1000.0).collect()
}

/// Tokens of each sequence that are left out: the sequences begin one after another.
const SETTLING_TOKENS: usize = 10;

/// Nanoseconds since 1970, the clock that all processes of a machine share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
