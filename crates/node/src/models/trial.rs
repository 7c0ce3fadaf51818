//! A worker proves that it works before requests depend on it: one token after a short prompt, or the prompt's embedding.

use std::sync::Arc;
use std::time::Duration;

use engine_protocol::{EventKind, Loaded, Prompt, Sampling, Submit, Task};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::launch::Failure;
use crate::api_error::plain;
use crate::worker::{RequestEnd, Worker, WorkerError};

/// A word that every tokenizer has tokens for.
const PROMPT: &str = "Hello";
/// In the engine's log lines.
const REQUEST_ID: &str = "trial";
/// For all of it. A worker in which nothing moves is ended by its watchdog long before.
pub const TRIAL_MAX: Duration = Duration::from_secs(300);

/// One token, whatever it is, and an end in order. `loaded`: whether the model gives tokens.
pub(super) async fn prove(worker: &Arc<Worker>, loaded: &Loaded) -> Result<(), Failure> {
    let submit = Submit {
        // Chosen by the worker's handle.
        sequence: 0,
        request_id: REQUEST_ID.to_owned(),
        prompt: Prompt::Text { text: PROMPT.to_owned(), literal: Vec::new() },
        task: match loaded.embeds_only {
            true => Task::Embed,
            false => {
                Task::Generate(Box::new(Sampling { temperature: 0.0, tokens_max: 1, ..Sampling::default() }))
            }
        },
        cache_salt: 0,
    };
    let mut events = worker.submit(submit).map_err(Failure::from)?;
    let tried = async {
        let mut results = 0_u32;
        while let Some(event) = events.next().await {
            match event {
                Ok(EventKind::Started { .. }) => {}
                Ok(EventKind::Token(_) | EventKind::Embedding(_)) => results += 1,
                Ok(EventKind::Finished { .. }) if results > 0 => return Ok(()),
                Ok(EventKind::Finished { .. }) => return Err(failed("it ended the answer without a token")),
                Ok(EventKind::Failed { status }) => return Err(Failure::from(WorkerError::Status(status))),
                Err(RequestEnd::Worker(end)) => return Err(Failure::from(WorkerError::Ended(end))),
                Err(RequestEnd::Overflow) => return Err(failed("it gave more tokens than were asked for")),
            }
        }
        Err(failed("its events ended without an end"))
    };
    let in_vain = || failed(&format!("it gave no token within {} s", TRIAL_MAX.as_secs()));
    timeout(TRIAL_MAX, tried).await.unwrap_or_else(|_| Err(in_vain()))
}

fn failed(reason: &str) -> Failure {
    Failure::Broken(plain(503, "trial_failed", format!("the trial step failed: {reason}"), true))
}
