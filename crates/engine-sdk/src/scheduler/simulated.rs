//! The scheduler beside a device that remembers what it was given, for property tests and fuzzing.
//!
//! Each place of each block holds what was stored there last: of which group, which position, and a digest of everything up
//! to it. A row is right if all it looks at is what its own sequence would have stored, so a block that is shared wrongly,
//! freed too early, or found for another text or caller is seen at the next row that reads it. Mistakes panic.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::{Admission, Advance, Ended, Limits, Scheduler, SequenceId};
use crate::{Batch, BlockId, Slot, kv::KvLayout};

/// Something a host does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A prompt of the first `shared` tokens of text number `text`, and `own` tokens of its own.
    Submit {
        text: u8,
        shared: u16,
        own: u16,
        answer_max: u16,
        salt: u8,
    },
    /// Of the sequences submitted so far, ended or not.
    Cancel(u16),
    /// Which sampled rows stop or fail, by bit; how long the pass takes.
    Step {
        stop: u64,
        fail: u64,
        took_ms: u16,
    },
    FailAll,
}

/// What the host knows of a sequence that lives.
#[derive(Debug)]
struct Known {
    salt: u8,
    tokens: Vec<u32>,
    /// Chosen by the device in the step under way.
    to_come: Option<u32>,
    prompt_tokens: usize,
    tokens_max: usize,
    slot: Option<Slot>,
    cancelled: bool,
}

/// What a place of a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    group: usize,
    position: usize,
    digest: u64,
}

#[derive(Debug)]
pub struct Simulation {
    scheduler: Scheduler,
    limits: Limits,
    /// (block, place in it).
    cells: HashMap<(BlockId, usize), Cell>,
    known: BTreeMap<SequenceId, Known>,
    /// Highest sequence that has been admitted.
    admitted: SequenceId,
    submitted: SequenceId,
    /// Positions that all sequences together could have: a bound of the steps left.
    work: usize,
    /// The next step is launched before the tokens of the last one are told.
    ahead: bool,
    under_way: Option<Launched>,
}

/// A step whose tokens were not told yet.
#[derive(Debug)]
struct Launched {
    /// By draw: the sequence, if it lives still, and what was chosen for it.
    chosen: Vec<(Option<SequenceId>, u32)>,
    stop: u64,
    fail: u64,
    took: Duration,
}

impl Simulation {
    pub fn new(limits: Limits) -> Simulation {
        Simulation::with_owner(limits, false)
    }

    /// Of an owner that runs ahead.
    pub fn ahead(limits: Limits) -> Simulation {
        Simulation::with_owner(limits, true)
    }

