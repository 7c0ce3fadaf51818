//! One sequence as the scheduler sees it: its tokens, how far they are in the KV, and where it is.

use super::SequenceId;
use crate::{
    Slot,
    kv::{cache::SequenceKv, prefix::Chain},
};

/// Prompt and answer are one list: a sequence that gave way reads both again, and nobody notices.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: SequenceId,
    /// Counts submissions; the younger of two sequences has the larger one.
    pub arrival: u64,
    /// The prompt, then the answer; the last token of the answer is not in the KV yet.
    pub tokens: Vec<u32>,
    pub prompt_tokens: u32,
    pub answer_max: u32,
    /// It ends when its prompt is read, and nothing is chosen.
    pub embeds: bool,
    /// Whose KV it may share.
    pub salt: u64,
    /// Hashes of its whole blocks.
    pub chain: Chain,
    /// It has been admitted before.
    pub started: bool,
    pub place: Place,
}

#[derive(Debug)]
pub(super) enum Place {
    Waiting,
    Running(Running),
}

#[derive(Debug)]
pub(super) struct Running {
    pub slot: Slot,
    /// None where the model keeps its KV by itself.
    pub kv: Option<SequenceKv>,
    /// Positions that are in the KV, or will be when the steps under way are done.
    pub read: u32,
    /// Positions more that the step being planned reads.
    pub planned: u32,
    /// The step being planned chooses a token behind them: as the so many-th of the step.
    pub samples: Option<u32>,
    /// Tokens behind the known ones that steps under way choose: at most two, and one when a step is planned.
    pub pending: u32,
    /// Where the last of them is among the samples of its step.
    pub pending_at: u32,
}

impl Sequence {
    /// Positions that it has tokens for.
    pub fn length(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("a sequence fits the context")
    }

    /// Tokens of its answer.
    pub fn answered(&self) -> u32 {
        self.length() - self.prompt_tokens
    }

    /// Positions it uses at most.
    pub fn tokens_max(&self) -> u32 {
        self.prompt_tokens + self.answer_max
    }

    /// Positions that have to be readable at once for it to be admitted: all it has, and `reserve` tokens to come.
    pub fn wanted(&self, reserve: u32) -> u32 {
        self.length().saturating_add(reserve).min(self.tokens_max())
    }
}

impl Running {
    pub fn new(slot: Slot, kv: Option<SequenceKv>, read: u32) -> Running {
        Running { slot, kv, read, planned: 0, samples: None, pending: 0, pending_at: 0 }
    }

    /// Tokens it has still to read, those to come included: 1 for a sequence that decodes.
    pub fn left(&self, length: u32) -> u32 {
        length + self.pending - self.read
    }
}
