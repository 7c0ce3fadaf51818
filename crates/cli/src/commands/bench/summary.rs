//! The figures of a case out of its requests: pure, times in, numbers out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::plan::Case;
use super::sample::{Sample, Taken};

/// Kinds of errors that are kept apart; what comes beyond counts as one kind.
const ERROR_KINDS_MAX: usize = 20;
const OTHER_ERRORS: &str = "other errors";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub case: Case,
    /// Whole answers.
    pub answered: usize,
    pub failed: usize,
    /// How often each was seen.
    pub errors: BTreeMap<String, usize>,
    /// Of whole answers, per second of the time in which requests were sent.
    pub requests_per_second: f64,
    /// That arrived in that time, of all answers together.
    pub tokens_per_second: f64,
    /// Means, as the server counts them; `null` where it does not.
    pub prompt_tokens: Option<f64>,
    pub completion_tokens: Option<f64>,
    /// From when a request was due to the first part of its answer.
    pub first_token_ms: Percentiles,
    /// Between the parts of an answer.
    pub between_tokens_ms: Percentiles,
    /// From when a request was due to the end of its answer.
    pub whole_ms: Percentiles,
}

/// Milliseconds; `null` of nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
}

impl Percentiles {
    /// By nearest rank: each is a time that was measured.
    pub fn of(times: impl Iterator<Item = Duration>) -> Percentiles {
        let mut sorted: Vec<Duration> = times.collect();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).map(|time| time.as_secs_f64() * 1000.0)
        };
        Percentiles { p50: at(50), p90: at(90), p99: at(99) }
    }
}

impl Summary {
    pub fn of(case: Case, taken: &Taken) -> Summary {
        let whole: Vec<&Sample> = taken.samples.iter().filter(|s| s.error.is_none()).collect();
        let seconds = taken.length.as_secs_f64();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let in_time = whole.iter().filter(|s| s.ended <= taken.length).count();
        let tokens: f64 = taken.samples.iter().map(|s| tokens_until(s, taken.length)).sum();
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
        Summary {
            case,
            answered: whole.len(),
            failed: taken.samples.len() - whole.len(),
            errors: kinds(&taken.samples),
            requests_per_second: per_second(in_time as f64),
            tokens_per_second: per_second(tokens),
            prompt_tokens: mean(whole.iter().filter_map(|s| s.prompt_tokens)),
            completion_tokens: mean(whole.iter().filter_map(|s| s.completion_tokens)),
            first_token_ms: Percentiles::of(whole.iter().filter_map(|s| s.to_first())),
            between_tokens_ms: Percentiles::of(whole.iter().flat_map(|s| s.gaps())),
            whole_ms: Percentiles::of(whole.iter().map(|s| s.whole())),
        }
    }
}

/// The share of a request's tokens that had arrived by `end`: what comes after it came while the load ebbed away.
fn tokens_until(sample: &Sample, end: Duration) -> f64 {
    let early = sample.parts.iter().filter(|at| **at <= end).count();
    if early == 0 {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let share = early as f64 / sample.parts.len() as f64;
    sample.tokens() * share
}

fn mean(counts: impl Iterator<Item = u64>) -> Option<f64> {
    let (mut sum, mut number) = (0.0, 0.0);
    for count in counts {
        #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^52")]
        let count = count as f64;
        sum += count;
        number += 1.0;
    }
    (number > 0.0).then(|| sum / number)
}

fn kinds(samples: &[Sample]) -> BTreeMap<String, usize> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for error in samples.iter().filter_map(|s| s.error.as_deref()) {
        let known = kinds.contains_key(error) || kinds.len() < ERROR_KINDS_MAX;
        *kinds.entry(if known { error } else { OTHER_ERRORS }.to_owned()).or_default() += 1;
    }
    kinds
}
