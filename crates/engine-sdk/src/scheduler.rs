//! Which sequences are in the next forward pass: continuous batching as a state machine.
//!
//! It knows numbers only: no model, no sampler, no text, no clock. Its owner ([`crate::Runner`]) asks it what to do and
//! tells it what came of it, in this order each step:
//!
//! 1. [`Scheduler::end_cancelled`] until it has nothing more;
//! 2. [`Scheduler::admit`] likewise: the oldest waiting sequence gets a free slot;
//! 3. [`Scheduler::plan`]: one token of every sequence that decodes and chunks of prompts that still have to be read;
//! 4. for every planned row that samples, [`Scheduler::advance`] or [`Scheduler::fail`].
//!
//! **Invariant:** a slot belongs to at most one sequence, and every slot is free or belongs to one. Sequences are admitted
//! in the order in which they were submitted. A sequence leaves through exactly one of `end_cancelled`, `advance`, `fail`
//! and `fail_all`.
//!
//! Paged KV replaces the slot by a block table behind the same calls: `admit` then also asks for free blocks, and `plan`
//! for the blocks that a row grows into.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::{Batch, Slot, Status, reason};

/// Number of a sequence, chosen by the host.
pub type SequenceId = u64;

/// Sequences that may wait for a slot. Queueing for longer is the router's business, which can go elsewhere.
pub const WAITING_MAX: usize = 1024;
/// Prompt tokens read in one step, so that sequences that decode never wait long for the prompts of others.
pub const PREFILL_TOKENS_MAX: u32 = 512;

/// What the model allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of one sequence, prompt and answer.
    pub context_length: u32,
    pub sequences_max: u32,
    /// Tokens of one step; at least `sequences_max`.
    pub batch_tokens_max: u32,
}

/// A sequence that got a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub sequence: SequenceId,
    pub slot: Slot,
    pub prompt_tokens: u32,
    /// Positions the sequence will use at most.
    pub tokens_max: u32,
}

/// A sequence that is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub sequence: SequenceId,
    /// Its slot, which is free now; none if it still waited.
    pub slot: Option<Slot>,
    /// Tokens of its answer.
    pub completion_tokens: u32,
}

/// A row of the planned batch after which a token is to be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub sequence: SequenceId,
    /// Position in the sequence of the token to be chosen.
    pub position: u32,
}

/// What the scheduler makes of a chosen token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    Continues,
    /// The answer has as many tokens as it may have.
    Full(Ended),
    /// The token ended the sequence.
    Stopped(Ended),
}

#[derive(Debug)]
struct Waiting {
    prompt: Vec<u32>,
    answer_max: u32,
}

#[derive(Debug)]
struct Running {
    slot: Slot,
    prompt: Vec<u32>,
    answer_max: u32,
    /// Positions that are in the KV.
    read: u32,
    /// Tokens of the answer; the last of them is not in the KV yet.
    answered: u32,
    last_token: u32,
}

impl Running {
    fn prompt_tokens(&self) -> u32 {
        u32::try_from(self.prompt.len()).expect("a prompt fits the context")
    }
}

#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<SequenceId>,
    waiting_by_id: HashMap<SequenceId, Waiting>,
    /// In the order of admission.
    running: Vec<SequenceId>,
    running_by_id: HashMap<SequenceId, Running>,
    free: BTreeSet<Slot>,
    cancelled: VecDeque<SequenceId>,
}

impl Scheduler {
    /// # Panics
    /// When the limits allow no sequence at all, or fewer tokens than sequences in a step.
    pub fn new(limits: Limits) -> Scheduler {
        assert!(limits.sequences_max > 0 && limits.batch_tokens_max >= limits.sequences_max, "{limits:?}");
        Scheduler {
            limits,
            waiting: VecDeque::new(),
            waiting_by_id: HashMap::new(),
            running: Vec::new(),
            running_by_id: HashMap::new(),
            free: (0..limits.sequences_max).map(Slot).collect(),
            cancelled: VecDeque::new(),
        }
    }

    /// Takes a sequence. `answer_max` 0: up to the context's end.
    ///
    /// # Errors
    /// `UNSUPPORTED` with `empty_prompt`, `context_length_exceeded`, `sequence_exists` or `queue_full`.
    pub fn submit(&mut self, sequence: SequenceId, prompt: Vec<u32>, answer_max: u32) -> Result<(), Status> {
        self.check(sequence, prompt.len())?;
        let prompt_tokens = u32::try_from(prompt.len()).expect("it was compared with the context");
        let room = self.limits.context_length - prompt_tokens;
        let answer_max = if answer_max == 0 { room } else { answer_max.min(room) };
        self.waiting.push_back(sequence);
        self.waiting_by_id.insert(sequence, Waiting { prompt, answer_max });
        Ok(())
    }

    fn check(&self, sequence: SequenceId, prompt_tokens: usize) -> Result<(), Status> {
        if sequence == 0 || self.contains(sequence) {
            let message = format!("sequence {sequence} cannot be submitted: the number is in use or 0");
            return Err(Status::unsupported(reason::SEQUENCE_EXISTS, message));
        }
        if prompt_tokens == 0 {
            return Err(Status::unsupported(reason::EMPTY_PROMPT, "the prompt has no tokens"));
        }
        let (needed, available) = (prompt_tokens as u64 + 1, u64::from(self.limits.context_length));
        if needed > available {
            let message = format!(
                "the prompt has {prompt_tokens} tokens and needs room for one more; the context has {available}"
            );
            return Err(
                Status::unsupported(reason::CONTEXT_LENGTH_EXCEEDED, message).with_numbers(needed, available)
            );
        }
        if self.waiting.len() >= WAITING_MAX {
            let message = format!("{WAITING_MAX} sequences wait already");
            return Err(Status::unsupported(reason::QUEUE_FULL, message)
                .with_numbers(self.waiting.len() as u64 + 1, WAITING_MAX as u64));
        }
        Ok(())
    }

