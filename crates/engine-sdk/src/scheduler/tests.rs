//! The scheduler by itself: hand-made courses, and random ones beside a device that checks everything.

use proptest::prelude::*;

use super::{
    simulated::{Action, Simulation},
    *,
};
use crate::{KvGroup, KvMemory, StatusCode};

fn limits(context_length: u32, sequences_max: u32, batch_tokens_max: u32) -> Limits {
    Limits {
        embeds_whole: false,
        context_length,
        sequences_max,
        batch_tokens_max,
        prefill_gap: PREFILL_GAP_DEFAULT,
        reserve_tokens: RESERVE_TOKENS,
        kv: None,
    }
}

fn small() -> Limits {
    limits(100, 2, 8)
}

fn layout(block_tokens: u32, blocks: u32, windows: &[Option<u32>]) -> Option<KvLayout> {
    let groups = windows.iter().map(|&window| KvGroup { window }).collect();
    Some(KvLayout { block_tokens, block_bytes: 1000, blocks, groups, memory: KvMemory::Ram })
}

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

/// Plans a pass that succeeds at once.
fn pass(scheduler: &mut Scheduler, batch: &mut Batch) -> Vec<Sample> {
    let plan = scheduler.plan(batch);
    assert_eq!((plan.preempted.len(), plan.failed.len()), (0, 0));
    scheduler.completed(Duration::from_millis(1));
    plan.samples
}

/// Steps until the sequence has ended, and says how many tokens it had.
fn run_to_end(scheduler: &mut Scheduler, sequence: SequenceId) -> u32 {
    let mut batch = Batch::new();
    for _ in 0..10_000 {
        admit_all(scheduler);
        let plan = scheduler.plan(&mut batch);
        scheduler.completed(Duration::from_millis(1));
        for sample in plan.samples {
            if let Advance::Full(ended) = scheduler.advance(sample.sequence, 7, false)
                && ended.sequence == sequence
            {
                return ended.completion_tokens;
            }
        }
    }
    panic!("sequence {sequence} does not end");
}

#[test]
fn a_long_prompt_is_read_in_chunks_and_sampled_after_the_last() {
    let mut scheduler = Scheduler::new(small());
    scheduler.submit(1, prompt(20), 0, 0).unwrap();
    admit_all(&mut scheduler);
    let mut batch = Batch::new();
    assert_eq!(pass(&mut scheduler, &mut batch), []);
    assert_eq!(rows(&batch), [(0, 0, 8, false)]);
    assert_eq!(pass(&mut scheduler, &mut batch), []);
    assert_eq!(rows(&batch), [(0, 8, 8, false)]);
    assert_eq!(pass(&mut scheduler, &mut batch), [Sample { sequence: 1, position: 20 }]);
    assert_eq!(rows(&batch), [(0, 16, 4, true)]);
    assert_eq!(scheduler.advance(1, 77, false), Advance::Continues);
    assert_eq!(pass(&mut scheduler, &mut batch), [Sample { sequence: 1, position: 21 }]);
    assert_eq!(rows(&batch), [(0, 20, 1, true)]);
    assert_eq!(batch.tokens(), [77]);
}

#[test]
fn a_sequence_that_decodes_shares_its_steps_with_the_prompt_of_another() {
    let mut scheduler = Scheduler::new(small());
    scheduler.submit(1, prompt(2), 0, 0).unwrap();
    admit_all(&mut scheduler);
    let mut batch = Batch::new();
    pass(&mut scheduler, &mut batch);
    scheduler.advance(1, 5, false);
    scheduler.submit(2, prompt(9), 0, 0).unwrap();
    admit_all(&mut scheduler);
    pass(&mut scheduler, &mut batch);
    assert_eq!(rows(&batch), [(0, 2, 1, true), (1, 0, 7, false)]);
    scheduler.advance(1, 6, false);
    pass(&mut scheduler, &mut batch);
    assert_eq!(rows(&batch), [(0, 3, 1, true), (1, 7, 2, true)]);
}

/// One sequence decodes, and the pace has seen that a prompt's token takes 24 ms: it begins with three.
fn one_that_decodes(sequences_max: u32) -> (Scheduler, Batch) {
    let mut scheduler = Scheduler::new(limits(1000, sequences_max, 512));
    let mut batch = Batch::new();
    scheduler.submit(1, prompt(100), 0, 0).unwrap();
    admit_all(&mut scheduler);
    scheduler.plan(&mut batch);
    scheduler.completed(Duration::from_millis(2400));
    scheduler.advance(1, 5, false);
    assert_eq!(scheduler.pace().chunk(), 3);
    (scheduler, batch)
}

