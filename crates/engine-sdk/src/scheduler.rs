//! Which sequences are in the next forward pass: continuous batching as a state machine.
//!
//! It knows numbers only: no model, no sampler, no text, no clock. Its owner ([`crate::Runner`]) asks it what to do and
//! tells it what came of it, in this order each step:
//!
//! 1. [`Scheduler::end_cancelled`] until it has nothing more;
//! 2. [`Scheduler::admit`] likewise: the oldest waiting sequence gets a free slot, if there is KV for what it has and
//!    [`RESERVE_TOKENS`] more;
//! 3. [`Scheduler::plan`]: one token of every sequence that decodes, and a chunk of what others have to read, no longer than
//!    the [`pace`] allows while somebody decodes; short prompts whole, where more wait than decode. Where blocks are lacking
//!    the youngest sequence gives way;
//! 4. [`Scheduler::completed`] when the forward pass has succeeded;
//! 5. for every planned row that samples, [`Scheduler::advance`] or [`Scheduler::fail`]; for every sequence that is read to
//!    be embedded [`Scheduler::embedded`] or `fail`.
//!
//! **Running ahead.** A device that chooses tokens itself need not wait for the host between steps. Its owner then calls
//! [`Scheduler::launched`] right after a plan, plans the next step while that one is under way, and does
//! [`Scheduler::paced`] and 5. when its tokens are there, before it plans a third. A row then reads a token that nobody
//! knows yet ([`crate::Row::chosen_by`]). A sequence that turns out to have ended has had one row too many, which its
//! owner ignores: its blocks are let go with all others, and what the device still writes there comes before whatever the
//! next holder writes, because steps follow one another on the device. Nobody gives way, and nothing fails, for a token
//! that may never be: such a row waits until it is known.
//!
//! **Order.** Sequences are admitted, and given blocks, in the order in which they were submitted. Whoever lacks a block takes
//! those of the youngest; the youngest itself waits. So the oldest always moves, ends, and makes the next one the oldest:
//! nobody starves. A sequence that gave way goes back to its place among the waiting, keeps its tokens, and reads them again
//! later; often it finds its own blocks in the prefix cache. Its owner sees none of this but the [`Plan::preempted`] slot.
//!
//! **Invariant:** a slot belongs to at most one sequence, and every slot is free or belongs to one. A block is used by exactly
//! the running sequences whose tables name it. A sequence leaves through exactly one of `end_cancelled`, `plan` (no room even
//! alone), `advance`, `embedded`, `fail` and `fail_all`, and its blocks are available at that moment.

pub mod pace;
mod sequence;
#[cfg(any(test, feature = "testing"))]
pub mod simulated;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use crate::{
    Batch, Slot, Status,
    kv::{
        KvLayout,
        cache::{KvCache, SequenceKv},
        prefix::Chain,
    },
    reason,
};
use pace::Pace;
use sequence::{Place, Running, Sequence};

/// Number of a sequence, chosen by the host.
pub type SequenceId = u64;

/// Sequences that may wait for a slot. Queueing for longer is the router's business, which can go elsewhere.
pub const WAITING_MAX: usize = 1024;
/// Prompt tokens read in one step at most, also when nobody decodes: a step is what a cancelled sequence, a new short
/// request and the host's watch wait for.
pub const PREFILL_TOKENS_MAX: u32 = 512;
/// Tokens to come that a sequence must have KV for when it is admitted, besides what it has to read. More makes fewer
/// sequences give way later; fewer lets more run at once. An answer of a sentence fits.
pub const RESERVE_TOKENS: u32 = 64;
/// The longest added gap between two tokens of a stream, when nobody says otherwise: a pause that a reader does not notice.
pub const PREFILL_GAP_DEFAULT: Duration = Duration::from_millis(200);

/// What the model allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of one sequence, prompt and answer.
    pub context_length: u32,
    pub sequences_max: u32,
    /// Tokens of one step; at least `sequences_max`.
    pub batch_tokens_max: u32,
    /// How much later a token of a stream may come because others' prompts are read.
    pub prefill_gap: Duration,
    /// Tokens to come that a sequence must have KV for when it is admitted.
    pub reserve_tokens: u32,
    /// None: the model keeps the KV of its slots by itself, without blocks; then nobody gives way.
    pub kv: Option<KvLayout>,
    /// Prompts to be embedded are read in one step each, for which `batch_tokens_max` has to be as large as the context.
    pub embeds_whole: bool,
}

