//! The scheduler by itself: hand-made courses, and random ones against what must always hold.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::StatusCode;

const LIMITS: Limits = Limits { context_length: 100, sequences_max: 2, batch_tokens_max: 8 };

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).collect()
}

/// (slot, position, tokens, wants logits) of every row.
fn rows(batch: &Batch) -> Vec<(u32, u32, usize, bool)> {
    batch.rows().map(|r| (r.slot.0, r.position, r.tokens.len(), r.wants_logits)).collect()
}

fn admit_all(scheduler: &mut Scheduler) -> Vec<SequenceId> {
    std::iter::from_fn(|| scheduler.admit()).map(|a| a.sequence).collect()
}

#[test]
fn a_long_prompt_is_read_in_chunks_and_sampled_after_the_last() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.submit(1, prompt(20), 0).unwrap();
    admit_all(&mut scheduler);
    let mut batch = Batch::new();
    assert_eq!(scheduler.plan(&mut batch), []);
    assert_eq!(rows(&batch), [(0, 0, 8, false)]);
    assert_eq!(scheduler.plan(&mut batch), []);
    assert_eq!(rows(&batch), [(0, 8, 8, false)]);
    assert_eq!(scheduler.plan(&mut batch), [Sample { sequence: 1, position: 20 }]);
    assert_eq!(rows(&batch), [(0, 16, 4, true)]);
    assert_eq!(scheduler.advance(1, 77, false), Advance::Continues);
    assert_eq!(scheduler.plan(&mut batch), [Sample { sequence: 1, position: 21 }]);
    assert_eq!(rows(&batch), [(0, 20, 1, true)]);
    assert_eq!(batch.tokens(), [77]);
}

#[test]
fn a_sequence_that_decodes_shares_its_steps_with_the_prompt_of_another() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.submit(1, prompt(2), 0).unwrap();
    admit_all(&mut scheduler);
    let mut batch = Batch::new();
    scheduler.plan(&mut batch);
    scheduler.advance(1, 5, false);
    scheduler.submit(2, prompt(9), 0).unwrap();
    admit_all(&mut scheduler);
    scheduler.plan(&mut batch);
    assert_eq!(rows(&batch), [(0, 2, 1, true), (1, 0, 7, false)]);
    scheduler.advance(1, 6, false);
    scheduler.plan(&mut batch);
    assert_eq!(rows(&batch), [(0, 3, 1, true), (1, 7, 2, true)]);
}

#[test]
fn a_step_reads_at_most_the_constant_of_prompt_tokens() {
    let mut scheduler =
        Scheduler::new(Limits { context_length: 10_000, sequences_max: 2, batch_tokens_max: 10_000 });
    scheduler.submit(1, prompt(5000), 0).unwrap();
    admit_all(&mut scheduler);
    let mut batch = Batch::new();
    scheduler.plan(&mut batch);
    assert_eq!(batch.tokens().len(), PREFILL_TOKENS_MAX as usize);
}

#[test]
fn sequences_are_admitted_in_order_as_slots_become_free() {
    let mut scheduler = Scheduler::new(LIMITS);
    for sequence in 1..=4 {
        scheduler.submit(sequence, prompt(1), 0).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler), [1, 2]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 2));
    scheduler.fail(1);
    assert_eq!(admit_all(&mut scheduler), [3]);
    assert!(scheduler.admit().is_none());
}

#[test]
fn a_prompt_that_leaves_no_room_for_a_token_is_refused_with_both_counts() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.submit(1, prompt(99), 0).unwrap();
    let status = scheduler.submit(2, prompt(100), 0).unwrap_err();
    assert_eq!((status.code, &*status.reason), (StatusCode::Unsupported, "context_length_exceeded"));
    assert_eq!((status.needed, status.available), (101, 100));
}

