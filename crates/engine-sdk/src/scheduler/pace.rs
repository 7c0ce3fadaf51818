//! How many prompt tokens a step may read while others decode, from how long steps took.
//!
//! A stream that decodes gets its next token a little later when its step also reads a piece of somebody's prompt. That
//! added gap is bounded by a setting. How many tokens fit it depends on device, model and position, so it is measured:
//! what a step took beyond a step that only decodes, against the tokens it read. The next chunk is the last one times
//! target over measured. With a cost of a + b·n that settles where the cost is the target, from below without passing
//! it, and follows a cost that grows with the position.
//!
//! **Rush.** Where more sequences wait for their first token than decode, more people lose by the gap than gain: sixteen requests
//! that came together would be let in one by one, at the pace of the first. Then a step may take [`RUSH`] gaps, but only for
//! prompts that it reads to their ends: each such step makes at least one more decode, so there are few of them in a row, and a
//! long prompt keeps to the gap.
//!
//! **Invariant:** reads no clock; durations are arguments.

use std::collections::VecDeque;
use std::time::Duration;

/// Tokens of the first chunk, when nothing is known of the device.
pub const CHUNK_FIRST: u32 = 16;
/// Tokens of a chunk at least, whatever the gap: a prompt has to arrive. Where reading weights is what costs, the first
/// token of a chunk costs the most: in a mixture of experts it visits others than the streams do.
pub const CHUNK_MIN: u32 = 1;
/// Gaps that a step in a rush may take.
pub const RUSH: u32 = 10;
/// The share of the gap that is aimed at; the rest is for steps that take longer than the one before.
const TARGET_SHARE: f64 = 0.75;
/// A chunk grows at most by this factor in a step.
const GROWTH_MAX: f64 = 2.0;
/// And shrinks at most by this one: one step that was held up by something else tells little.
const SHRINK_MAX: f64 = 0.25;
/// Of so many of the last steps that only decoded the median is what such a step takes. A mean would not do: while a long prompt
/// arrives there is no such step, so a single slow one before it would lengthen every gap until it has arrived.
const DECODES_KEPT: usize = 9;

/// The state of one model's pace.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Added to the time between two tokens of a stream, at most.
    gap: Duration,
    /// Tokens of the next chunk while others decode.
    chunk: f64,
    /// Whether a chunk beside others has been measured.
    measured: bool,
    /// Seconds of the last steps that only decoded, at most [`DECODES_KEPT`], the oldest first.
    decodes: VecDeque<f64>,
    /// Prompt tokens a second of the last chunk.
    prefill_rate: Option<f64>,
}

impl Pace {
    pub fn new(gap: Duration) -> Pace {
        Pace {
            gap,
            chunk: f64::from(CHUNK_FIRST),
            measured: false,
            decodes: VecDeque::new(),
            prefill_rate: None,
        }
    }

    pub fn gap(&self) -> Duration {
        self.gap
    }

    /// Prompt tokens that the next step may read beside sequences that decode.
    pub fn chunk(&self) -> u32 {
        // Whole and far below 2^32: `note` keeps it below CHUNK_MOST.
        self.chunk as u32
    }

    /// The same of a step in a rush.
    pub fn rush(&self) -> u32 {
        (self.chunk * f64::from(RUSH)) as u32
    }

    /// Prompt tokens a second, as last seen.
    pub fn prefill_rate(&self) -> Option<f64> {
        self.prefill_rate
    }

    /// Seconds of a step that only decodes: the median of the last ones.
    pub fn decode_seconds(&self) -> Option<f64> {
        let mut seconds: Vec<f64> = self.decodes.iter().copied().collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// A step took so long, in which so many sequences decoded and so many prompt tokens were read.
    pub fn note(&mut self, decoding: u32, prompt_tokens: u32, took: Duration) {
        let took = took.as_secs_f64();
        if prompt_tokens == 0 {
            if decoding > 0 {
                if self.decodes.len() == DECODES_KEPT {
                    self.decodes.pop_front();
                }
                self.decodes.push_back(took);
            }
            return;
        }
        let tokens = f64::from(prompt_tokens);
        if decoding == 0 {
            self.large(tokens, took);
            return;
        }
        let added = (took - self.decode_seconds().unwrap_or(0.0)).max(0.0);
        self.prefill_rate = rate(tokens, added);
        let ratio = if added > 0.0 { self.target() / added } else { GROWTH_MAX };
        let fitting = tokens * ratio.clamp(SHRINK_MAX, GROWTH_MAX);
        // What was less than a whole chunk, the end of a prompt, says nothing against a larger one.
        if tokens >= self.chunk.floor() || added > self.target() || fitting > self.chunk {
            self.set(fitting);
            self.measured = true;
        }
    }

    /// The same of a step in a rush.
    pub fn note_rush(&mut self, prompt_tokens: u32, took: Duration) {
        self.large(
            f64::from(prompt_tokens),
            (took.as_secs_f64() - self.decode_seconds().unwrap_or(0.0)).max(0.0),
        );
    }

    /// Tokens of a chunk that no gap has bounded took so many seconds.
    fn large(&mut self, tokens: f64, seconds: f64) {
        self.prefill_rate = rate(tokens, seconds);
        if !self.measured && seconds > 0.0 {
            // A token of a small chunk costs more. Half of it is a guess.
            self.set(tokens * self.target() / seconds / 2.0);
        }
    }

    fn target(&self) -> f64 {
        self.gap.as_secs_f64() * TARGET_SHARE
    }

    fn set(&mut self, chunk: f64) {
        /// No step has as many tokens.
        const CHUNK_MOST: f64 = 16_777_216.0;
        self.chunk = chunk.clamp(f64::from(CHUNK_MIN), CHUNK_MOST);
    }
}

fn rate(tokens: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| tokens / seconds)
}

#[cfg(test)]
mod tests;
