//! Which sequence of llama.cpp a slot of the scheduler is, and what of its KV the next prompt can go on from.
//!
//! There are as many sequences as slots. One whose slot has ended keeps its KV until it is taken again: its room would
//! stand empty. A prompt that begins like what some sequence holds gets those cells, from an idle sequence by taking it over
//! and from a running one by sharing them. One that finds nothing is put beside those that run, if sequences do not share
//! cells: llama.cpp then computes only those together whose numbers follow on one another.
//!
//! **Invariant:** numbers only; [`Kv`] is what llama.cpp does, and tests stand in for it.

use engine_sdk::Slot;

/// The operations on KV that are needed.
pub(crate) trait Kv {
    /// Drops what a sequence holds from a position on; false where it cannot be dropped in part.
    fn remove(&mut self, sequence: u32, from: u32) -> bool;
    /// Lets `to`, which holds nothing, hold the first `tokens` positions of `from` too.
    fn share(&mut self, from: u32, to: u32, tokens: u32);
    /// The first position that is still there; none where the sequence holds nothing.
    fn first_held(&self, sequence: u32) -> Option<u32>;
}

/// All sequences of a context.
#[derive(Debug)]
pub(crate) struct Sequences {
    /// By number.
    held: Vec<Held>,
    /// By slot: its sequence while it runs.
    of_slot: Vec<Option<u32>>,
    /// Sequences can share cells.
    shares: bool,
    /// How far layers with a window look back; 0: none has one.
    window: u32,
    /// Counts ends, to find what has been idle the longest.
    time: u64,
    reused_tokens: u64,
}

#[derive(Debug, Default)]
struct Held {
    /// What is in the KV, from position 0 on.
    tokens: Vec<u32>,
    /// Whose it is.
    salt: u64,
    running: bool,
    idle_since: u64,
}

impl Sequences {
    pub(crate) fn new(count: u32, shares: bool, window: u32) -> Sequences {
        Sequences {
            held: (0..count).map(|_| Held::default()).collect(),
            of_slot: vec![None; count as usize],
            shares,
            window,
            time: 0,
            reused_tokens: 0,
        }
    }

    /// The sequence of a slot that runs.
    ///
    /// # Panics
    /// When it does not.
    pub(crate) fn of(&self, slot: Slot) -> u32 {
        self.of_slot[slot.index()].expect("the slot was begun")
    }

    /// Tokens in the KV, of running sequences.
    pub(crate) fn tokens_running(&self) -> u64 {
        self.held.iter().filter(|held| held.running).map(|held| held.tokens.len() as u64).sum()
    }

    /// Tokens of prompts that were found, since the load.
    pub(crate) fn reused_tokens(&self) -> u64 {
        self.reused_tokens
    }

    /// Gives a slot a sequence; answers for how many of the first tokens of `prompt` it has the KV.
    ///
    /// # Panics
    /// When the slot has one.
    pub(crate) fn begin(&mut self, slot: Slot, prompt: &[u32], salt: u64, kv: &mut impl Kv) -> u32 {
        assert!(self.of_slot[slot.index()].is_none(), "slot {} is begun twice", slot.0);
        // The last token is always read: its logits are what is wanted.
        let wanted = &prompt[..prompt.len() - 1];
        let common = |held: &Held| {
            if held.salt != salt {
                return 0;
            }
            held.tokens.iter().zip(wanted).take_while(|(held, wanted)| held == wanted).count()
        };
        // Of equally good ones an idle one, which costs nothing.
        let donor = (0..self.held.len())
            .filter(|&n| self.shares || !self.held[n].running)
            .max_by_key(|&n| (common(&self.held[n]), !self.held[n].running))
            .filter(|&n| common(&self.held[n]) > 0);
        let oldest = |but: Option<usize>| {
            let lone = |n| if self.shares { 0 } else { 2 - self.running_beside(n) };
            (0..self.held.len())
                .filter(|&n| !self.held[n].running && Some(n) != but)
                .min_by_key(|&n| (lone(n), !self.held[n].tokens.is_empty(), self.held[n].idle_since))
        };
        let count = donor.map_or(0, |donor| common(&self.held[donor]));
        let taken = match donor {
            // All of what it holds is wanted, or nobody else could have it: it goes on from there.
            Some(donor)
                if !self.held[donor].running && (count == self.held[donor].tokens.len() || !self.shares) =>
            {
                donor
            }
            Some(donor) => match oldest(Some(donor)) {
                Some(other) => {
                    self.empty(other, kv);
                    kv.share(number(donor), number(other), position(count));
                    self.held[other].tokens = wanted[..count].to_vec();
                    other
                }
                None => donor,
            },
            None => {
                let oldest = oldest(None).expect("there are as many sequences as slots");
                self.empty(oldest, kv);
                oldest
            }
        };
        self.of_slot[slot.index()] = Some(number(taken));
        let reused = self.keep(taken, count, kv);
        self.reused_tokens += u64::from(reused);
        let held = &mut self.held[taken];
        held.running = true;
        held.salt = salt;
        reused
    }