#[test]
fn an_empty_prompt_a_used_number_and_zero_are_refused() {
    let mut scheduler = Scheduler::new(LIMITS);
    assert_eq!(scheduler.submit(1, vec![], 0).unwrap_err().reason, "empty_prompt");
    scheduler.submit(1, prompt(1), 0).unwrap();
    assert_eq!(scheduler.submit(1, prompt(1), 0).unwrap_err().reason, "sequence_exists");
    assert_eq!(scheduler.submit(0, prompt(1), 0).unwrap_err().reason, "sequence_exists");
}

#[test]
fn the_queue_has_a_bound() {
    let mut scheduler = Scheduler::new(LIMITS);
    for sequence in 1..=WAITING_MAX as u64 {
        scheduler.submit(sequence, prompt(1), 0).unwrap();
    }
    let status = scheduler.submit(9999, prompt(1), 0).unwrap_err();
    assert_eq!((&*status.reason, status.needed, status.available), ("queue_full", 1025, 1024));
}

#[test]
fn an_answer_ends_at_its_own_limit_and_at_the_end_of_the_context() {
    for (prompt_tokens, answer_max, expected) in [(10, 3, 3), (98, 50, 2), (99, 0, 1), (10, 0, 90)] {
        let mut scheduler = Scheduler::new(LIMITS);
        scheduler.submit(1, prompt(prompt_tokens), answer_max).unwrap();
        assert_eq!(scheduler.admit().unwrap().tokens_max, prompt_tokens + expected);
        let mut batch = Batch::new();
        let mut tokens = 0;
        let ended = loop {
            for sample in scheduler.plan(&mut batch) {
                assert_eq!(sample.position, prompt_tokens + tokens);
                tokens += 1;
                if let Advance::Full(ended) = scheduler.advance(1, 0, false) {
                    assert_eq!(ended.completion_tokens, expected);
                    assert_eq!(ended.slot, Some(Slot(0)));
                }
            }
            if scheduler.running() == 0 {
                break tokens;
            }
        };
        assert_eq!(ended, expected);
    }
}

#[test]
fn a_token_that_ends_the_sequence_on_its_last_place_counts_as_a_stop() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.submit(1, prompt(1), 1).unwrap();
    admit_all(&mut scheduler);
    scheduler.plan(&mut Batch::new());
    assert!(matches!(scheduler.advance(1, 0, true), Advance::Stopped(_)));
}

#[test]
fn cancelling_frees_the_slot_before_the_next_admission() {
    let mut scheduler = Scheduler::new(Limits { sequences_max: 1, ..LIMITS });
    scheduler.submit(1, prompt(1), 0).unwrap();
    scheduler.submit(2, prompt(1), 0).unwrap();
    scheduler.submit(3, prompt(1), 0).unwrap();
    admit_all(&mut scheduler);
    for sequence in [1, 2, 1, 77] {
        scheduler.cancel(sequence);
    }
    let running = Ended { sequence: 1, slot: Some(Slot(0)), completion_tokens: 0 };
    assert_eq!(scheduler.end_cancelled(), Some(running));
    assert_eq!(scheduler.end_cancelled(), Some(Ended { sequence: 2, slot: None, completion_tokens: 0 }));
    assert_eq!(scheduler.end_cancelled(), None);
    assert_eq!(admit_all(&mut scheduler), [3]);
}

#[test]
fn a_sequence_that_ended_is_not_cancelled_again() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.submit(1, prompt(1), 1).unwrap();
    admit_all(&mut scheduler);
    scheduler.cancel(1);
    scheduler.plan(&mut Batch::new());
    assert!(matches!(scheduler.advance(1, 0, false), Advance::Full(_)));
    // Nor is another one of the same number.
    scheduler.submit(1, prompt(1), 1).unwrap();
    assert_eq!(scheduler.end_cancelled(), None);
    assert_eq!(admit_all(&mut scheduler), [1]);
}