/// What is to come of a prompt, as far as the scheduler minds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// An answer of so many tokens; 0: up to the context's end.
    Answer(u32),
    /// Its embedding, when it is read.
    Embedding,
}

/// A sequence that got a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub sequence: SequenceId,
    pub slot: Slot,
    pub prompt_tokens: u32,
    /// Tokens whose KV was found.
    pub cached_tokens: u32,
    /// Positions the sequence will use at most.
    pub tokens_max: u32,
    /// It had been admitted before and gave way: its owner knows it already.
    pub again: bool,
}

/// A sequence that is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub sequence: SequenceId,
    /// Its slot, which is free now; none if it waited.
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

/// What [`Scheduler::plan`] decided, besides the batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of the rows that want logits, in their order.
    pub samples: Vec<Sample>,
    /// Sequences that are read to their end with this step and are to be embedded.
    pub embeds: Vec<(SequenceId, Slot)>,
    /// Slots of sequences that gave way: the model is to end them before the pass.
    pub preempted: Vec<Slot>,
    /// Ended, because they do not fit even alone.
    pub failed: Vec<(Ended, Status)>,
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

/// Counted since the load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that a sequence gave way.
    pub preemptions: u64,
    /// Prompt tokens whose KV was found, at first admissions.
    pub cached_tokens: u64,
    /// Blocks that were found, at all admissions.
    pub reused_blocks: u64,
}

/// What the pace has to know of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Planned {
    /// Rows that decode.
    decoding: u32,
    prompt_tokens: u32,
    /// It reads more than the gap allows; see [`pace`].
    rushes: bool,
}

#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    sequences: HashMap<SequenceId, Sequence>,
    /// By arrival.
    waiting: BTreeMap<u64, SequenceId>,
    /// By arrival.
    running: BTreeMap<u64, SequenceId>,
    arrivals: u64,
    free: BTreeSet<Slot>,
    cancelled: VecDeque<SequenceId>,
    kv: Option<KvCache>,
    pace: Pace,
    /// Of the step being planned.
    planned: Planned,
    /// The same of the steps under way, the oldest first.
    under_way: VecDeque<Planned>,
    counts: Counts,
}

impl Scheduler {
    /// # Panics
    /// When the limits allow no sequence at all, or fewer tokens than sequences in a step.
    pub fn new(limits: Limits) -> Scheduler {
        assert!(limits.sequences_max > 0 && limits.batch_tokens_max >= limits.sequences_max, "{limits:?}");
        Scheduler {
            sequences: HashMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            arrivals: 0,
            free: (0..limits.sequences_max).map(Slot).collect(),
            cancelled: VecDeque::new(),
            kv: limits.kv.clone().map(KvCache::new),
            pace: Pace::new(limits.prefill_gap),
            planned: Planned::default(),
            under_way: VecDeque::new(),
            counts: Counts::default(),
            limits,
        }
    }

    /// Takes a sequence. `answer_max` 0: up to the context's end. `salt`: see `cache_salt` of the header.
    ///
    /// # Errors
    /// `UNSUPPORTED` with `empty_prompt`, `context_length_exceeded`, `sequence_exists` or `queue_full`; `kv_full` where the
    /// prompt would not fit even alone.
    pub fn submit(
        &mut self,
        sequence: SequenceId,
        prompt: Vec<u32>,
        answer_max: u32,
        salt: u64,
    ) -> Result<(), Status> {
        self.take(sequence, prompt, Wanted::Answer(answer_max), salt)
    }

    /// Takes a sequence that ends, in [`Plan::embeds`], when its prompt is read.
    ///
    /// # Errors
    /// As [`Scheduler::submit`]; the prompt may fill the context.
    pub fn submit_embed(&mut self, sequence: SequenceId, prompt: Vec<u32>, salt: u64) -> Result<(), Status> {
        self.take(sequence, prompt, Wanted::Embedding, salt)
    }