    /// How many of its two neighbours run.
    fn running_beside(&self, sequence: usize) -> usize {
        let runs = |n: usize| self.held.get(n).is_some_and(|held| held.running);
        usize::from(sequence > 0 && runs(sequence - 1)) + usize::from(runs(sequence + 1))
    }

    /// Shortens what a sequence holds to its first `count` tokens; where they cannot be gone on from, to nothing.
    fn keep(&mut self, sequence: usize, count: usize, kv: &mut impl Kv) -> u32 {
        let number = number(sequence);
        if count > 0 && kv.remove(number, position(count)) {
            // Of layers with a window the cells before it may be gone. The next row must not look at one that is.
            let seen_from = if self.window == 0 { 0 } else { position(count).saturating_sub(self.window) };
            if kv.first_held(number).is_some_and(|first| first <= seen_from) {
                self.held[sequence].tokens.truncate(count);
                return position(count);
            }
        }
        self.empty(sequence, kv);
        0
    }

    fn empty(&mut self, sequence: usize, kv: &mut impl Kv) {
        self.held[sequence].tokens.clear();
        // All of a sequence can be dropped, whatever the kind of model.
        let dropped = kv.remove(number(sequence), 0);
        debug_assert!(dropped, "sequence {sequence} cannot be emptied");
    }

    /// These tokens of a slot are in the KV now.
    pub(crate) fn read(&mut self, slot: Slot, tokens: &[u32]) {
        let sequence = self.of(slot) as usize;
        self.held[sequence].tokens.extend_from_slice(tokens);
    }

    /// The slot has ended; its sequence is idle. A slot that was not begun is left alone.
    pub(crate) fn end(&mut self, slot: Slot) {
        if let Some(sequence) = self.of_slot[slot.index()].take() {
            self.time += 1;
            let held = &mut self.held[sequence as usize];
            held.running = false;
            held.idle_since = self.time;
        }
    }

    /// Lets go what idle sequences hold; false where none holds anything.
    pub(crate) fn forget_idle(&mut self, kv: &mut impl Kv) -> bool {
        let idle: Vec<usize> = (0..self.held.len())
            .filter(|&n| !self.held[n].running && !self.held[n].tokens.is_empty())
            .collect();
        idle.iter().for_each(|&n| self.empty(n, kv));
        !idle.is_empty()
    }

    /// Nothing is in the KV any more. Slots keep their sequences until they end.
    pub(crate) fn forget_all(&mut self) {
        self.held.iter_mut().for_each(|held| held.tokens.clear());
    }
}

fn number(sequence: usize) -> u32 {
    u32::try_from(sequence).expect("sequences are at most 256")
}

fn position(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("a sequence fits the context")
}

#[cfg(test)]
mod tests;
