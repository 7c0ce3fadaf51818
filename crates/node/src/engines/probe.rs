//! Has an engine opened once, in a worker of its own, before it counts: a library that is no plugin, lacks another
//! library, belongs to another manifest, crashes or hangs is refused by name now, and not by the first request.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout, timeout_at};

use super::Engine;
use crate::WorkerProgram;
use crate::worker::{self, EndCause, WatchdogLimits, WorkerError, WorkerSpec};

/// Workers at once. Opening reads the library from the disk, so more of them gain little.
const PARALLEL: usize = 4;
/// For one engine. A driver that wakes a GPU takes seconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// For all of them: a node starts without those that are not tried by then.
const PROBES_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// By its own answer: it will be the same next time.
    Refused(String),
    /// It died, hung or was not reached. That may be the machine's fault and pass.
    Died(String),
}

/// A verdict on each, in their order.
pub async fn probe(engines: &[Engine], program: &WorkerProgram) -> Vec<Verdict> {
    let deadline = Instant::now() + PROBES_TIMEOUT;
    // Owned: a future over borrowed items is not `Send` for every lifetime.
    stream::iter(engines.to_vec())
        .map(|engine| {
            let program = program.clone();
            async move {
                timeout_at(deadline, try_one(&engine, &program)).await.unwrap_or_else(|_| {
                    let seconds = PROBES_TIMEOUT.as_secs();
                    Verdict::Died(format!("it could not be tried within {seconds} s; it is tried again"))
                })
            }
        })
        .buffered(PARALLEL)
        .collect()
        .await
}

async fn try_one(engine: &Engine, program: &WorkerProgram) -> Verdict {
    let spec = WorkerSpec {
        program: program.clone(),
        engine: engine.clone(),
        model: String::new(),
        // Above the time it has: what it is told is one limit.
        watchdog: WatchdogLimits::new(PROBE_TIMEOUT * 2, PROBE_TIMEOUT * 2, PROBE_TIMEOUT * 2),
    };
    let label = engine.label();
    match timeout(PROBE_TIMEOUT, worker::start(&spec)).await {
        Ok(Ok((worker, _))) => {
            worker.shut_down().await;
            Verdict::Good
        }
        Ok(Err(WorkerError::Status(status))) => Verdict::Refused(status.message),
        Ok(Err(WorkerError::Ended(end))) if end.cause != EndCause::Asked => {
            Verdict::Died(format!("it died when it was tried: {end}"))
        }
        // The worker program is at fault, not the engine; every load tells of it again.
        Ok(Err(error)) => {
            tracing::warn!(engine = label, "an engine could not be tried: {error}");
            Verdict::Good
        }
        Err(_) => {
            let seconds = PROBE_TIMEOUT.as_secs();
            Verdict::Died(format!("it hung when it was tried: it was not open within {seconds} s"))
        }
    }
}
