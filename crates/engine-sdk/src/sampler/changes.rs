//! What the sampler's rules 2 to 4 do to single tokens, as a list: for devices that choose tokens themselves.

use std::collections::BTreeMap;

use super::History;
use crate::Sampling;

/// What happens to the logit of one token, in this order: out, or plus `bias`, then divided by `repetition` if over 0 and
/// multiplied by it if not, then minus `penalty`; after each step it is kept within the finite numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    pub id: u32,
    pub out: bool,
    /// 0: none.
    pub bias: f32,
    /// 1: none.
    pub repetition: f32,
    /// 0: none.
    pub penalty: f32,
}

impl Change {
    /// Every token that is changed, once, in ascending order. Tokens that the tokenizer does not have are not among them.
    pub fn all(sampling: &Sampling, history: &History, end_tokens: &[u32]) -> Vec<Change> {
        let mut changes: BTreeMap<u32, Change> = BTreeMap::new();
        let mut change = |id: u32, to: &dyn Fn(&mut Change)| {
            to(changes.entry(id).or_insert(Change {
                id,
                out: false,
                bias: 0.0,
                repetition: 1.0,
                penalty: 0.0,
            }));
        };
        if history.answer_tokens < sampling.tokens_min {
            for &id in end_tokens.iter().chain(&sampling.stop_tokens) {
                change(id, &|c| c.out = true);
            }
        }
        for &(id, bias) in &sampling.logit_bias {
            change(id, &|c| c.bias += bias);
        }
        if sampling.repetition_penalty != 1.0 {
            for &id in history.prompt.iter().chain(history.answer.keys()) {
                change(id, &|c| c.repetition = sampling.repetition_penalty);
            }
        }
        let (presence, frequency) = (sampling.presence_penalty, sampling.frequency_penalty);
        if presence != 0.0 || frequency != 0.0 {
            for (&id, &count) in &history.answer {
                change(id, &|c| c.penalty = presence + frequency * count as f32);
            }
        }
        changes.into_values().collect()
    }
}

#[cfg(test)]
mod tests;