#[test]
fn short_prompts_that_are_more_than_those_who_decode_are_read_whole() {
    let (mut scheduler, mut batch) = one_that_decodes(8);
    for sequence in 2..=5 {
        scheduler.submit(sequence, prompt(12), 0, 0).unwrap();
    }
    admit_all(&mut scheduler);
    let lengths = |batch: &Batch| rows(batch).iter().map(|row| row.2).collect::<Vec<_>>();
    let mut step = |scheduler: &mut Scheduler| {
        let plan = scheduler.plan(&mut batch);
        scheduler.completed(Duration::from_millis(24 * 24));
        for sample in plan.samples {
            scheduler.advance(sample.sequence, 5, false);
        }
        lengths(&batch)
    };
    // One decodes and four wait: 31 tokens may be read, and two prompts fit.
    assert_eq!(step(&mut scheduler), [1, 12, 12]);
    // Three decode and two wait.
    assert_eq!(step(&mut scheduler), [1, 1, 1, 3]);
}

#[test]
fn a_long_prompt_keeps_to_the_gap_also_where_more_wait_and_short_ones_pass_it() {
    let (mut scheduler, mut batch) = one_that_decodes(8);
    for (sequence, tokens) in [(2, 200), (3, 300), (4, 9)] {
        scheduler.submit(sequence, prompt(tokens), 0, 0).unwrap();
    }
    admit_all(&mut scheduler);
    pass(&mut scheduler, &mut batch);
    assert_eq!(rows(&batch), [(0, 100, 1, true), (1, 0, 3, false), (3, 0, 9, true)]);
}

#[test]
fn a_step_reads_at_most_the_constant_of_prompt_tokens() {
    let mut scheduler = Scheduler::new(limits(10_000, 2, 10_000));
    scheduler.submit(1, prompt(5000), 0, 0).unwrap();
    admit_all(&mut scheduler);
    let mut batch = Batch::new();
    pass(&mut scheduler, &mut batch);
    assert_eq!(batch.tokens().len(), PREFILL_TOKENS_MAX as usize);
}

#[test]
fn sequences_are_admitted_in_order_as_slots_become_free() {
    let mut scheduler = Scheduler::new(small());
    for sequence in 1..=4 {
        scheduler.submit(sequence, prompt(1), 0, 0).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler), [1, 2]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 2));
    scheduler.fail(1);
    assert_eq!(admit_all(&mut scheduler), [3]);
    assert!(scheduler.admit().is_none());
}

#[test]
fn a_prompt_that_leaves_no_room_for_a_token_is_refused_with_both_counts() {
    let mut scheduler = Scheduler::new(small());
    scheduler.submit(1, prompt(99), 0, 0).unwrap();
    let status = scheduler.submit(2, prompt(100), 0, 0).unwrap_err();
    assert_eq!((status.code, &*status.reason), (StatusCode::Unsupported, "context_length_exceeded"));
    assert_eq!((status.needed, status.available), (101, 100));
}

#[test]
fn an_empty_prompt_a_used_number_and_zero_are_refused() {
    let mut scheduler = Scheduler::new(small());
    assert_eq!(scheduler.submit(1, vec![], 0, 0).unwrap_err().reason, "empty_prompt");
    scheduler.submit(1, prompt(1), 0, 0).unwrap();
    assert_eq!(scheduler.submit(1, prompt(1), 0, 0).unwrap_err().reason, "sequence_exists");
    assert_eq!(scheduler.submit(0, prompt(1), 0, 0).unwrap_err().reason, "sequence_exists");
}

#[test]
fn the_queue_has_a_bound() {
    let mut scheduler = Scheduler::new(small());
    for sequence in 1..=WAITING_MAX as u64 {
        scheduler.submit(sequence, prompt(1), 0, 0).unwrap();
    }
    let status = scheduler.submit(9999, prompt(1), 0, 0).unwrap_err();
    assert_eq!((&*status.reason, status.needed, status.available), ("queue_full", 1025, 1024));
}

