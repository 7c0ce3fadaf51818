//! Has every engine opened once, in a worker of its own, before it counts: a library that is no plugin, lacks another
//! library or belongs to another manifest is refused by name now, and not by the first request.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::timeout;

use super::{Engine, EngineRegistry, RefusedEngine};
use crate::WorkerProgram;
use crate::worker::{self, WorkerError, WorkerSpec};

/// Workers at once. Opening reads the library from the disk, so more of them gain little.
const PARALLEL: usize = 4;
/// For one engine. A driver that wakes a GPU takes seconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Moves the engines that cannot be opened to the refused ones. An engine whose worker dies or says nothing stays: that
/// may be the machine's fault and pass, and every load tells of it again.
pub async fn probe(mut registry: EngineRegistry, program: &WorkerProgram) -> EngineRegistry {
    let found = std::mem::take(&mut registry.engines);
    let mut looked = stream::iter(found)
        .map(async |engine| {
            let reason = refusal(&engine, program).await;
            (engine, reason)
        })
        .buffered(PARALLEL);
    while let Some((engine, reason)) = looked.next().await {
        match reason {
            None => registry.engines.push(engine),
            Some(reason) => registry.refused.push(RefusedEngine {
                folder: engine.library.parent().map(Into::into).unwrap_or_default(),
                manifest: Some(engine.manifest),
                reason,
            }),
        }
    }
    registry
}

/// Why the engine cannot be used, if that is the engine's own fault.
async fn refusal(engine: &Engine, program: &WorkerProgram) -> Option<String> {
    let spec = WorkerSpec { program: program.clone(), engine: engine.clone(), model: String::new() };
    let label = engine.label();
    match timeout(PROBE_TIMEOUT, worker::start(&spec)).await {
        Ok(Ok((worker, _))) => {
            worker.shut_down().await;
            None
        }
        Ok(Err(WorkerError::Status(status))) => Some(status.message),
        Ok(Err(error)) => {
            tracing::warn!(engine = label, "an engine could not be tried: {error}");
            None
        }
        Err(_) => {
            let seconds = PROBE_TIMEOUT.as_secs();
            tracing::warn!(
                engine = label,
                "an engine could not be tried: it was not open within {seconds} s"
            );
            None
        }
    }
}
