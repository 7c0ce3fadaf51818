//! Sends the requests of a case.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde_json::Value;

use super::BenchArguments;
use super::plan::{CONCURRENCY_MAX, Case, Load, arrivals};
use super::sample::{Sample, Taken};
use super::target::Target;

/// Runs a case: first the warm-up, whose requests do not count. `body` makes the request of a number. Each request has
/// its deadline, so this ends.
pub async fn run(
    target: &Target,
    case: &Case,
    body: impl Fn(u64) -> Value,
    arguments: &BenchArguments,
) -> Taken {
    let numbers = AtomicU64::new(0);
    let next = || body(numbers.fetch_add(1, Ordering::Relaxed));
    for _ in 0..arguments.warm_up {
        target.ask(&next(), Instant::now(), Duration::ZERO).await;
    }
    let length = Duration::try_from_secs_f64(arguments.seconds).unwrap_or_default();
    let begin = Instant::now();
    let samples = match case.load {
        Load::Closed { connections } => closed(target, connections, begin, length, next).await,
        Load::Open { rate } => open(target, arrivals(rate, length, arguments.seed), begin, next).await,
    };
    Taken { samples, length }
}

/// All connections are futures of one task: a client of thousands of tokens a second needs no more.
async fn closed(
    target: &Target,
    connections: u32,
    begin: Instant,
    length: Duration,
    next: impl Fn() -> Value,
) -> Vec<Sample> {
    let connection = async || {
        let mut samples = Vec::new();
        while begin.elapsed() < length {
            samples.push(target.ask(&next(), begin, begin.elapsed()).await);
        }
        samples
    };
    let all = futures_util::future::join_all((0..connections).map(|_| connection())).await;
    all.into_iter().flatten().collect()
}

/// Each request is sent when it is due, or as soon as the most that may be on their way are fewer; its time counts from when
/// it was due.
async fn open(target: &Target, due: Vec<Duration>, begin: Instant, next: impl Fn() -> Value) -> Vec<Sample> {
    let mut samples = Vec::with_capacity(due.len());
    let mut running = FuturesUnordered::new();
    for due in due {
        let at = tokio::time::sleep_until((begin + due).into());
        tokio::pin!(at);
        loop {
            let full = running.len() >= CONCURRENCY_MAX as usize;
            tokio::select! {
                () = at.as_mut(), if !full => break,
                Some(sample) = running.next(), if !running.is_empty() => samples.push(sample),
            }
        }
        let body = next();
        running.push(async move { target.ask(&body, begin, due).await });
    }
    while let Some(sample) = running.next().await {
        samples.push(sample);
    }
    samples
}