    fn take(
        &mut self,
        sequence: SequenceId,
        prompt: Vec<u32>,
        wanted: Wanted,
        salt: u64,
    ) -> Result<(), Status> {
        let to_come = if wanted == Wanted::Embedding { 0 } else { 1 };
        self.check(sequence, prompt.len(), to_come)?;
        let prompt_tokens = u32::try_from(prompt.len()).expect("it was compared with the context");
        if let Some(kv) = &self.kv
            && kv.layout().blocks_least(prompt_tokens + to_come) > u64::from(kv.layout().blocks)
        {
            return Err(kv.layout().full(prompt_tokens + to_come));
        }
        let room = self.limits.context_length - prompt_tokens;
        self.arrivals += 1;
        self.waiting.insert(self.arrivals, sequence);
        let taken = Sequence {
            id: sequence,
            arrival: self.arrivals,
            tokens: prompt,
            prompt_tokens,
            answer_max: match wanted {
                Wanted::Answer(0) => room,
                Wanted::Answer(most) => most.min(room),
                Wanted::Embedding => 0,
            },
            embeds: wanted == Wanted::Embedding,
            salt,
            chain: Chain::new(salt),
            started: false,
            place: Place::Waiting,
        };
        self.sequences.insert(sequence, taken);
        Ok(())
    }