#[test]
fn an_answer_ends_at_its_own_limit_and_at_the_end_of_the_context() {
    for (prompt_tokens, answer_max, expected) in [(10, 3, 3), (98, 50, 2), (99, 0, 1), (10, 0, 90)] {
        let mut scheduler = Scheduler::new(small());
        scheduler.submit(1, prompt(prompt_tokens), answer_max, 0).unwrap();
        assert_eq!(scheduler.admit().unwrap().tokens_max, prompt_tokens + expected);
        assert_eq!(run_to_end(&mut scheduler, 1), expected);
        assert_eq!(scheduler.running(), 0);
    }
}

#[test]
fn a_token_that_ends_the_sequence_on_its_last_place_counts_as_a_stop() {
    let mut scheduler = Scheduler::new(small());
    scheduler.submit(1, prompt(1), 1, 0).unwrap();
    admit_all(&mut scheduler);
    pass(&mut scheduler, &mut Batch::new());
    assert!(matches!(scheduler.advance(1, 0, true), Advance::Stopped(Ended { completion_tokens: 1, .. })));
}

#[test]
fn a_cancelled_sequence_ends_once_wherever_it_is() {
    let mut scheduler = Scheduler::new(small());
    for sequence in 1..=3 {
        scheduler.submit(sequence, prompt(1), 0, 0).unwrap();
    }
    admit_all(&mut scheduler);
    for sequence in [1, 1, 3, 99] {
        scheduler.cancel(sequence);
    }
    assert_eq!(scheduler.end_cancelled().map(|e| (e.sequence, e.slot)), Some((1, Some(Slot(0)))));
    assert_eq!(scheduler.end_cancelled().map(|e| (e.sequence, e.slot)), Some((3, None)));
    assert_eq!(scheduler.end_cancelled(), None);
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 0));
}

#[test]
fn a_prompt_that_was_read_before_is_found_by_the_same_caller_only() {
    let kv = layout(4, 40, &[None, Some(6)]);
    let mut scheduler = Scheduler::new(Limits { kv, ..small() });
    scheduler.submit(1, prompt(18), 1, 5).unwrap();
    run_to_end(&mut scheduler, 1);
    let mut cached = |sequence, tokens: Vec<u32>, salt| {
        scheduler.submit(sequence, tokens, 1, salt).unwrap();
        let cached = scheduler.admit().unwrap().cached_tokens;
        run_to_end(&mut scheduler, sequence);
        cached
    };
    assert_eq!(cached(2, prompt(18), 5), 16, "all whole blocks before the last token");
    assert_eq!(cached(3, prompt(16), 5), 12, "the last token is read for its logits");
    let parted: Vec<u32> = prompt(9).into_iter().chain([99; 9]).collect();
    assert_eq!(cached(4, parted, 5), 8, "as far as the texts agree");
    assert_eq!(cached(5, prompt(18), 6), 0, "another caller");
    assert_eq!(cached(6, [vec![99], prompt(17)].concat(), 5), 0, "the same tokens elsewhere");
    assert_eq!(scheduler.counts().cached_tokens, 16 + 12 + 8);
}

#[test]
fn a_prefix_whose_window_is_gone_is_not_used() {
    // Room for little more than one sequence: what another reads takes the coldest blocks, windows that moved on first.
    let kv = layout(4, 14, &[None, Some(4)]);
    let mut scheduler = Scheduler::new(Limits { kv, ..small() });
    scheduler.submit(1, prompt(33), 1, 0).unwrap();
    run_to_end(&mut scheduler, 1);
    scheduler.submit(2, prompt(33), 1, 0).unwrap();
    let cached = scheduler.admit().unwrap().cached_tokens;
    assert_eq!(cached, 32, "the last window is the warmest");
    run_to_end(&mut scheduler, 2);
    // The full blocks of the first half are there, the window at its end is not.
    let half: Vec<u32> = prompt(17).into_iter().chain([99; 9]).collect();
    scheduler.submit(3, half, 1, 0).unwrap();
    assert_eq!(scheduler.admit().unwrap().cached_tokens, 0);
    run_to_end(&mut scheduler, 3);
}

#[test]
fn a_turn_of_a_conversation_finds_prompt_and_answer_of_the_one_before() {
    let kv = layout(4, 40, &[None, Some(6)]);
    let mut scheduler = Scheduler::new(Limits { kv, ..small() });
    scheduler.submit(1, prompt(10), 12, 0).unwrap();
    run_to_end(&mut scheduler, 1);
    let next = [prompt(10), vec![7; 12], vec![50; 5]].concat();
    scheduler.submit(2, next, 1, 0).unwrap();
    // 21 of the 22 tokens are in the KV: the last of the answer was never read.
    assert_eq!(scheduler.admit().unwrap().cached_tokens, 20);
}

