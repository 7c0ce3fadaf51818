//! Chooses one token from one row of logits. The same on every device: this file is what a kernel has to reproduce.
//!
//! In this order:
//! 1. logprobs, if wanted, are the natural log-softmax of the row as the model gave it, before anything below;
//! 2. ids without a piece in the tokenizer are out; so are end tokens and stop tokens before `tokens_min`, and whatever
//!    does not lead to one of the texts of `begin_with` while the answer has to (`begin_with.rs`), or to an answer that fits
//!    its constraint (`constraint.rs`);
//! 3. `logit_bias` is added;
//! 4. a token of prompt or answer: a logit over 0 is divided by `repetition_penalty`, any other is multiplied by it;
//!    a token of the answer: minus `presence_penalty`, minus `frequency_penalty` times its count;
//! 5. temperature 0: the highest logit, the lowest id where several are equal. Otherwise the highest is subtracted from
//!    all, so that nothing overflows, and they are divided by the temperature;
//! 6. candidates in order of logit (highest first, then lowest id): the first `top_k`; of these, by their own softmax,
//!    the fewest first ones that sum to at least `top_p`; of these, those at least `min_p` times as likely as the first;
//! 7. [`uniform`](philox::uniform) of (seed, position) times the sum of the weights `exp(logit)` that are left,
//!    walked in order of ids: the first token whose running sum exceeds it is chosen. Weights and sums are f64.

mod changes;
pub mod philox;
mod weight;

use weight::weight;

pub use changes::Change;

use crate::{Sampling, Status, TokenSet, constraint::Only, reason};

/// How many of the best are sorted first when `top_p` looks for where to cut.
const RANKED_AT_FIRST: usize = 128;

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub id: u32,
    /// Empty unless asked for: the chosen token first, then the n most likely, best first.
    pub logprobs: Vec<TokenLogprob>,
}

/// What it takes to choose a token of one sequence.
#[derive(Debug, Clone)]
pub struct Draw<'a> {
    pub sampling: &'a Sampling,
    pub history: &'a History,
    /// In the sequence, of the token being chosen.
    pub position: u32,
    /// No other token is possible.
    pub only: Option<Only<'a>>,
}

/// What the sampler remembers of one sequence: how often each token occurred.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// By id: times in the answer.
    answer: std::collections::HashMap<u32, u32>,
    /// Distinct ids of the prompt, sorted. Kept only where a repetition penalty reads it.
    prompt: Vec<u32>,
    /// Tokens of the answer so far.
    answer_tokens: u32,
}

impl History {
    pub fn new(prompt: &[u32], sampling: &Sampling) -> History {
        let mut seen = if sampling.repetition_penalty == 1.0 { Vec::new() } else { prompt.to_vec() };
        seen.sort_unstable();
        seen.dedup();
        History { prompt: seen, ..History::default() }
    }

    /// Notes a token of the answer.
    pub fn push(&mut self, id: u32) {
        *self.answer.entry(id).or_default() += 1;
        self.answer_tokens += 1;
    }

    /// Tokens of the answer so far.
    pub fn answer_tokens(&self) -> u32 {
        self.answer_tokens
    }
}

/// What is the same for every row of a model.
#[derive(Debug, Clone)]
pub struct Sampler {
    /// By id: whether the tokenizer has a piece for it.
    known: Vec<bool>,
    /// The ids for which it has none: few, so that a row is not gone through for them.
    unknown: Vec<u32>,
    end_tokens: Vec<u32>,
    /// Candidates of the row at hand: (id, logit). Kept so that a row costs no allocation.
    candidates: Vec<(u32, f32)>,
    /// Their weights.
    weights: Vec<f64>,
}

impl Sampler {
    /// `known` has one entry per logit of a row.
    pub fn new(known: Vec<bool>, end_tokens: Vec<u32>) -> Sampler {
        let unknown = (0u32..).zip(&known).filter(|(_, known)| !**known).map(|(id, _)| id).collect();
        Sampler { known, unknown, end_tokens, candidates: Vec::new(), weights: Vec::new() }
    }

