//! How well a freshly loaded worker runs its model: one short sequence, which is a trial as well. Of a model that gives
//! embeddings alone, the tokens it reads count.

use std::sync::Arc;
use std::time::Duration;

use engine_protocol::{EventKind, Loaded, Prompt, Sampling, Submit, Task};
use futures_util::StreamExt as _;
use node_api::Score;
use tokio::time::{Instant, timeout};

use super::scores::{Measured, Scores};
use crate::clock::unix_now;
use crate::worker::{RequestEnd, Worker, WorkerError};

/// Tokens of the answer: enough that the first step's cost does not decide.
pub const MEASURED_TOKENS: u32 = 32;
/// A measurement that takes longer is given up. A slow engine on a CPU makes a token in some seconds.
pub const MEASURE_TIME_MAX: Duration = Duration::from_secs(120);
/// Plain words, which no template has to render.
const PROMPT: &str = "The quick brown fox jumps over the lazy dog. A second sentence follows the first one.";

/// Why there is no score.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error("the sequence that measures it cannot be sent")]
    Send(#[from] WorkerError),
    #[error("the sequence that measures it failed: {0}")]
    Failed(String),
    #[error("the sequence that measures it gave no token")]
    Silent,
    #[error("the sequence that measures it did not end in {} s", MEASURE_TIME_MAX.as_secs())]
    Slow,
}

impl Scores {
    /// Runs one sequence on a worker that has nothing else to do, and remembers what it reached. `memory`: bytes the
    /// worker was granted, all devices together.
    pub async fn measure(
        &self,
        worker: &Arc<Worker>,
        loaded: &Loaded,
        what: Measured,
        memory: u64,
    ) -> Result<Score, MeasureError> {
        let measured = timeout(MEASURE_TIME_MAX, run(worker, loaded, memory)).await;
        let score = measured.map_err(|_| MeasureError::Slow)??;
        tracing::info!(
            engine_id = what.engine,
            engine_version = what.version,
            device = what.device,
            tokens_per_second = score.tokens_per_second,
            first_token_ms = score.first_token_ms,
            "an engine is measured"
        );
        self.note(what, score).await;
        Ok(score)
    }
}

async fn run(worker: &Arc<Worker>, loaded: &Loaded, memory: u64) -> Result<Score, MeasureError> {
    let sampling = Sampling {
        temperature: 0.0,
        tokens_max: MEASURED_TOKENS,
        ignore_end_tokens: true,
        ..Sampling::default()
    };
    let submit = Submit {
        sequence: 0,
        request_id: "measure".to_owned(),
        prompt: Prompt::Text { text: PROMPT.to_owned(), literal: Vec::new() },
        task: if loaded.embeds_only { Task::Embed } else { Task::Generate(Box::new(sampling)) },
        cache_salt: 0,
    };
    let started = Instant::now();
    let mut events = worker.submit(submit)?;
    let (mut times, mut read) = (Times::default(), 0);
    while let Some(event) = events.next().await {
        match event {
            Ok(EventKind::Token(_)) => times.token(started.elapsed()),
            Ok(EventKind::Failed { status }) => return Err(MeasureError::Failed(status.to_string())),
            Err(end) => return Err(MeasureError::Failed(reason(&end))),
            Ok(EventKind::Embedding(_)) => times.embedding(started.elapsed(), read),
            Ok(EventKind::Started { prompt_tokens, .. }) => read = prompt_tokens,
            Ok(EventKind::Finished { .. }) => {}
        }
    }
    times.score(memory).ok_or(MeasureError::Silent)
}

fn reason(end: &RequestEnd) -> String {
    end.status().to_string()
}

/// When tokens came, since the sequence was sent.
#[derive(Debug, Default)]
struct Times {
    first: Option<Duration>,
    last: Duration,
    tokens: u32,
}

impl Times {
    fn token(&mut self, at: Duration) {
        self.first.get_or_insert(at);
        self.last = at;
        self.tokens += 1;
    }

    /// As if each token of the prompt had come as one of an answer, and the last of them now.
    fn embedding(&mut self, at: Duration, prompt_tokens: u32) {
        (self.first, self.last) = (Some(at / prompt_tokens.max(1)), at);
        self.tokens = prompt_tokens.max(1);
    }

    /// Of one token only, the time to it is all there is to go by.
    fn score(&self, memory: u64) -> Option<Score> {
        let first = self.first?;
        let (steps, time) = match self.tokens {
            1 => (1, first),
            tokens => (tokens - 1, self.last.saturating_sub(first)),
        };
        // A clock that did not move between the tokens: as fast as it can tell.
        let seconds = time.max(Duration::from_nanos(1)).as_secs_f64();
        Some(Score {
            tokens_per_second: f64::from(steps) / seconds,
            first_token_ms: first.as_secs_f64() * 1000.0,
            memory,
            measured_at: unix_now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(at_ms: &[u64], expected: Option<(f64, f64)>) {
        let mut times = Times::default();
        at_ms.iter().for_each(|at| times.token(Duration::from_millis(*at)));
        let score = times.score(9);
        assert_eq!(score.map(|s| (s.tokens_per_second.round(), s.first_token_ms.round())), expected);
        assert!(score.is_none_or(|s| s.memory == 9 && s.tokens_per_second.is_finite()));
    }

    #[test]
    fn the_first_token_is_not_part_of_the_throughput() {
        check(&[1000, 1100, 1200, 1300], Some((10.0, 1000.0)));
    }

    #[test]
    fn one_token_counts_by_the_time_to_it() {
        check(&[500], Some((2.0, 500.0)));
    }

    #[test]
    fn an_embedding_counts_by_the_tokens_it_took() {
        let mut times = Times::default();
        times.embedding(Duration::from_secs(2), 100);
        assert_eq!(times.score(9).map(|s| s.tokens_per_second.round()), Some(50.0));
    }

    #[test]
    fn no_token_is_no_score_and_no_time_is_no_infinity() {
        check(&[], None);
        check(&[5, 5], Some((1e9, 5.0)));
    }
}
