//! The load: a closed loop on so many connections, or an open one whose requests arrive by chance.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::Connection;
use crate::process::Process;

/// Connections of an open loop. More requests than that at once and the later ones wait, which counts as their latency.
const OPEN_CONNECTIONS: usize = 128;
/// After its end, for what is still on its way.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy)]
pub enum Load {
    /// Each connection sends its next request when it has the answer to the last.
    Closed { connections: usize, length: Duration },
    /// So many requests a second, with exponentially distributed pauses.
    Open { rate: f64, length: Duration, seed: u64 },
}

#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub answers: u64,
    pub events: u64,
    /// Of each request: from when it was due, or sent, to its last byte.
    pub latencies_us: Vec<f64>,
    /// From the first request to the last answer.
    pub length: Duration,
    /// Seconds of processor time of the process that answered; `None`: not known.
    pub cpu_seconds: Option<f64>,
}

impl Load {
    /// Any answer but 200, or none, fails the run: a figure of errors says nothing.
    pub async fn run(
        &self,
        address: SocketAddr,
        request: &Bytes,
        answering: Option<&Process>,
    ) -> Result<Outcome> {
        let (begin, length) = (Instant::now(), self.length());
        let used = || answering.and_then(Process::cpu_seconds);
        let before = used();
        let running = async {
            match *self {
                Load::Closed { connections, length } => {
                    closed(address, request, connections, begin + length).await
                }
                Load::Open { rate, length, seed } => open(address, request, rate, begin + length, seed).await,
            }
        };
        match timeout(length + LAST_ANSWERS_TIMEOUT, running).await {
            Ok(outcome) => {
                let cpu_seconds = used().zip(before).map(|(after, before)| after - before);
                Ok(Outcome { length: begin.elapsed(), cpu_seconds, ..outcome? })
            }
            Err(_) => bail!("answers were missing {} s after the load's end", LAST_ANSWERS_TIMEOUT.as_secs()),
        }
    }

    fn length(&self) -> Duration {
        match self {
            Load::Closed { length, .. } | Load::Open { length, .. } => *length,
        }
    }
}

async fn closed(address: SocketAddr, request: &Bytes, connections: usize, end: Instant) -> Result<Outcome> {
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let request = request.clone();
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut outcome = Outcome::default();
            loop {
                let sent = Instant::now();
                if sent >= end {
                    return anyhow::Ok(outcome);
                }
                outcome.take(&mut connection, &request, sent).await?;
            }
        });
    }
    joined(tasks).await
}

/// Requests that are due and not taken up.
#[derive(Default)]
struct Due {
    queue: Mutex<(VecDeque<Instant>, bool)>,
    changed: Notify,
}

impl Due {
    /// The next one; `None` when none will come any more.
    async fn next(&self) -> Option<Instant> {
        loop {
            {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(due) = queue.0.pop_front() {
                    return Some(due);
                }
                if queue.1 {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    fn push(&self, due: Instant) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(due);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_waiters();
    }
}

async fn open(address: SocketAddr, request: &Bytes, rate: f64, end: Instant, seed: u64) -> Result<Outcome> {
    let due = Arc::new(Due::default());
    let mut tasks = JoinSet::new();
    for _ in 0..OPEN_CONNECTIONS {
        let (request, due) = (request.clone(), Arc::clone(&due));
        let mut connection = Connection::open(address).await?;
        tasks.spawn(async move {
            let mut outcome = Outcome::default();
            while let Some(at) = due.next().await {
                outcome.take(&mut connection, &request, at).await?;
            }
            anyhow::Ok(outcome)
        });
    }
    let mut random = StdRng::seed_from_u64(seed);
    let mut at = Instant::now();
    loop {
        // 1 - x is in (0, 1]: its logarithm is finite.
        let pause = -(1.0 - random.random::<f64>()).ln() / rate;
        at += Duration::from_secs_f64(pause);
        if at >= end {
            break;
        }
        // Awake: the runtime's timer counts in milliseconds, which would send the requests in bunches.
        while Instant::now() < at {
            tokio::task::yield_now().await;
        }
        due.push(at);
    }
    due.close();
    joined(tasks).await
}

async fn joined(mut tasks: JoinSet<Result<Outcome>>) -> Result<Outcome> {
    let mut all = Outcome::default();
    while let Some(one) = tasks.join_next().await {
        let one = one??;
        all.answers += one.answers;
        all.events += one.events;
        all.latencies_us.extend(one.latencies_us);
    }
    Ok(all)
}

impl Outcome {
    async fn take(&mut self, connection: &mut Connection, request: &[u8], since: Instant) -> Result<()> {
        let answer = connection.send(request, false).await?;
        if answer.status != 200 {
            let again = connection.send(request, true).await.context("after an answer that was no 200")?;
            let words = String::from_utf8_lossy(&again.body.unwrap_or_default()).into_owned();
            bail!("an answer had the status {}; the next one had {}: {words}", answer.status, again.status);
        }
        self.answers += 1;
        self.events += answer.events;
        self.latencies_us.push(since.elapsed().as_secs_f64() * 1e6);
        Ok(())
    }
}
