//! Whole sequences through the test engine.

use super::*;
use crate::{
    StatusCode,
    testing::{END, TestModel, models_held, set_fault, slots_held},
};

mod constraint;
mod embeddings;

fn runner() -> Runner<TestModel> {
    Runner::new(TestModel::new(2, 64, 8)).unwrap()
}

fn text(text: &str) -> Prompt {
    Prompt::Text { text: text.to_owned(), literal: Vec::new() }
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

/// One event in words, so that whole courses compare at a glance.
fn words(event: &Event<'_>) -> String {
    let n = event.sequence;
    match event.kind {
        EventKind::Started { prompt_tokens, cached_tokens: 0 } => format!("{n} started {prompt_tokens}"),
        EventKind::Started { prompt_tokens, cached_tokens } => {
            format!("{n} started {prompt_tokens} cached {cached_tokens}")
        }
        EventKind::Token { piece, .. } => {
            let control = if piece.control { " control" } else { "" };
            format!("{n} token {}{control}", String::from_utf8_lossy(piece.bytes))
        }
        EventKind::Embedding(numbers) => format!("{n} embedding {numbers:.3?}"),
        EventKind::Finished { reason, completion_tokens } => {
            format!("{n} finished {reason:?} {completion_tokens}")
        }
        EventKind::Failed(status) => format!("{n} failed {}", status.reason),
    }
}

fn step<M: Model>(runner: &mut Runner<M>) -> Result<Vec<String>, Status> {
    let mut events = Vec::new();
    runner.step(&mut Progress::new(&mut |_, _| true), &mut |event| events.push(words(event)))?;
    Ok(events)
}

/// Steps until nothing is left.
fn run<M: Model>(runner: &mut Runner<M>) -> Vec<String> {
    let mut events = Vec::new();
    for _ in 0..1000 {
        if runner.sequences() == (0, 0) {
            return events;
        }
        events.extend(step(runner).unwrap());
    }
    panic!("it does not end: {events:?}");
}

fn answer(prompt: &str, sampling: Sampling) -> Vec<String> {
    let mut runner = runner();
    runner.submit(1, text(prompt), sampling).unwrap();
    run(&mut runner)
}

#[test]
fn a_sequence_starts_gives_its_tokens_and_finishes() {
    assert_eq!(
        answer("w x", greedy()),
        ["1 started 3", "1 token y", "1 token z", "1 token <|end|> control", "1 finished Stop 3"]
    );
}

#[test]
fn one_token_comes_with_each_step() {
    let mut runner = runner();
    runner.submit(1, text("x"), greedy()).unwrap();
    assert_eq!(step(&mut runner).unwrap(), ["1 started 1", "1 token y"]);
    assert_eq!(step(&mut runner).unwrap(), ["1 token z"]);
    assert_eq!(step(&mut runner).unwrap(), ["1 token <|end|> control", "1 finished Stop 3"]);
    assert_eq!(step(&mut runner).unwrap(), Vec::<String>::new());
}

#[test]
fn a_prompt_longer_than_a_step_gives_the_same_answer() {
    let long = format!("{}x", "-".repeat(40));
    assert_eq!(answer(&long, greedy())[1..], answer("x", greedy())[1..]);
}

#[test]
fn overlapping_sequences_share_their_steps_and_a_third_waits() {
    let mut runner = runner();
    for (sequence, prompt) in [(1, "a"), (2, "b"), (3, "x")] {
        runner.submit(sequence, text(prompt), greedy()).unwrap();
    }
    let events = run(&mut runner);
    let counters = runner.counters();
    assert_eq!(counters.batch_sequences_max, 2);
    assert_eq!(counters.prompt_tokens, 3);
    assert_eq!(counters.completion_tokens, 26 + 25 + 3);
    assert_eq!(counters.steps, 28, "26 of the first and 25 of the second together, then 3 of the third");
    let at = |words: &str| events.iter().position(|e| e == words).unwrap();
    assert!(at("3 started 1") > at("2 finished Stop 25"));
    let others: Vec<&String> = events.iter().filter(|e| e.starts_with("2 ")).collect();
    assert_eq!(others.len(), 27, "one started, 25 tokens, one finished");
}

#[test]
fn a_stop_string_ends_the_sequence_with_the_token_that_completes_it() {
    let sampling = Sampling { stop: vec![b"zzz".to_vec(), b"cde".to_vec()], ..greedy() };
    assert_eq!(
        answer("a", sampling)[1..],
        ["1 token b", "1 token c", "1 token d", "1 token e", "1 finished Stop 4"]
    );
}

#[test]
fn the_prompt_is_not_searched_for_stop_strings() {
    let sampling = Sampling { stop: vec![b"yz".to_vec(), b"xy".to_vec()], ..greedy() };
    assert_eq!(answer("x", sampling)[1..], ["1 token y", "1 token z", "1 finished Stop 2"]);
}

#[test]
fn a_stop_token_ends_the_sequence() {
    let sampling = Sampling { stop_tokens: vec![u32::from(b'y')], ..greedy() };
    assert_eq!(answer("x", sampling)[1..], ["1 token y", "1 finished Stop 1"]);
}

#[test]
fn tokens_max_and_the_end_of_the_context_end_with_length() {
    assert_eq!(answer("a", Sampling { tokens_max: 2, ..greedy() })[3], "1 finished Length 2");
    let full = answer(&"-".repeat(62), Sampling { tokens_max: 50, ..greedy() });
    assert_eq!(full[1..], ["1 token a", "1 token b", "1 finished Length 2"]);
}

#[test]
fn ignoring_end_tokens_goes_on_past_them() {
    let events = answer("y", Sampling { ignore_end_tokens: true, tokens_max: 4, ..greedy() });
    assert_eq!(
        events[1..],
        ["1 token z", "1 token <|end|> control", "1 token a", "1 token b", "1 finished Length 4"]
    );
}

#[test]
fn end_tokens_are_not_chosen_before_tokens_min() {
    let events = answer("z", Sampling { tokens_min: 1, ..greedy() });
    assert_ne!(events[1], "1 token <|end|> control");
}

fn begin_with(texts: &[&str]) -> Sampling {
    Sampling { begin_with: texts.iter().map(|t| (*t).to_owned()).collect(), ..greedy() }
}

#[test]
fn an_answer_begins_with_one_of_the_texts_and_goes_on_freely() {
    // Left alone, the answer to x is "yz" and the end; b is not what the model wants, and the end not allowed yet.
    assert_eq!(
        answer("x", Sampling { tokens_max: 4, ..begin_with(&["bay", "bad"]) })[1..],
        ["1 token b", "1 token a", "1 token d", "1 token e", "1 finished Length 4"]
    );
    assert_eq!(
        answer("z", begin_with(&["z"]))[1..],
        ["1 token z", "1 token <|end|> control", "1 finished Stop 2"]
    );
}

#[test]
fn a_control_token_in_a_text_is_that_token_and_not_its_spelling() {
    assert_eq!(
        answer("x", Sampling { tokens_max: 4, ..begin_with(&["q<|start|>"]) })[1..],
        ["1 token q", "1 token <|start|> control", "1 token a", "1 token b", "1 finished Length 4"]
    );
}

#[test]
fn no_stop_token_ends_an_answer_before_its_text_is_complete() {
    let sampling = Sampling { stop_tokens: vec![u32::from(b'q')], ..begin_with(&["qa", "mn"]) };
    assert_eq!(answer("x", Sampling { tokens_max: 2, ..sampling.clone() })[1..3], ["1 token m", "1 token n"]);
    let completing = Sampling { begin_with: vec!["aq".to_owned()], ..sampling };
    assert_eq!(answer("x", completing)[1..], ["1 token a", "1 token q", "1 finished Stop 2"]);
}

#[test]
fn a_text_that_the_vocabulary_cannot_go_on_with_fails_that_sequence_alone() {
    // The only token that goes on is a stop token.
    let sampling = Sampling { stop_tokens: vec![u32::from(b'q')], ..begin_with(&["qa"]) };
    assert_eq!(answer("x", sampling), ["1 started 1", "1 failed no_token_possible"]);
}

#[test]
fn logits_that_are_not_numbers_end_that_sequence_alone() {
    let mut runner = runner();
    runner.submit(1, text("N"), greedy()).unwrap();
    runner.submit(2, text("x"), greedy()).unwrap();
    let events = run(&mut runner);
    assert_eq!(
        events.iter().filter(|e| e.starts_with("1 ")).collect::<Vec<_>>(),
        ["1 started 1", "1 failed logits_not_finite"]
    );
    assert!(events.contains(&"2 finished Stop 3".to_owned()));
    assert_eq!(slots_held(), 0);
}

#[test]
fn a_slot_that_cannot_be_started_ends_that_sequence_alone() {
    let mut runner = runner();
    runner.submit(1, text("x"), greedy()).unwrap();
    set_fault("status in start");
    assert_eq!(step(&mut runner).unwrap(), ["1 failed out_of_device_memory"]);
    set_fault("");
    runner.submit(1, text("z"), greedy()).unwrap();
    assert_eq!(run(&mut runner).last().unwrap(), "1 finished Stop 1");
}

#[test]
fn a_forward_pass_that_fails_ends_every_sequence_without_events() {
    let mut runner = runner();
    for sequence in 1..=3 {
        runner.submit(sequence, text("a"), greedy()).unwrap();
    }
    step(&mut runner).unwrap();
    assert_eq!(slots_held(), 2);
    set_fault("status in forward");
    let status = step(&mut runner).unwrap_err();
    assert_eq!((status.code, status.needed, status.available), (StatusCode::OomVram, 7, 5));
    assert_eq!((runner.sequences(), slots_held()), ((0, 0), 0));
    set_fault("");
    runner.submit(1, text("z"), greedy()).unwrap();
    assert_eq!(run(&mut runner).last().unwrap(), "1 finished Stop 1");
}

#[test]
fn a_host_that_says_stop_ends_every_sequence_as_cancelled() {
    let mut runner = runner();
    runner.submit(1, text("a"), greedy()).unwrap();
    let status = runner.step(&mut Progress::new(&mut |_, _| false), &mut |_| {}).unwrap_err();
    assert_eq!(status.code, StatusCode::Cancelled);
    assert_eq!((runner.sequences(), slots_held()), ((0, 0), 0));
}

#[test]
fn the_kv_is_gone_when_the_last_event_comes() {
    let mut runner = runner();
    runner.submit(1, text("z"), greedy()).unwrap();
    let mut held = Vec::new();
    runner.step(&mut Progress::new(&mut |_, _| true), &mut |_| held.push(slots_held())).unwrap();
    assert_eq!(held, [1, 1, 0], "started, token, finished");
}

#[test]
fn cancelling_ends_a_running_and_a_waiting_sequence_at_the_next_step() {
    let mut runner = runner();
    for sequence in 1..=4 {
        runner.submit(sequence, text("a"), greedy()).unwrap();
    }
    step(&mut runner).unwrap();
    runner.cancel(1);
    runner.cancel(3);
    let events = step(&mut runner).unwrap();
    assert_eq!(events[..3], ["1 finished Cancelled 1", "3 finished Cancelled 0", "4 started 1"]);
    runner.cancel(99);
    run(&mut runner);
}

#[test]
fn what_cannot_be_taken_is_refused_and_leaves_nothing_behind() {
    let mut runner = runner();
    let refused =
        |runner: &mut Runner<TestModel>, prompt, sampling| runner.submit(5, prompt, sampling).unwrap_err();
    let status = refused(&mut runner, text(&"-".repeat(64)), greedy());
    assert_eq!((&*status.reason, status.needed, status.available), ("context_length_exceeded", 65, 64));
    assert_eq!(refused(&mut runner, text(""), greedy()).reason, "empty_prompt");
    assert_eq!(refused(&mut runner, Prompt::Tokens(vec![260]), greedy()).reason, "invalid_prompt");
    let bad = Sampling { top_p: 2.0, ..greedy() };
    assert_eq!(refused(&mut runner, text("a"), bad).reason, "invalid_sampling");
    assert_eq!(runner.sequences(), (0, 0));
    assert!(runner.sequences.is_empty());
    runner.submit(5, text("z"), greedy()).unwrap();
    run(&mut runner);
}

#[test]
fn a_prompt_of_tokens_is_the_same_as_its_text() {
    let mut runner = runner();
    runner.submit(1, Prompt::Tokens(vec![u32::from(b'w'), u32::from(b'x')]), greedy()).unwrap();
    assert_eq!(run(&mut runner)[1..], answer("wx", greedy())[1..]);
}

#[test]
fn logprobs_come_with_the_bytes_of_their_tokens() {
    let mut runner = runner();
    runner.submit(1, text("y"), Sampling { logprobs: Some(2), ..greedy() }).unwrap();
    let mut seen = Vec::new();
    runner
        .step(&mut Progress::new(&mut |_, _| true), &mut |event| {
            if let EventKind::Token { logprobs, .. } = event.kind {
                seen.extend(logprobs.iter().map(|(l, piece)| (l.id, l.logprob, piece.bytes.to_vec())));
            }
        })
        .unwrap();
    let expected = 10.0 - (10f64.exp() + 259.0).ln();
    assert_eq!(
        seen.iter().map(|s| (s.0, s.2.clone())).collect::<Vec<_>>(),
        [(122, b"z".to_vec()), (122, b"z".to_vec()), (0, vec![0])]
    );
    assert!((f64::from(seen[0].1) - expected).abs() < 1e-6);
}

#[test]
fn seeded_answers_do_not_depend_on_what_else_runs() {
    let sampling =
        Sampling { temperature: 2.0, seed: 42, tokens_max: 20, ignore_end_tokens: true, ..greedy() };
    let alone = answer("hello", sampling.clone());
    let mut runner = runner();
    runner.submit(2, text("another prompt that is read in several steps"), greedy()).unwrap();
    runner.submit(1, text("hello"), sampling).unwrap();
    let together: Vec<String> = run(&mut runner).into_iter().filter(|e| e.starts_with("1 ")).collect();
    assert_eq!(alone, together);
}

#[test]
fn a_model_that_says_impossible_things_of_itself_is_refused() {
    for (sequences_max, context_length, batch_tokens_max) in [(0, 64, 8), (2, 1, 8), (4, 64, 3)] {
        let model = TestModel::new(sequences_max, context_length, batch_tokens_max);
        assert_eq!(Runner::new(model).err().unwrap().code, StatusCode::Internal);
    }
    assert_eq!(models_held(), 0);
}

#[test]
fn end_is_a_token_like_any_other_in_the_prompt() {
    let mut runner = runner();
    runner.submit(1, Prompt::Tokens(vec![END]), greedy()).unwrap();
    assert_eq!(step(&mut runner).unwrap(), ["1 started 1", "1 token a"]);
}

fn paged(sequences_max: u32, blocks: u32) -> Runner<TestModel> {
    Runner::new(TestModel::paged(sequences_max, 400, blocks)).unwrap()
}

fn details(runner: &Runner<TestModel>) -> serde_json::Value {
    serde_json::from_str(&runner.memory().details_json).unwrap()
}

#[test]
fn a_prompt_that_was_read_before_is_told_as_cached_to_its_caller_alone() {
    let mut runner = paged(2, 100);
    let mut ask = |sequence, salt| {
        runner.submit_salted(sequence, text("some text that ends with x"), greedy(), salt).unwrap();
        run(&mut runner)
    };
    let first = ask(1, 3);
    assert_eq!(first[0], "1 started 26");
    assert_eq!(ask(2, 4)[0], "2 started 26", "another caller");
    let again = ask(3, 3);
    assert_eq!(again[0], "3 started 26 cached 24");
    let without_number = |events: &[String]| events.iter().map(|e| e[2..].to_owned()).collect::<Vec<_>>();
    assert_eq!(without_number(&first[1..]), without_number(&again[1..]));
    assert_eq!((slots_held(), runner.memory().kv_bytes_used), (0, 0));
    assert_eq!(runner.memory().kv_bytes_total, 10_000);
    assert_eq!(details(&runner)["kv"]["cached_tokens"], 24);
    assert_eq!(details(&runner)["a"], 1, "the model's own figures stay");
}

#[test]
fn a_sequence_that_gives_way_goes_on_as_if_nothing_had_been() {
    let sampling =
        |seed| Sampling { temperature: 2.0, seed, tokens_max: 150, ignore_end_tokens: true, ..greedy() };
    let alone = |sequence: u64| {
        let mut runner = paged(1, 100);
        runner.submit(sequence, text("hello"), sampling(sequence)).unwrap();
        run(&mut runner)
    };
    // 240 tokens of KV for three sequences of 155.
    let mut runner = paged(3, 60);
    for sequence in 1..=3 {
        runner.submit(sequence, text("hello"), sampling(sequence)).unwrap();
    }
    let events = run(&mut runner);
    for sequence in 1..=3u64 {
        let of = format!("{sequence} ");
        // Who comes first does not find what the others do.
        let own: Vec<&String> = events.iter().filter(|e| e.starts_with(&of)).collect();
        assert!(own[0].starts_with(&format!("{sequence} started 5")));
        assert_eq!(own[1..], alone(sequence)[1..].iter().collect::<Vec<_>>());
    }
    assert!(details(&runner)["kv"]["preemptions"].as_u64().unwrap() > 0);
    assert_eq!((slots_held(), runner.memory().kv_bytes_used), (0, 0));
}

#[test]
fn cancelling_a_sequence_that_gave_way_ends_it_with_what_it_had() {
    let sampling = Sampling { tokens_max: 150, ignore_end_tokens: true, ..greedy() };
    let mut runner = paged(2, 40);
    runner.submit(1, text("hello"), sampling.clone()).unwrap();
    runner.submit(2, text("hallo"), sampling).unwrap();
    let mut tokens = 0;
    while details(&runner)["kv"]["preemptions"] == 0 {
        tokens += step(&mut runner).unwrap().iter().filter(|e| e.starts_with("2 token")).count();
    }
    assert_eq!(slots_held(), 1);
    runner.cancel(2);
    assert_eq!(step(&mut runner).unwrap()[0], format!("2 finished Cancelled {tokens}"));
    run(&mut runner);
}

#[test]
fn a_sequence_that_grows_beyond_all_kv_fails_alone() {
    let mut runner = paged(1, 4);
    runner.submit(1, text("hello"), Sampling { ignore_end_tokens: true, ..greedy() }).unwrap();
    runner.submit(2, text("y"), greedy()).unwrap();
    let events = run(&mut runner);
    assert!(events.contains(&"1 failed kv_full".to_owned()), "{events:?}");
    assert_eq!(events.last().unwrap(), "2 finished Stop 2");
    let status = runner.submit(3, text(&"-".repeat(16)), greedy()).unwrap_err();
    assert_eq!((status.code, status.needed, status.available), (StatusCode::OomVram, 500, 400));
    assert_eq!(slots_held(), 0);
}

#[test]
fn nothing_is_found_again_after_a_failed_pass() {
    let mut runner = paged(1, 40);
    let ask = |runner: &mut Runner<TestModel>, sequence| {
        runner.submit(sequence, text("some text that ends with x"), greedy()).unwrap();
    };
    ask(&mut runner, 1);
    run(&mut runner);
    ask(&mut runner, 2);
    set_fault("status in forward");
    step(&mut runner).unwrap_err();
    set_fault("");
    ask(&mut runner, 3);
    assert_eq!(run(&mut runner)[0], "3 started 26");
}

/// Chooses by itself; logits stay with it.
struct Chooser(TestModel);

impl Model for Chooser {
    fn spec(&self) -> ModelSpec {
        self.0.spec()
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        self.0.tokenizer()
    }

    fn start(&mut self, slot: crate::Slot, tokens_max: u32) -> Result<(), Status> {
        self.0.start(slot, tokens_max)
    }

    fn end(&mut self, slot: crate::Slot) {
        self.0.end(slot);
    }

    fn forward(&mut self, _: &Batch, _: &mut Logits<'_>, _: &mut Progress<'_>) -> Result<(), Status> {
        panic!("it chooses");
    }

    fn chooses(&self) -> bool {
        true
    }

    fn forward_and_choose(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        sampler: &mut Sampler,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Result<Choice, Status>>, Status> {
        assert_eq!(draws.len(), batch.logits_rows());
        let width = self.0.spec().vocabulary_size as usize;
        let mut logits = vec![0.0; draws.len() * width];
        self.0.forward(batch, &mut Logits::new(&mut logits, width), progress)?;
        let rows = logits.chunks_exact_mut(width).zip(draws);
        Ok(rows.map(|(row, draw)| sampler.choose_for(row, draw)).collect())
    }
}

#[test]
fn a_model_that_chooses_gives_the_same_answers() {
    let samplings = [
        greedy(),
        Sampling { seed: 5, tokens_max: 20, ..Sampling::default() },
        Sampling { begin_with: vec!["qr".to_owned()], tokens_min: 9, ..greedy() },
        Sampling { logprobs: Some(2), stop: vec![b"yz".to_vec()], ..greedy() },
    ];
    let mut plain = runner();
    let mut chooser = Runner::new(Chooser(TestModel::new(2, 64, 8))).unwrap();
    // One of them gets logits that are no numbers, and ends alone.
    for ((prompt, sampling), n) in ["w x", "a", "k", "u"].iter().zip(&samplings).zip(1..) {
        plain.submit(n, text(prompt), sampling.clone()).unwrap();
        chooser.submit(n, text(prompt), sampling.clone()).unwrap();
    }
    plain.submit(9, text("N"), greedy()).unwrap();
    chooser.submit(9, text("N"), greedy()).unwrap();
    let events = run(&mut chooser);
    assert_eq!(events, run(&mut plain));
    assert!(events.contains(&"9 failed logits_not_finite".to_owned()), "{events:?}");

    set_fault("status in forward");
    chooser.submit(1, text("a"), greedy()).unwrap();
    assert_eq!(step(&mut chooser).unwrap_err().code, StatusCode::OomVram);
    set_fault("");
    assert_eq!(slots_held(), 0);
}

#[test]
fn a_model_without_blocks_may_have_read_a_prompt_before() {
    let mut runner = Runner::new(TestModel::keeping(2, 64)).unwrap();
    let ask = |runner: &mut Runner<TestModel>, sequence, prompt: &str, salt| {
        runner.submit_salted(sequence, text(prompt), greedy(), salt).unwrap();
        run(runner)
    };
    let first = ask(&mut runner, 1, "some text that ends with x", 7);
    assert_eq!(first[0], "1 started 26");
    let steps = runner.counters().steps;
    // All but the last token is found, so that one step reads the prompt.
    let again = ask(&mut runner, 2, "some text that ends with x", 7);
    assert_eq!(again[0], "2 started 26 cached 25");
    assert_eq!(runner.counters().steps - steps, 3);
    assert_eq!(again[1..].len(), first[1..].len());
    assert_eq!(ask(&mut runner, 3, "some text and x", 7)[0], "3 started 15 cached 10");
    assert_eq!(ask(&mut runner, 4, "some text that ends with x", 8)[0], "4 started 26", "of another salt");
    assert_eq!(slots_held(), 0);
}

#[test]
#[should_panic(expected = "always read")]
fn a_model_that_says_to_have_read_the_last_token_is_wrong() {
    let mut scheduler = crate::scheduler::Scheduler::new(Limits {
        embeds_whole: false,
        context_length: 8,
        sequences_max: 1,
        batch_tokens_max: 8,
        prefill_gap: crate::scheduler::PREFILL_GAP_DEFAULT,
        reserve_tokens: 1,
        kv: None,
    });
    scheduler.submit(1, vec![1, 2, 3], 0, 0).unwrap();
    scheduler.admit().unwrap();
    scheduler.found(1, 3);
}