#[test]
fn admission_waits_for_the_prompt_and_the_reserve_and_not_for_the_longest_answer() {
    let kv = layout(16, 24, &[None]);
    let mut scheduler = Scheduler::new(Limits { kv, ..limits(384, 8, 64) });
    for sequence in 1..=4 {
        scheduler.submit(sequence, prompt(32), 0, sequence).unwrap();
    }
    // 384 tokens of KV; each may become 384 long and is counted with 32 + 64.
    assert_eq!(admit_all(&mut scheduler), [1, 2, 3, 4]);
    scheduler.submit(5, prompt(32), 0, 5).unwrap();
    assert_eq!(admit_all(&mut scheduler), [] as [u64; 0]);
}

#[test]
fn the_youngest_gives_way_and_goes_on_where_it_was() {
    let kv = layout(4, 8, &[None]);
    let mut scheduler = Scheduler::new(Limits { kv, reserve_tokens: 4, ..limits(28, 2, 64) });
    scheduler.submit(1, prompt(6), 20, 1).unwrap();
    scheduler.submit(2, prompt(6), 20, 2).unwrap();
    let mut batch = Batch::new();
    let (mut tokens, mut again, mut gave_way) = (HashMap::<u64, u32>::new(), Vec::new(), Vec::new());
    for step in 0.. {
        assert!(step < 200, "it does not end");
        again.extend(std::iter::from_fn(|| scheduler.admit()).filter(|a| a.again).map(|a| a.sequence));
        let plan = scheduler.plan(&mut batch);
        gave_way.extend(plan.preempted);
        scheduler.completed(Duration::from_millis(1));
        for sample in plan.samples {
            *tokens.entry(sample.sequence).or_default() += 1;
            scheduler.advance(sample.sequence, sample.position, false);
        }
        if scheduler.running() + scheduler.waiting() == 0 {
            break;
        }
    }
    assert_eq!(tokens, HashMap::from([(1, 20), (2, 20)]), "every token once");
    assert!(gave_way.iter().all(|slot| *slot == Slot(1)) && !gave_way.is_empty());
    assert_eq!(again, vec![2; gave_way.len()]);
    assert_eq!(scheduler.counts().preemptions, gave_way.len() as u64);
}

#[test]
fn what_does_not_fit_even_alone_is_kv_full_with_both_numbers() {
    let kv = layout(4, 5, &[None]);
    let mut scheduler = Scheduler::new(Limits { kv, ..small() });
    let status = scheduler.submit(1, prompt(20), 1, 0).unwrap_err();
    assert_eq!((status.code, &*status.reason), (StatusCode::OomRam, "kv_full"));
    assert_eq!((status.needed, status.available), (6000, 5000));
    scheduler.submit(1, prompt(18), 0, 0).unwrap();
    scheduler.submit(2, prompt(2), 1, 0).unwrap();
    let mut batch = Batch::new();
    let mut failed = Vec::new();
    for _ in 0..20 {
        admit_all(&mut scheduler);
        let plan = scheduler.plan(&mut batch);
        failed.extend(plan.failed);
        scheduler.completed(Duration::ZERO);
        for sample in plan.samples {
            scheduler.advance(sample.sequence, 0, false);
        }
    }
    let [(ended, status)] = &failed[..] else { panic!("{failed:?}") };
    assert_eq!((ended.sequence, ended.completion_tokens), (1, 3));
    assert_eq!((&*status.reason, status.needed, status.available), ("kv_full", 6000, 5000));
    assert_eq!(scheduler.running() + scheduler.waiting(), 0, "the other one was served");
}

#[test]
fn blocks_of_a_sequence_are_available_the_moment_it_ends() {
    let kv = layout(4, 20, &[None, Some(4)]);
    let mut scheduler = Scheduler::new(Limits { kv, ..small() });
    scheduler.submit(1, prompt(30), 0, 0).unwrap();
    admit_all(&mut scheduler);
    pass(&mut scheduler, &mut Batch::new());
    let available = |scheduler: &Scheduler| scheduler.kv().unwrap().pool().available();
    assert!(available(&scheduler) < 20);
    scheduler.cancel(1);
    scheduler.end_cancelled().unwrap();
    assert_eq!(available(&scheduler), 20);
    assert!(scheduler.kv().unwrap().pool().kept() > 0, "kept blocks are available");
}