    fn with_owner(limits: Limits, ahead: bool) -> Simulation {
        Simulation {
            ahead,
            under_way: None,
            scheduler: Scheduler::new(limits.clone()),
            limits,
            cells: HashMap::new(),
            known: BTreeMap::new(),
            admitted: 0,
            submitted: 0,
            work: 0,
        }
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub fn act(&mut self, action: &Action) {
        match *action {
            Action::Submit { text, shared, own, answer_max, salt } => {
                self.submit(text, shared, own, answer_max, salt);
            }
            Action::Cancel(nth) => {
                let sequence = SequenceId::from(nth);
                if let Some(known) = self.known.get_mut(&sequence) {
                    known.cancelled = true;
                }
                self.scheduler.cancel(sequence);
            }
            Action::Step { stop, fail, took_ms } => {
                self.step(stop, fail, Duration::from_millis(u64::from(took_ms)));
            }
            Action::FailAll => {
                self.under_way = None;
                let ended: Vec<Ended> = self.scheduler.fail_all();
                assert!(ended.is_sorted_by_key(|e| e.sequence), "not in the order of submission");
                ended.into_iter().for_each(|e| self.ended(e));
                assert!(self.known.is_empty(), "fail_all left {:?}", self.known);
                assert!(
                    self.scheduler.kv().is_none_or(|kv| kv.pool().kept() == 0),
                    "distrusted blocks are kept"
                );
            }
        }
        self.check();
    }

    /// Lets everything end by itself.
    pub fn finish(&mut self) {
        // The oldest moves by a token at least each step, and is never made to start again.
        let mut left = self.work + 1;
        while !self.known.is_empty() {
            left = left.checked_sub(1).expect("a sequence is starved");
            self.step(0, 0, Duration::from_millis(1));
            self.check();
        }
        if let Some(kv) = self.scheduler.kv() {
            assert_eq!(kv.pool().used(), 0, "a block has outlived its sequence");
        }
        assert_eq!(self.scheduler.free.len(), self.limits.sequences_max as usize);
    }

    fn submit(&mut self, text: u8, shared: u16, own: u16, answer_max: u16, salt: u8) {
        self.submitted += 1;
        let sequence = self.submitted;
        let common = (0..u32::from(shared)).map(|i| u32::from(text) * 100_000 + i);
        let private = (0..own).map(|i| 1_000_000_000 + sequence as u32 * 10_000 + u32::from(i));
        let tokens: Vec<u32> = common.chain(private).collect();
        let prompt_tokens = tokens.len();
        let taken = self.scheduler.submit(sequence, tokens.clone(), u32::from(answer_max), u64::from(salt));
        let context = self.limits.context_length as usize;
        match taken {
            Ok(()) => {
                assert!((1..context).contains(&prompt_tokens));
                let room = context - prompt_tokens;
                let answer = if answer_max == 0 { room } else { room.min(usize::from(answer_max)) };
                let tokens_max = prompt_tokens + answer;
                self.work += tokens_max + 1;
                let known = Known {
                    salt,
                    tokens,
                    to_come: None,
                    prompt_tokens,
                    tokens_max,
                    slot: None,
                    cancelled: false,
                };
                self.known.insert(sequence, known);
            }
            Err(status) => {
                assert!(!self.scheduler.contains(sequence));
                let full = prompt_tokens == 0 || prompt_tokens >= context || self.scheduler.waiting() > 0;
                assert!(full || status.reason == crate::reason::KV_FULL, "{status}");
            }
        }
    }

    fn ended(&mut self, ended: Ended) {
        let known = self.known.remove(&ended.sequence).expect("a sequence ends once");
        assert_eq!(ended.slot, known.slot);
        assert_eq!(ended.completion_tokens as usize, known.tokens.len() - known.prompt_tokens);
        assert!(!self.scheduler.contains(ended.sequence));
        let chosen = self.under_way.iter_mut().flat_map(|step| &mut step.chosen);
        chosen.filter(|c| c.0 == Some(ended.sequence)).for_each(|c| c.0 = None);
    }

    fn step(&mut self, stop: u64, fail: u64, took: Duration) {
        while let Some(ended) = self.scheduler.end_cancelled() {
            assert!(self.known[&ended.sequence].cancelled, "{} ends as cancelled", ended.sequence);
            self.ended(ended);
        }
        assert!(self.known.values().all(|k| !k.cancelled), "a cancelled sequence lives on");
        while let Some(admission) = self.scheduler.admit() {
            self.admit(admission);
        }
        let mut batch = Batch::new();
        let plan = self.scheduler.plan(&mut batch);
        for slot in plan.preempted {
            // Numbers rise with every submission: the last one that runs is the youngest.
            let youngest = self.known.iter_mut().rfind(|(_, k)| k.slot.is_some());
            let (sequence, holder) = youngest.expect("a slot in use gives way");
            assert_eq!(holder.slot, Some(slot), "{sequence} is the youngest, and another one gave way");
            holder.slot = None;
        }
        for (ended, status) in plan.failed {
            assert_eq!(status.reason, crate::reason::KV_FULL);
            assert!(status.needed > status.available, "{status}");
            self.ended(ended);
        }
        if batch.is_empty() {
            let under_way = self.under_way.take();
            assert!(
                self.scheduler.running() == 0 || under_way.is_some(),
                "something runs, and nothing is planned"
            );
            return under_way.into_iter().for_each(|step| self.tell(step));
        }
        assert!(batch.tokens().len() <= self.limits.batch_tokens_max as usize);
        let oldest = self.known.values().find_map(|k| k.slot).expect("a row has a slot");
        let moves = batch.rows().any(|row| row.slot == oldest);
        assert!(moves || self.under_way.is_some(), "the oldest does not move");
        let read = self.forward(&batch);
        assert_eq!(plan.samples.len(), batch.logits_rows());
        self.scheduler.launched();
        let mut chosen = Vec::new();
        for (sample, digest) in plan.samples.into_iter().zip(read) {
            let known = self.known.get_mut(&sample.sequence).expect("it lives");
            assert_eq!(sample.position as usize, known.tokens.len() + usize::from(known.to_come.is_some()));
            chosen.push((Some(sample.sequence), (digest % 50) as u32));
        }
        let last = self.under_way.replace(Launched { chosen, stop, fail, took });
        last.into_iter().for_each(|step| self.tell(step));
        // Of the step under way, or of the one just told.
        let Some(step) = self.under_way.take_if(|_| !self.ahead) else {
            for (sequence, token) in self.under_way.iter().flat_map(|step| &step.chosen) {
                let known = sequence.as_ref().and_then(|s| self.known.get_mut(s));
                known.into_iter().for_each(|known| known.to_come = Some(*token));
            }
            return;
        };
        self.tell(step);
    }

    /// The tokens of a step come to the host.
    fn tell(&mut self, step: Launched) {
        self.scheduler.paced(step.took);
        for (i, (sequence, token)) in step.chosen.into_iter().enumerate() {
            let Some(sequence) = sequence else { continue };
            if step.fail >> (i % 64) & 1 == 1 {
                let ended = self.scheduler.fail(sequence).expect("it lives");
                self.ended(ended);
                continue;
            }
            self.choose(sequence, token, step.stop >> (i % 64) & 1 == 1);
        }
    }

    fn choose(&mut self, sequence: SequenceId, token: u32, stops: bool) {
        let known = self.known.get_mut(&sequence).expect("it lives");
        known.to_come = None;
        known.tokens.push(token);
        let full = known.tokens.len() == known.tokens_max;
        match self.scheduler.advance(sequence, token, stops) {
            Advance::Continues => assert!(!stops && !full),
            Advance::Full(ended) => {
                assert!(full && !stops);
                self.ended(ended);
            }
            Advance::Stopped(ended) => {
                assert!(stops);
                self.ended(ended);
            }
        }
    }

    fn admit(&mut self, admission: Admission) {
        let Admission { sequence, slot, prompt_tokens, cached_tokens, tokens_max, again } = admission;
        assert!(self.known.values().all(|k| k.slot != Some(slot)), "slot {} is given twice", slot.0);
        let waits = |(id, known): (&SequenceId, &Known)| (known.slot.is_none()).then_some(*id);
        assert_eq!(self.known.iter().find_map(waits), Some(sequence), "somebody overtakes");
        assert_eq!(again, sequence <= self.admitted);
        self.admitted = self.admitted.max(sequence);
        let known = self.known.get_mut(&sequence).expect("only what lives is admitted");
        assert_eq!((known.prompt_tokens, known.tokens_max), (prompt_tokens as usize, tokens_max as usize));
        assert!((cached_tokens as usize) < known.tokens.len(), "nothing is left to read");
        known.slot = Some(slot);
    }

    /// Stores what is new, checks what is looked at, and gives the digest of each row that wants logits.
    fn forward(&mut self, batch: &Batch) -> Vec<u64> {
        let mut out = Vec::new();
        let mut written = BTreeSet::new();
        for row in batch.rows() {
            let (id, known) =
                self.known.iter().find(|(_, k)| k.slot == Some(row.slot)).expect("a row of a sequence");
            let start = row.position as usize;
            let end = start + row.tokens.len();
            let mut tokens = known.tokens.clone();
            tokens.extend(known.to_come);
            match row.chosen_by {
                None => assert_eq!(row.tokens, &tokens[start..end], "sequence {id}"),
                Some(draw) => {
                    let chosen = &self.under_way.as_ref().expect("a step is under way").chosen;
                    assert_eq!(chosen[draw as usize], (Some(*id), known.to_come.expect("a token to come")));
                    assert_eq!((start, end), (known.tokens.len(), tokens.len()));
                }
            }
            assert_eq!(row.wants_logits, end == tokens.len());
            let digests = digests(known.salt, &tokens[..end]);
            if let Some(layout) = &self.limits.kv {
                assert_eq!(row.tables(), layout.groups.len());
                for (group, window) in layout.groups.iter().map(|g| g.window).enumerate() {
                    let table = row.table(group);
                    let place = |position: usize| {
                        let size = layout.block_tokens as usize;
                        let at = (position / size).checked_sub(table.first as usize);
                        (table.blocks[at.expect("the position is not gone")], position % size)
                    };
                    for (position, &digest) in digests.iter().enumerate().skip(start) {
                        assert!(written.insert(place(position)), "two rows store at one place");
                        self.cells.insert(place(position), Cell { group, position, digest });
                    }
                    let seen = window.map_or(0, |w| (start + 1).saturating_sub(w as usize));
                    for (position, &digest) in digests.iter().enumerate().skip(seen) {
                        let cell = Cell { group, position, digest };
                        assert_eq!(self.cells.get(&place(position)), Some(&cell), "sequence {id} reads");
                    }
                }
            }
            if row.wants_logits {
                // Not of the salt: the same text has the same answer.
                out.push(digests_of(0, &tokens[..end]));
            }
        }
        out
    }

    /// Every block in use is in the table of a running sequence, and the other way round.
    fn check(&self) {
        let Some(kv) = self.scheduler.kv() else { return };
        let mut used = BTreeSet::new();
        for sequence in self.scheduler.sequences.values() {
            let super::Place::Running(running) = &sequence.place else { continue };
            for table in running.kv.iter().flat_map(|kv| kv.tables()) {
                used.extend(table.blocks.iter().copied());
            }
        }
        assert_eq!(used.len() as u64, kv.pool().used(), "blocks are leaked or lost");
        let KvLayout { blocks, .. } = kv.layout();
        assert_eq!(kv.pool().used() + kv.pool().kept() + kv.pool().free(), u64::from(*blocks));
    }
}

fn digests(salt: u8, tokens: &[u32]) -> Vec<u64> {
    let mut digest = mix(u64::from(salt));
    let next = |token: &u32| {
        digest = mix(digest ^ u64::from(*token));
        digest
    };
    tokens.iter().map(next).collect()
}

fn digests_of(salt: u8, tokens: &[u32]) -> u64 {
    digests(salt, tokens).last().copied().unwrap_or(0)
}

/// Well spread; that is all it is for.
fn mix(value: u64) -> u64 {
    let value =
        (value ^ (value >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ (value >> 27)
}