    /// Chooses a token. `position` is the position in the sequence of the token being chosen. `only`: no other token is
    /// possible. `logits` is scratch.
    ///
    /// # Errors
    /// `INTERNAL`, and of this sequence alone: a logit is NaN or positive infinity, or no token is possible.
    ///
    /// # Panics
    /// When the row has another length than the vocabulary.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        sampling: &Sampling,
        history: &History,
        position: u32,
        only: Option<&TokenSet>,
    ) -> Result<Choice, Status> {
        assert_eq!(logits.len(), self.known.len(), "a row of logits is as long as the vocabulary");
        check_finite(logits)?;
        let normalizer = sampling.logprobs.map(|_| log_sum_exp(logits));
        let best = sampling.logprobs.map_or_else(Vec::new, |n| self.most_likely(logits, n as usize));
        // The chosen token's own logit is read after it is known, so a row with logprobs keeps what the model gave.
        let raw = if sampling.logprobs.is_some() { logits.to_vec() } else { Vec::new() };

        self.mask(logits, sampling, history);
        if let Some(only) = only {
            keep_only(logits, only);
        }
        apply_biases(logits, sampling, history);
        let id = if sampling.temperature == 0.0 {
            highest(logits)
        } else {
            self.draw(logits, sampling, philox::uniform(sampling.seed, position))
        };
        let Some(id) = id else {
            return Err(Status::internal(reason::NO_TOKEN_POSSIBLE, "no token is left that could be chosen"));
        };
        let mut logprobs = Vec::new();
        if let Some(normalizer) = normalizer {
            let of =
                |id: u32, logit: f32| TokenLogprob { id, logprob: (f64::from(logit) - normalizer) as f32 };
            logprobs.push(of(id, raw[id as usize]));
            logprobs.extend(best.into_iter().map(|(id, logit)| of(id, logit)));
        }
        Ok(Choice { id, logprobs })
    }

    /// As [`Sampler::choose`].
    ///
    /// # Errors
    /// As `choose`.
    pub fn choose_for(&mut self, logits: &mut [f32], draw: &Draw<'_>) -> Result<Choice, Status> {
        self.choose(logits, draw.sampling, draw.history, draw.position, draw.only.as_deref())
    }

    fn mask(&self, logits: &mut [f32], sampling: &Sampling, history: &History) {
        for &id in &self.unknown {
            logits[id as usize] = f32::NEG_INFINITY;
        }
        if history.answer_tokens < sampling.tokens_min {
            for &id in self.end_tokens.iter().chain(&sampling.stop_tokens) {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// The `n` most likely tokens that exist, best first.
    fn most_likely(&mut self, logits: &[f32], n: usize) -> Vec<(u32, f32)> {
        self.collect(logits, |known, logit| known && logit > f32::NEG_INFINITY);
        keep_best(&mut self.candidates, n);
        self.candidates.clone()
    }

    fn collect(&mut self, logits: &[f32], keep: impl Fn(bool, f32) -> bool) {
        self.candidates.clear();
        let rows = logits.iter().zip(&self.known).zip(0u32..);
        self.candidates
            .extend(rows.filter(|((logit, known), _)| keep(**known, **logit)).map(|((l, _), id)| (id, *l)));
    }

    fn draw(&mut self, logits: &mut [f32], sampling: &Sampling, uniform: f64) -> Option<u32> {
        let top = logits[highest(logits)? as usize];
        for logit in logits.iter_mut() {
            *logit = (*logit - top) / sampling.temperature;
        }
        if sampling.top_k == 0 && sampling.top_p >= 1.0 && sampling.min_p <= 0.0 {
            // Every token is a candidate: the row itself is the list of them.
            self.weights.clear();
            self.weights.extend(logits.iter().map(|&logit| weight(logit)));
            return Some(walk(&self.weights, uniform)? as u32);
        }
        self.collect(logits, |_, logit| logit > f32::NEG_INFINITY);
        if sampling.top_k > 0 {
            keep_best(&mut self.candidates, sampling.top_k as usize);
        }
        if sampling.top_p < 1.0 {
            keep_probable(&mut self.candidates, f64::from(sampling.top_p));
        }
        if sampling.min_p > 0.0 {
            let least = f64::from(sampling.min_p);
            self.candidates.retain(|c| weight(c.1) >= least);
        }
        self.candidates.sort_unstable_by_key(|c| c.0);
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|c| weight(c.1)));
        walk(&self.weights, uniform).map(|at| self.candidates[at].0)
    }
}

/// The first place whose running sum exceeds `uniform` times the sum of all.
fn walk(weights: &[f64], uniform: f64) -> Option<usize> {
    let target = uniform * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let passes = weights.iter().position(|weight| {
        sum += weight;
        sum > target
    });
    // Rounding can leave the running sum a hair short of the total: then it is the last one with any weight.
    passes.or_else(|| weights.iter().rposition(|&weight| weight > 0.0))
}