#[test]
fn a_chunk_ends_where_the_free_blocks_end() {
    // The younger one's prompt is cut to what is left instead of taking blocks from anybody.
    let kv = layout(4, 6, &[None]);
    let mut scheduler = Scheduler::new(Limits { kv, ..limits(24, 2, 24) });
    scheduler.submit(1, prompt(10), 1, 1).unwrap();
    scheduler.submit(2, prompt(11), 1, 2).unwrap();
    assert_eq!(admit_all(&mut scheduler), [1, 2]);
    let mut batch = Batch::new();
    assert_eq!(pass(&mut scheduler, &mut batch).len(), 2);
    assert_eq!(rows(&batch), [(0, 0, 10, true), (1, 0, 11, true)]);
}

#[test]
fn sliding_layers_keep_their_window_only() {
    let kv = layout(4, 60, &[None, Some(9)]);
    let mut scheduler = Scheduler::new(Limits { kv, ..limits(200, 1, 8) });
    scheduler.submit(1, prompt(100), 50, 0).unwrap();
    admit_all(&mut scheduler);
    let mut batch = Batch::new();
    for _ in 0..60 {
        let samples = pass(&mut scheduler, &mut batch);
        let row = batch.rows().next().unwrap();
        let chunk = row.tokens.len() as u32;
        assert_eq!(row.table(0).first, 0);
        assert!(row.table(1).blocks.len() as u32 <= (9 + chunk).div_ceil(4) + 1);
        for sample in samples {
            scheduler.advance(sample.sequence, 0, false);
        }
    }
    assert!(scheduler.kv().unwrap().pool().used() <= 38 + 4);
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0u8..3, 0u16..40, 0u16..12, 0u16..30, 0u8..2).prop_map(|(text, shared, own, answer_max, salt)| {
            Action::Submit { text, shared, own, answer_max, salt }
        }),
        3 => (0u16..40).prop_map(Action::Cancel),
        16 => (any::<u64>(), any::<u64>(), any::<u64>(), 0u16..500).prop_map(|(a, b, c, took_ms)| {
            // Few rows stop or fail.
            Action::Step { stop: a & b & c, fail: a & !b & c & (c >> 7), took_ms }
        }),
        1 => Just(Action::FailAll),
    ]
}

fn some_kv() -> impl Strategy<Value = Option<KvLayout>> {
    prop_oneof![
        1 => Just(None),
        6 => (1u32..9, 3u32..60, prop::collection::vec(prop::option::of(1u32..20), 1..4)).prop_map(
            |(block_tokens, blocks, windows)| {
                layout(block_tokens, blocks, &windows).filter(|l| l.check().is_ok())
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_host_does_no_block_is_lost_or_shared_wrongly_and_everything_ends(
        actions in prop::collection::vec(action(), 1..80),
        sequences_max in 1u32..6,
        spare in 0u32..30,
        kv in some_kv(),
        reserve_tokens in 0u32..20,
    ) {
        let limits = Limits { kv, reserve_tokens, ..limits(64, sequences_max, sequences_max + spare) };
        for mut simulation in [Simulation::new(limits.clone()), Simulation::ahead(limits)] {
            for action in &actions {
                simulation.act(action);
            }
            simulation.finish();
        }
    }

    /// What a sequence is given depends on itself alone: the simulated device chooses by the text.
    #[test]
    fn the_chunks_and_blocks_of_a_sequence_alone_are_the_same_each_time(
        tokens in 1u32..60,
        batch in 1u32..20,
    ) {
        let run = || {
            let kv = layout(4, 40, &[None, Some(6)]);
            let mut scheduler = Scheduler::new(Limits { kv, ..limits(64, 1, batch) });
            scheduler.submit(1, prompt(tokens), 4, 0).unwrap();
            admit_all(&mut scheduler);
            let (mut batch, mut seen) = (Batch::new(), Vec::new());
            for took in 0..70 {
                let plan = scheduler.plan(&mut batch);
                seen.push(rows(&batch));
                scheduler.completed(Duration::from_millis(took * 37 % 11));
                for sample in plan.samples {
                    scheduler.advance(sample.sequence, 1, false);
                }
            }
            seen
        };
        prop_assert_eq!(run(), run());
    }
}