#[test]
fn failing_everything_frees_everything_and_new_sequences_are_taken() {
    let mut scheduler = Scheduler::new(LIMITS);
    for sequence in 1..=3 {
        scheduler.submit(sequence, prompt(1), 0).unwrap();
    }
    admit_all(&mut scheduler);
    scheduler.plan(&mut Batch::new());
    let ended: Vec<_> = scheduler.fail_all().into_iter().map(|e| (e.sequence, e.slot.is_some())).collect();
    assert_eq!(ended, [(1, true), (2, true), (3, false)]);
    scheduler.submit(4, prompt(1), 0).unwrap();
    assert_eq!(admit_all(&mut scheduler), [4]);
}

#[derive(Debug, Clone)]
enum Action {
    Submit {
        prompt_tokens: u32,
        answer_max: u32,
    },
    /// Of the n-th sequence ever submitted.
    Cancel(usize),
    Step {
        stop: Vec<bool>,
        fail: Vec<bool>,
    },
    FailAll,
}

fn action() -> impl Strategy<Value = Action> {
    let flags = || prop::collection::vec(prop::bool::weighted(0.15), 8);
    prop_oneof![
        5 => (0u32..45, 0u32..12).prop_map(|(prompt_tokens, answer_max)| Action::Submit { prompt_tokens, answer_max }),
        2 => (0usize..30).prop_map(Action::Cancel),
        10 => (flags(), flags()).prop_map(|(stop, fail)| Action::Step { stop, fail }),
        1 => Just(Action::FailAll),
    ]
}

/// What the outside knows of one sequence.
#[derive(Debug, Default)]
struct Known {
    prompt_tokens: u32,
    slot: Option<Slot>,
    read: u32,
    answered: u32,
}

/// Plays the owner of a scheduler and checks every answer.
struct Owner {
    scheduler: Scheduler,
    limits: Limits,
    next: SequenceId,
    live: HashMap<SequenceId, Known>,
    submitted: Vec<SequenceId>,
    admitted: Vec<SequenceId>,
    cancel_asked: HashSet<SequenceId>,
}

impl Owner {
    fn ended(&mut self, ended: Ended) {
        let known = self.live.remove(&ended.sequence).expect("a sequence ends once");
        assert_eq!(known.slot, ended.slot);
        assert_eq!(known.answered, ended.completion_tokens);
    }

    fn step(&mut self, stop: &[bool], fail: &[bool]) {
        while let Some(ended) = self.scheduler.end_cancelled() {
            assert!(self.cancel_asked.contains(&ended.sequence));
            self.ended(ended);
        }
        assert!(
            self.live.keys().all(|s| !self.cancel_asked.contains(s)),
            "a cancel waits for no second step"
        );
        while let Some(admission) = self.scheduler.admit() {
            assert!(admission.slot.0 < self.limits.sequences_max);
            assert!(self.live.values().all(|k| k.slot != Some(admission.slot)), "a slot is shared");
            let known = self.live.get_mut(&admission.sequence).unwrap();
            assert_eq!((known.slot, known.prompt_tokens), (None, admission.prompt_tokens));
            assert!(admission.tokens_max <= self.limits.context_length);
            known.slot = Some(admission.slot);
            self.admitted.push(admission.sequence);
        }
        let waiting = self.live.values().filter(|k| k.slot.is_none()).count();
        let running = self.live.len() - waiting;
        assert!(waiting == 0 || running == self.limits.sequences_max as usize, "a slot is leaked");
        assert_eq!((self.scheduler.running(), self.scheduler.waiting()), (running, waiting));

        let mut batch = Batch::new();
        let samples = self.scheduler.plan(&mut batch);
        assert_eq!(batch.is_empty(), running == 0, "whatever runs gets on, and nothing else does");
        assert!(batch.tokens().len() <= self.limits.batch_tokens_max as usize);
        let decoding = self.live.values().filter(|k| k.answered > 0).count();
        assert_eq!(
            batch
                .rows()
                .filter(|r| r.position > 0
                    && r.wants_logits
                    && r.tokens.len() == 1
                    && self.by_slot(r.slot).1.answered > 0)
                .count(),
            decoding,
            "all that decode are in every step"
        );
        for row in batch.rows() {
            let sequence = self.by_slot(row.slot).0;
            let known = self.live.get_mut(&sequence).unwrap();
            assert_eq!(known.read, row.position, "rows continue where the KV ends");
            known.read += row.tokens.len() as u32;
        }
        assert_eq!(samples.len(), batch.logits_rows());
        let wanting: Vec<_> =
            batch.rows().filter(|r| r.wants_logits).map(|r| self.by_slot(r.slot).0).collect();
        assert_eq!(samples.iter().map(|s| s.sequence).collect::<Vec<_>>(), wanting);
        for (i, sample) in samples.into_iter().enumerate() {
            let known = self.live.get_mut(&sample.sequence).unwrap();
            assert_eq!(known.read, sample.position);
            assert_eq!(known.read, known.prompt_tokens + known.answered);
            if fail[i % fail.len()] {
                let ended = self.scheduler.fail(sample.sequence).unwrap();
                self.ended(ended);
                continue;
            }
            known.answered += 1;
            match self.scheduler.advance(sample.sequence, 1, stop[i % stop.len()]) {
                Advance::Continues => {}
                Advance::Full(ended) | Advance::Stopped(ended) => self.ended(ended),
            }
        }
    }