    fn check(&self, sequence: SequenceId, prompt_tokens: usize, to_come: u32) -> Result<(), Status> {
        if sequence == 0 || self.contains(sequence) {
            let message = format!("sequence {sequence} cannot be submitted: the number is in use or 0");
            return Err(Status::unsupported(reason::SEQUENCE_EXISTS, message));
        }
        if prompt_tokens == 0 {
            return Err(Status::unsupported(reason::EMPTY_PROMPT, "the prompt has no tokens"));
        }
        let needed = prompt_tokens as u64 + u64::from(to_come);
        let available = u64::from(self.limits.context_length);
        if needed > available {
            let more = if to_come == 0 { "" } else { " and needs room for one more" };
            let message = format!("the prompt has {prompt_tokens} tokens{more}; the context has {available}");
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

    /// Gives a free slot to the sequence that was submitted first of those that wait, if there is KV for it. Nobody
    /// overtakes: while the oldest does not fit, no other is admitted.
    pub fn admit(&mut self) -> Option<Admission> {
        let id = *self.waiting.first_key_value()?.1;
        let slot = *self.free.first()?;
        let kv = if self.kv.is_some() { Some(self.room_for(id)?) } else { None };
        let block_tokens = self.limits.kv.as_ref().map_or(0, |kv| kv.block_tokens);
        let (kv, blocks) = kv.map_or((None, 0), |(kv, blocks)| (Some(kv), blocks));
        let cached_tokens = blocks * block_tokens;

        let sequence = self.sequences.get_mut(&id).expect("what waits is known");
        self.free.remove(&slot);
        self.waiting.remove(&sequence.arrival);
        self.running.insert(sequence.arrival, id);
        sequence.place = Place::Running(Running::new(slot, kv, cached_tokens));
        let again = std::mem::replace(&mut sequence.started, true);
        self.counts.reused_blocks += u64::from(blocks);
        if !again {
            self.counts.cached_tokens += u64::from(cached_tokens);
        }
        Some(Admission {
            sequence: id,
            slot,
            prompt_tokens: sequence.prompt_tokens,
            cached_tokens,
            tokens_max: sequence.tokens_max(),
            again,
        })
    }

    /// The tokens of a sequence that was just admitted, and its salt.
    ///
    /// # Panics
    /// When it is not known.
    pub fn prompt(&self, sequence: SequenceId) -> (&[u32], u64) {
        let known = &self.sequences[&sequence];
        (&known.tokens, known.salt)
    }

    /// A model that keeps its KV by itself has that of the first `tokens` tokens of a sequence that was just admitted.
    ///
    /// # Panics
    /// When that is all of them, or the sequence has begun: the model's mistake.
    pub fn found(&mut self, sequence: SequenceId, tokens: u32) {
        let known = self.sequences.get_mut(&sequence).expect("what is admitted is known");
        assert!(tokens < known.length(), "the last token of a prompt is always read");
        let Place::Running(running) = &mut known.place else { panic!("sequence {sequence} does not run") };
        assert!(running.read == 0 && running.kv.is_none(), "sequence {sequence} has begun");
        running.read = tokens;
        self.counts.cached_tokens += u64::from(tokens);
    }

    /// The tables of a waiting sequence, with what is found of its prefix, and how many blocks of it that is; none where
    /// the rest does not fit beside what runs.
    fn room_for(&mut self, id: SequenceId) -> Option<(SequenceKv, u32)> {
        let Scheduler { limits, sequences, running, kv, .. } = self;
        let cache = kv.as_mut()?;
        let block_tokens = cache.layout().block_tokens;
        let sequence = sequences.get_mut(&id).expect("what waits is known");
        // The last token is always read: its logits are what is wanted.
        let whole = (sequence.tokens.len() - 1) / block_tokens as usize;
        let chain = sequence.chain.up_to(whole, &sequence.tokens, block_tokens);
        let blocks = cache.prefix(chain);
        let found = cache.adopt(chain, blocks);
        if running.is_empty() {
            // Whatever is kept can go: `submit` made sure that it fits alone.
            return Some((found, blocks));
        }
        let to_read = sequence.length() - blocks * block_tokens;
        let mut needed = cache.outstanding(&found, sequence.wanted(limits.reserve_tokens));
        let mut reading = to_read;
        for other in running.values() {
            let other = &sequences[other];
            let Place::Running(at) = &other.place else { continue };
            let Some(held) = &at.kv else { continue };
            needed += cache.outstanding(held, other.wanted(limits.reserve_tokens));
            reading = reading.saturating_add(at.left(other.length()));
        }
        needed += cache.layout().blocks_per_step(reading.min(limits.batch_tokens_max));
        if needed <= cache.pool().available() {
            return Some((found, blocks));
        }
        cache.release(found);
        None
    }

    /// Fills `batch` with the next step.
    ///
    /// After a failed forward pass the only way on is [`Scheduler::fail_all`].
    pub fn plan(&mut self, batch: &mut Batch) -> Plan {
        batch.clear();
        let mut plan = Plan::default();
        let order: Vec<u64> = self.running.keys().copied().collect();
        let decoding = order.iter().filter(|arrival| self.decodes(**arrival)).count() as u32;
        let reading = order.len() as u32 - decoding;
        let mut room = (self.limits.batch_tokens_max - decoding).min(PREFILL_TOKENS_MAX);
        // For prompts that are read to their ends.
        let mut room_to_end = room;
        if decoding > 0 {
            room = room.min(self.pace.chunk());
            room_to_end = if reading > decoding { room_to_end.min(self.pace.rush()) } else { room };
        }
        self.planned = Planned::default();
        for arrival in order {
            // It may have given way to an older one by now.
            let Some(&id) = self.running.get(&arrival) else { continue };
            let decodes = self.decodes(arrival);
            let wanted = match self.left(id) {
                _ if decodes => 1,
                left if self.reads_whole(id) => {
                    // The first of a step is taken however long it is: the oldest always moves.
                    let space = self.limits.batch_tokens_max - decoding - self.planned.prompt_tokens;
                    let fits = left <= space && (self.planned.prompt_tokens == 0 || left <= room);
                    if fits { left } else { 0 }
                }
                left if left <= room_to_end => left,
                left => left.min(room),
            };
            if wanted == 0 || self.ends_with_pending(id) {
                continue;
            }
            let tokens = self.make_room(id, wanted, &mut plan);
            if tokens == 0 {
                continue;
            }
            if decodes {
                self.planned.decoding += 1;
            } else {
                self.planned.prompt_tokens += tokens;
                self.planned.rushes |= tokens > room;
                room = room.saturating_sub(tokens);
                room_to_end = room_to_end.saturating_sub(tokens);
            }
            let sequence = self.sequences.get_mut(&id).expect("what runs is known");
            let length = sequence.length();
            let Place::Running(running) = &mut sequence.place else { continue };
            running.planned = tokens;
            let end = running.read + tokens;
            let read = end == length + running.pending;
            let samples = read && !sequence.embeds;
            if running.pending > 0 {
                batch.push_chosen(running.slot, running.read, running.pending_at);
            } else {
                let new = &sequence.tokens[running.read as usize..end as usize];
                batch.push(running.slot, running.read, new, samples);
            }
            if let Some(kv) = &running.kv {
                batch.push_tables(kv.tables());
            }
            running.samples = samples.then_some(plan.samples.len() as u32);
            if read && sequence.embeds {
                plan.embeds.push((id, running.slot));
            }
            if samples {
                plan.samples.push(Sample { sequence: id, position: end });
            }
        }
        plan
    }

    /// Whether the answer is as long as it may be with the token that is being chosen.
    fn ends_with_pending(&self, id: SequenceId) -> bool {
        let sequence = &self.sequences[&id];
        let Place::Running(running) = &sequence.place else { return false };
        running.pending > 0 && sequence.answered() + running.pending >= sequence.answer_max
    }

    /// Whether it only reads the token that was chosen last.
    fn decodes(&self, arrival: u64) -> bool {
        let Some(sequence) = self.running.get(&arrival).and_then(|id| self.sequences.get(id)) else {
            return false;
        };
        let Place::Running(running) = &sequence.place else { return false };
        sequence.answered() + running.pending > 0 && running.left(sequence.length()) == 1
    }

    fn reads_whole(&self, id: SequenceId) -> bool {
        self.limits.embeds_whole && self.sequences[&id].embeds
    }

    fn left(&self, id: SequenceId) -> u32 {
        let sequence = &self.sequences[&id];
        match &sequence.place {
            Place::Running(running) => running.left(sequence.length()),
            Place::Waiting => 0,
        }
    }

    /// Gets blocks for up to `wanted` tokens more, at the cost of younger sequences where there are not enough for one.
    /// Answers for how many; 0: it waits, or has ended.
    fn make_room(&mut self, id: SequenceId, wanted: u32, plan: &mut Plan) -> u32 {
        loop {
            let Some(cache) = &mut self.kv else { return wanted };
            let block_tokens = cache.layout().block_tokens;
            let sequence = self.sequences.get_mut(&id).expect("what runs is known");
            let Place::Running(running) = &mut sequence.place else { return 0 };
            let Some(kv) = &mut running.kv else { return wanted };
            let mut end = running.read + wanted;
            // Less of a chunk is better than taking what others have.
            while end > running.read {
                if cache.grow(kv, end) {
                    return end - running.read;
                }
                end = (end - 1) / block_tokens * block_tokens;
            }
            if running.pending > 0 {
                return 0;
            }
            let arrival = sequence.arrival;
            let youngest = *self.running.last_key_value().expect("at least this one runs").0;
            if youngest > arrival {
                plan.preempted.extend(self.give_way(youngest));
            } else if self.running.len() > 1 {
                return 0;
            } else {
                let status = cache.layout().full(running.read + 1);
                let ended = self.remove(id).expect("it runs");
                plan.failed.push((ended, status));
                return 0;
            }
        }
    }

    /// Takes slot and blocks from a running sequence, which waits again.
    fn give_way(&mut self, arrival: u64) -> Option<Slot> {
        let id = self.running.remove(&arrival)?;
        let sequence = self.sequences.get_mut(&id).expect("what runs is known");
        let Place::Running(running) = std::mem::replace(&mut sequence.place, Place::Waiting) else {
            return None;
        };
        self.waiting.insert(arrival, id);
        self.counts.preemptions += 1;
        self.let_go(&running.slot, running.kv);
        Some(running.slot)
    }

    fn let_go(&mut self, slot: &Slot, kv: Option<SequenceKv>) {
        let fresh = self.free.insert(*slot);
        assert!(fresh, "slot {} was free and in use", slot.0);
        if let (Some(cache), Some(kv)) = (&mut self.kv, kv) {
            cache.release(kv);
        }
    }

    /// The planned pass has succeeded and took so long: its rows are in the KV.
    pub fn completed(&mut self, took: Duration) {
        self.launched();
        self.paced(took);
    }

    /// The planned pass is under way: for all that comes behind it, its rows are in the KV.
    pub fn launched(&mut self) {
        self.under_way.push_back(std::mem::take(&mut self.planned));
        let Scheduler { running, sequences, kv, .. } = self;
        for id in running.values() {
            let sequence = sequences.get_mut(id).expect("what runs is known");
            let Place::Running(at) = &mut sequence.place else { continue };
            at.read += std::mem::take(&mut at.planned);
            if let Some(place) = at.samples.take() {
                at.pending += 1;
                at.pending_at = place;
            }
            publish(kv, sequence);
        }
    }

    /// The oldest step under way has succeeded and took so long.
    pub fn paced(&mut self, took: Duration) {
        let Planned { decoding, prompt_tokens, rushes } = self.under_way.pop_front().unwrap_or_default();
        if rushes && decoding > 0 {
            self.pace.note_rush(prompt_tokens, took);
        } else {
            self.pace.note(decoding, prompt_tokens, took);
        }
    }

    /// A token was chosen for a planned row. `stops`: it ends the sequence by what it is or spells.
    ///
    /// # Panics
    /// When the sequence is not known.
    pub fn advance(&mut self, sequence: SequenceId, token: u32, stops: bool) -> Advance {
        let known = self.sequences.get_mut(&sequence).expect("only a planned sequence advances");
        known.tokens.push(token);
        // It may have given way since: then it waits, and reads the token with all others.
        if let Place::Running(running) = &mut known.place {
            running.pending -= 1;
            if running.read >= known.length() {
                publish(&mut self.kv, known);
            }
        }
        let full = known.answered() >= known.answer_max;
        if !stops && !full {
            return Advance::Continues;
        }
        let ended = self.remove(sequence).expect("it runs");
        if stops { Advance::Stopped(ended) } else { Advance::Full(ended) }
    }

    /// A sequence of [`Plan::embeds`] has its embedding.
    ///
    /// # Panics
    /// When it is not known.
    pub fn embedded(&mut self, sequence: SequenceId) -> Ended {
        self.remove(sequence).expect("what is planned is known")
    }

    /// One sequence has failed.
    pub fn fail(&mut self, sequence: SequenceId) -> Option<Ended> {
        self.remove(sequence)
    }

    /// Everything has failed, waiting sequences included; in the order of submission. What is in the blocks is not trusted
    /// any more.
    pub fn fail_all(&mut self) -> Vec<Ended> {
        self.under_way.clear();
        if let Some(kv) = &mut self.kv {
            kv.forget();
        }
        let all: BTreeMap<u64, SequenceId> =
            self.running.iter().chain(&self.waiting).map(|(a, s)| (*a, *s)).collect();
        all.into_values().filter_map(|sequence| self.remove(sequence)).collect()
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
        self.sequences.contains_key(&sequence)
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn kv(&self) -> Option<&KvCache> {
        self.kv.as_ref()
    }

    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    fn remove(&mut self, sequence: SequenceId) -> Option<Ended> {
        let known = self.sequences.remove(&sequence)?;
        self.cancelled.retain(|&s| s != sequence);
        self.waiting.remove(&known.arrival);
        self.running.remove(&known.arrival);
        let completion_tokens = known.answered();
        let slot = match known.place {
            Place::Waiting => None,
            Place::Running(running) => {
                self.let_go(&running.slot, running.kv);
                Some(running.slot)
            }
        };
        Some(Ended { sequence: known.id, slot, completion_tokens })
    }
}

/// Whole blocks of tokens that are known and read can be found by others.
fn publish(kv: &mut Option<KvCache>, sequence: &mut Sequence) {
    let length = sequence.length();
    let (Some(cache), Place::Running(running)) = (kv, &mut sequence.place) else { return };
    let Some(kv) = &mut running.kv else { return };
    let block_tokens = cache.layout().block_tokens;
    let sure = running.read.min(length);
    let chain = sequence.chain.up_to((sure / block_tokens) as usize, &sequence.tokens, block_tokens);
    cache.commit(kv, chain, sure);
}

#[cfg(test)]
mod tests;
