//! Which cases are measured, and when the requests of an open loop are due.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;

use super::BenchArguments;

/// Requests on their way at once, of either loop.
pub const CONCURRENCY_MAX: u32 = 4096;
/// Requests of one case of an open loop.
pub const ARRIVALS_MAX: usize = 1_000_000;
const PROMPT_WORDS_MAX: u32 = 1 << 20;
const SECONDS_MAX: f64 = 86_400.0;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    Closed {
        connections: u32,
    },
    Open {
        /// Requests a second.
        rate: f64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Case {
    pub load: Load,
    pub prompt_words: u32,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Closed { connections: 1 } => write!(f, "1 connection"),
            Load::Closed { connections } => write!(f, "{connections} connections"),
            Load::Open { rate } => write!(f, "{rate} requests/s"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, prompts of {} words", self.load, self.prompt_words)
    }
}

/// Every load with every prompt length, after checking all that has a bound.
pub fn cases(arguments: &BenchArguments) -> Result<Vec<Case>> {
    let seconds = |name: &str, value: f64| {
        if value.is_finite() && value > 0.0 && value <= SECONDS_MAX {
            return Ok(());
        }
        bail!("--{name} is {value}\nhint: give seconds above 0, {SECONDS_MAX} at most")
    };
    seconds("seconds", arguments.seconds)?;
    seconds("deadline", arguments.deadline)?;
    if arguments.max_tokens == 0 {
        bail!("--max-tokens is 0\nhint: an answer without tokens has no speed");
    }
    if let Some(words) = arguments.prompt_words.iter().find(|w| !(1..=PROMPT_WORDS_MAX).contains(w)) {
        bail!("--prompt-words has {words}\nhint: give 1 to {PROMPT_WORDS_MAX}");
    }
    let mut loads = Vec::new();
    for rate in &arguments.rate {
        let most = f64::from(u32::try_from(ARRIVALS_MAX)?) / arguments.seconds;
        if !(rate.is_finite() && *rate > 0.0 && *rate <= most) {
            bail!(
                "--rate has {rate}\nhint: give requests a second above 0, {most:.0} at most for this length"
            );
        }
        loads.push(Load::Open { rate: *rate });
    }
    // Its default stands there also when a rate is given.
    if loads.is_empty() {
        for connections in &arguments.concurrency {
            if !(1..=CONCURRENCY_MAX).contains(connections) {
                bail!("--concurrency has {connections}\nhint: give 1 to {CONCURRENCY_MAX}");
            }
            loads.push(Load::Closed { connections: *connections });
        }
    }
    let with_prompts =
        |load: Load| arguments.prompt_words.iter().map(move |words| Case { load, prompt_words: *words });
    Ok(loads.into_iter().flat_map(with_prompts).collect())
}

/// When the requests of an open loop are due, from its beginning: pauses are exponentially distributed, so that arrivals
/// know nothing of each other.
pub fn arrivals(rate: f64, length: Duration, seed: u64) -> Vec<Duration> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut at = 0.0;
    let mut due = Vec::new();
    while due.len() < ARRIVALS_MAX {
        // 1 - x is in (0, 1]: its logarithm is finite.
        at -= (1.0 - random.random::<f64>()).ln() / rate;
        if at >= length.as_secs_f64() {
            break;
        }
        due.push(Duration::from_secs_f64(at));
    }
    due
}