/// Logits that are looked at together: without a way out between them the compiler makes vectors of it.
const LANES: usize = 64;

fn check_finite(logits: &[f32]) -> Result<(), Status> {
    let is_bad = |l: &f32| l.is_nan() || *l == f32::INFINITY;
    let Some(id) = first_place(logits, is_bad) else { return Ok(()) };
    Err(Status::internal(
        reason::LOGITS_NOT_FINITE,
        format!("the model gave the logit {} for token {id}", logits[id]),
    ))
}

fn first_place(logits: &[f32], is_it: impl Fn(&f32) -> bool) -> Option<usize> {
    let chunk = logits.chunks(LANES).position(|c| c.iter().fold(false, |any, l| any | is_it(l)))?;
    let start = chunk * LANES;
    logits[start..].iter().position(is_it).map(|at| start + at)
}

fn keep_only(logits: &mut [f32], only: &TokenSet) {
    // The set ends where no further token is in it.
    let words = only.words().iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

fn apply_biases(logits: &mut [f32], sampling: &Sampling, history: &History) {
    // What is out stays out, and nothing else leaves the finite numbers.
    let mut change = |id: u32, to: &dyn Fn(f32) -> f32| {
        if let Some(logit) = logits.get_mut(id as usize).filter(|l| **l > f32::NEG_INFINITY) {
            *logit = to(*logit).clamp(f32::MIN, f32::MAX);
        }
    };
    for &(id, bias) in &sampling.logit_bias {
        change(id, &|logit| logit + bias);
    }
    let repetition = sampling.repetition_penalty;
    if repetition != 1.0 {
        let answered = history.answer.keys().filter(|id| history.prompt.binary_search(id).is_err());
        for &id in history.prompt.iter().chain(answered) {
            change(id, &|logit| if logit > 0.0 { logit / repetition } else { logit * repetition });
        }
    }
    let (presence, frequency) = (sampling.presence_penalty, sampling.frequency_penalty);
    if presence != 0.0 || frequency != 0.0 {
        for (&id, &count) in &history.answer {
            change(id, &|logit| logit - (presence + frequency * count as f32));
        }
    }
}

/// The highest logit, the lowest id where several are equal; none when all are out.
fn highest(logits: &[f32]) -> Option<u32> {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut tops = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (top, &logit) in tops.iter_mut().zip(chunk) {
            *top = larger(*top, logit);
        }
    }
    let top = tops.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger);
    if top == f32::NEG_INFINITY {
        return None;
    }
    first_place(logits, |&logit| logit == top).map(|id| id as u32)
}

/// Highest first, then lowest id.
fn by_rank(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the first `n` in rank order, sorted so.
fn keep_best(candidates: &mut Vec<(u32, f32)>, n: usize) {
    if n < candidates.len() {
        if n > 0 {
            candidates.select_nth_unstable_by(n - 1, by_rank);
        }
        candidates.truncate(n);
    }
    candidates.sort_unstable_by(by_rank);
}

/// Keeps the fewest first ones in rank order whose probabilities sum to at least `top_p`.
fn keep_probable(candidates: &mut Vec<(u32, f32)>, top_p: f64) {
    let target = top_p * candidates.iter().map(|c| weight(c.1)).sum::<f64>();
    // Mostly a few dozen are enough. To sort all 200,000 takes 10 ms, to find and sort the best 128 takes 1.
    let mut sorted = RANKED_AT_FIRST;
    loop {
        let length = sorted.min(candidates.len());
        if length < candidates.len() {
            candidates.select_nth_unstable_by(length - 1, by_rank);
        }
        candidates[..length].sort_unstable_by(by_rank);
        let mut sum = 0.0;
        let enough = candidates[..length].iter().position(|c| {
            sum += weight(c.1);
            sum >= target
        });
        if let Some(last) = enough {
            return candidates.truncate(last + 1);
        }
        if length == candidates.len() {
            return;
        }
        sorted = sorted.saturating_mul(8);
    }
}

/// The logarithm of the sum of the exponentials; negative infinity when every logit is.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let Some(top) = highest(logits).map(|id| logits[id as usize]) else { return f64::NEG_INFINITY };
    logits.iter().map(|&l| weight(f64::from(l) - f64::from(top))).sum::<f64>().ln() + f64::from(top)
}

#[cfg(test)]
mod tests;