    /// Marks a sequence for its end at the beginning of the next step. A number that is not known is ignored.
    pub fn cancel(&mut self, sequence: SequenceId) {
        if self.contains(sequence) && !self.cancelled.contains(&sequence) {
            self.cancelled.push_back(sequence);
        }
    }

    /// The next cancelled sequence, which has ended with this.
    pub fn end_cancelled(&mut self) -> Option<Ended> {
        while let Some(sequence) = self.cancelled.pop_front() {
            if let Some(ended) = self.remove(sequence) {
                return Some(ended);
            }
        }
        None
    }

    /// Gives a free slot to the sequence that has waited longest.
    pub fn admit(&mut self) -> Option<Admission> {
        if self.waiting.is_empty() {
            return None;
        }
        let slot = self.free.pop_first()?;
        let sequence = self.waiting.pop_front().expect("it is not empty");
        let Waiting { prompt, answer_max } =
            self.waiting_by_id.remove(&sequence).expect("what waits in the queue is in the map");
        let running = Running { slot, prompt, answer_max, read: 0, answered: 0, last_token: 0 };
        let prompt_tokens = running.prompt_tokens();
        self.running.push(sequence);
        self.running_by_id.insert(sequence, running);
        Some(Admission { sequence, slot, prompt_tokens, tokens_max: prompt_tokens + answer_max })
    }

    /// Fills `batch` with the next step, and says which of its rows that want logits belong to whom, in their order.
    ///
    /// Rows count as read from now on: after a failed forward pass the only way on is [`Scheduler::fail_all`].
    pub fn plan(&mut self, batch: &mut Batch) -> Vec<Sample> {
        batch.clear();
        let mut samples = Vec::new();
        let mut room = self.limits.batch_tokens_max;
        // Sequences that decode come first: they must not wait for prompts.
        for &sequence in &self.running {
            let running = self.running_by_id.get_mut(&sequence).expect("what runs is in the map");
            if running.answered > 0 {
                batch.push(running.slot, running.read, &[running.last_token], true);
                running.read += 1;
                samples.push(Sample { sequence, position: running.read });
                room -= 1;
            }
        }
        let mut room = room.min(PREFILL_TOKENS_MAX);
        for &sequence in &self.running {
            let running = self.running_by_id.get_mut(&sequence).expect("what runs is in the map");
            let left = running.prompt_tokens().saturating_sub(running.read);
            if running.answered > 0 || left == 0 || room == 0 {
                continue;
            }
            let chunk = left.min(room);
            let tokens = &running.prompt[running.read as usize..(running.read + chunk) as usize];
            batch.push(running.slot, running.read, tokens, chunk == left);
            running.read += chunk;
            room -= chunk;
            if chunk == left {
                samples.push(Sample { sequence, position: running.read });
            }
        }
        samples
    }

    /// A token was chosen for a planned row. `stops`: it ends the sequence by what it is or spells.
    ///
    /// # Panics
    /// When the sequence does not run.
    pub fn advance(&mut self, sequence: SequenceId, token: u32, stops: bool) -> Advance {
        let running = self.running_by_id.get_mut(&sequence).expect("only a planned sequence advances");
        running.answered += 1;
        running.last_token = token;
        let full = running.answered >= running.answer_max;
        if !stops && !full {
            return Advance::Continues;
        }
        let ended = self.remove(sequence).expect("it runs");
        if stops { Advance::Stopped(ended) } else { Advance::Full(ended) }
    }

    /// One sequence has failed.
    pub fn fail(&mut self, sequence: SequenceId) -> Option<Ended> {
        self.remove(sequence)
    }

    /// Everything has failed, waiting sequences included; in the order of submission.
    pub fn fail_all(&mut self) -> Vec<Ended> {
        let all: Vec<SequenceId> = self.running.iter().chain(&self.waiting).copied().collect();
        all.into_iter().filter_map(|sequence| self.remove(sequence)).collect()
    }

    /// Sequences that hold a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait for one.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn contains(&self, sequence: SequenceId) -> bool {
        self.running_by_id.contains_key(&sequence) || self.waiting_by_id.contains_key(&sequence)
    }

    fn remove(&mut self, sequence: SequenceId) -> Option<Ended> {
        self.cancelled.retain(|&s| s != sequence);
        if let Some(running) = self.running_by_id.remove(&sequence) {
            self.running.retain(|&s| s != sequence);
            let fresh = self.free.insert(running.slot);
            assert!(fresh, "slot {} was free and in use", running.slot.0);
            return Some(Ended { sequence, slot: Some(running.slot), completion_tokens: running.answered });
        }
        self.waiting_by_id.remove(&sequence)?;
        self.waiting.retain(|&s| s != sequence);
        Some(Ended { sequence, slot: None, completion_tokens: 0 })
    }
}

#[cfg(test)]
mod tests;