    fn by_slot(&self, slot: Slot) -> (SequenceId, &Known) {
        let (sequence, known) =
            self.live.iter().find(|(_, k)| k.slot == Some(slot)).expect("a row of a running one");
        (*sequence, known)
    }
}

proptest! {
    #[test]
    fn slots_are_neither_leaked_nor_shared_order_is_kept_and_everything_ends(
        actions in prop::collection::vec(action(), 1..80),
        sequences_max in 1u32..5,
        spare in 0u32..12,
    ) {
        let limits = Limits { context_length: 40, sequences_max, batch_tokens_max: sequences_max + spare };
        let mut owner = Owner {
            scheduler: Scheduler::new(limits), limits, next: 1, live: HashMap::new(), submitted: Vec::new(),
            admitted: Vec::new(), cancel_asked: HashSet::new(),
        };
        for action in actions {
            match action {
                Action::Submit { prompt_tokens, answer_max } => {
                    let taken = owner.scheduler.submit(owner.next, prompt(prompt_tokens), answer_max).is_ok();
                    assert_eq!(taken, (1..40).contains(&prompt_tokens));
                    if taken {
                        owner.live.insert(owner.next, Known { prompt_tokens, ..Known::default() });
                        owner.submitted.push(owner.next);
                    }
                    owner.next += 1;
                }
                Action::Cancel(nth) => {
                    if let Some(&sequence) = owner.submitted.get(nth) {
                        if owner.live.contains_key(&sequence) {
                            owner.cancel_asked.insert(sequence);
                        }
                        owner.scheduler.cancel(sequence);
                    }
                }
                Action::Step { stop, fail } => owner.step(&stop, &fail),
                Action::FailAll => {
                    for ended in owner.scheduler.fail_all() {
                        owner.ended(ended);
                    }
                    prop_assert!(owner.live.is_empty());
                }
            }
        }
        // Everything submitted ends: a sequence has at most 39 prompt tokens in chunks of at least one, and 39 more.
        let mut steps = 0;
        while !owner.live.is_empty() {
            owner.step(&[false], &[false]);
            steps += 1;
            prop_assert!(steps <= owner.submitted.len() * 80 + 1, "a sequence is starved");
        }
        prop_assert_eq!(owner.scheduler.free.len(), sequences_max as usize);
        prop_assert!(owner.admitted.is_sorted(), "first come, first served");
    }
}
