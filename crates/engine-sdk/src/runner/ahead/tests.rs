//! A runner that goes ahead beside one that does not: what a client sees is the same.

use std::{collections::BTreeMap, collections::VecDeque, sync::Arc};

use proptest::prelude::*;

use crate::testing::{TestModel, set_fault, slots_held};
use crate::*;

/// What a row chose, if the device was to choose, and the logits it was chosen from.
type Chosen = (Option<Result<Choice, Status>>, Vec<f32>);

/// Chooses by itself, in steps that are launched: the test model, whose passes are done in the order of launches.
struct Launcher {
    model: TestModel,
    sampler: Sampler,
    /// Each launch that was not collected.
    launched: VecDeque<Vec<Chosen>>,
    /// Tokens that the last launch chose.
    chosen: Vec<u32>,
    collected: Vec<Vec<f32>>,
}

impl Launcher {
    fn new(model: TestModel) -> Launcher {
        let spec = model.spec();
        let tokenizer = model.tokenizer();
        let known = (0..spec.vocabulary_size).map(|id| tokenizer.piece(id).is_some()).collect();
        let sampler = Sampler::new(known, spec.end_tokens);
        Launcher { model, sampler, launched: VecDeque::new(), chosen: Vec::new(), collected: Vec::new() }
    }

    /// The batch with the tokens that the device knows by now.
    fn resolved(&self, batch: &Batch) -> Batch {
        let mut resolved = Batch::new();
        for row in batch.rows() {
            match row.chosen_by {
                None => resolved.push(row.slot, row.position, row.tokens, row.wants_logits),
                Some(draw) => {
                    let token = self.chosen[draw as usize];
                    resolved.push(row.slot, row.position, &[token], row.wants_logits);
                }
            }
            resolved.push_tables((0..row.tables()).map(|group| row.table(group)));
        }
        resolved
    }
}

impl Model for Launcher {
    fn spec(&self) -> ModelSpec {
        self.model.spec()
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        self.model.tokenizer()
    }

    fn kv(&self) -> Option<KvLayout> {
        self.model.kv()
    }

    fn start(&mut self, slot: Slot, tokens_max: u32) -> Result<(), Status> {
        self.model.start(slot, tokens_max)
    }

    fn end(&mut self, slot: Slot) {
        self.model.end(slot);
    }

    fn forward(&mut self, _: &Batch, _: &mut Logits<'_>, _: &mut Progress<'_>) -> Result<(), Status> {
        panic!("it launches");
    }

    fn launches(&self) -> bool {
        true
    }

    fn chooses_unaided(&self, sampling: &Sampling) -> bool {
        sampling.top_k == 0
    }

    fn launch(&mut self, batch: &Batch, draws: &[Draw<'_>], p: &mut Progress<'_>) -> Result<(), Status> {
        assert!(self.launched.len() < 2, "three launches that were not collected");
        assert_eq!(draws.len(), batch.logits_rows());
        let batch = self.resolved(batch);
        let width = self.model.spec().vocabulary_size as usize;
        let mut logits = vec![0.0; draws.len() * width];
        let run = self.model.forward(&batch, &mut Logits::new(&mut logits, width), p);
        run.inspect_err(|_| self.launched.clear())?;
        self.chosen.clear();
        let mut rows = Vec::new();
        for (logits, draw) in logits.chunks_exact(width).zip(draws) {
            let can = self.chooses_unaided(draw.sampling) && draw.only.is_none();
            let choice = can.then(|| self.sampler.choose_for(&mut logits.to_vec(), draw));
            // A row that failed or was left to the host goes on with anything.
            self.chosen.push(choice.as_ref().and_then(|c| c.as_ref().ok()).map_or(0, |c| c.id));
            rows.push((choice, logits.to_vec()));
        }
        self.launched.push_back(rows);
        Ok(())
    }

    fn collect(&mut self, _: &mut Progress<'_>) -> Result<Vec<Option<Result<Choice, Status>>>, Status> {
        let rows = self.launched.pop_front().expect("nothing is collected that was not launched");
        let (choices, logits) = rows.into_iter().unzip();
        self.collected = logits;
        Ok(choices)
    }

    fn logits(&mut self, draw: usize, logits: &mut [f32]) -> Result<(), Status> {
        assert!(self.launched.is_empty(), "logits of a step that was overwritten");
        logits.copy_from_slice(&self.collected[draw]);
        Ok(())
    }
}

/// What a client sees of a sequence, without how much was found in the cache: that depends on what else ran when.
fn words(event: &Event<'_>) -> String {
    match event.kind {
        EventKind::Started { prompt_tokens, .. } => format!("started {prompt_tokens}"),
        EventKind::Token { id, logprobs, .. } => {
            let logprobs: Vec<TokenLogprob> = logprobs.iter().map(|l| l.0).collect();
            format!("token {id} {logprobs:?}")
        }
        EventKind::Finished { reason, completion_tokens } => format!("{reason:?} {completion_tokens}"),
        EventKind::Embedding(_) => panic!("nobody asked for an embedding"),
        EventKind::Failed(status) => format!("failed {}", status.reason),
    }
}

type Courses = BTreeMap<SequenceId, Vec<String>>;

fn step<M: Model>(runner: &mut Runner<M>, courses: &mut Courses) -> Result<u32, Status> {
    runner.step(&mut Progress::new(&mut |_, _| true), &mut |event| {
        courses.entry(event.sequence).or_default().push(words(event));
    })
}

fn run<M: Model>(runner: &mut Runner<M>, courses: &mut Courses) {
    for _ in 0..5_000 {
        if step(runner, courses).expect("nothing is to fail") == 0 {
            return;
        }
    }
    panic!("it does not end");
}

#[derive(Debug, Clone)]
struct Request {
    prompt: String,
    sampling: Sampling,
    /// The step before which it is submitted.
    at: usize,
    /// The step before which it is cancelled.
    cancel: Option<usize>,
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let kind = prop_oneof![
        6 => Just(Sampling::default()),
        1 => Just(Sampling { top_k: 3, ..Sampling::default() }),
        1 => Just(Sampling { frequency_penalty: 0.5, ..Sampling::default() }),
        1 => Just(Sampling { repetition_penalty: 1.3, ..Sampling::default() }),
        1 => Just(Sampling { tokens_min: 5, ..Sampling::default() }),
        1 => Just(Sampling { begin_with: vec!["ab".into(), "axyz".into()], ..Sampling::default() }),
        1 => Just(Sampling { constraint: Some(constraint()), ..Sampling::default() }),
        1 => Just(Sampling { logprobs: Some(2), ..Sampling::default() }),
        1 => Just(Sampling { stop: vec![b"cde".to_vec()], stop_tokens: vec![60], ..Sampling::default() }),
    ];
    let temperature = prop_oneof![Just(0.0f32), Just(1.0), Just(2.0)];
    (kind, temperature, any::<u64>(), 0u32..40, any::<bool>()).prop_map(
        |(kind, temperature, seed, tokens_max, ignore_end_tokens)| Sampling {
            temperature,
            seed,
            tokens_max,
            ignore_end_tokens: ignore_end_tokens && kind.constraint.is_none(),
            ..kind
        },
    )
}

fn constraint() -> Constraint {
    Constraint { kind: grammar::Kind::Lark, text: "start: /[a-m]{2,20}/".to_owned() }
}

fn request() -> impl Strategy<Value = Request> {
    ("[a-zN ]{1,30}", sampling(), 0usize..20, prop::option::weighted(0.2, 0usize..40))
        .prop_map(|(prompt, sampling, at, cancel)| Request { prompt, sampling, at, cancel })
}

/// Runs the requests, each submitted and cancelled before its step.
fn courses<M: Model>(runner: &mut Runner<M>, requests: &[Request], cancels: bool) -> Courses {
    let mut courses = Courses::new();
    for n in 0..41 {
        for (request, sequence) in requests.iter().zip(1..) {
            if request.at == n {
                let prompt = Prompt::Text { text: request.prompt.clone(), literal: Vec::new() };
                runner.submit(sequence, prompt, request.sampling.clone()).expect("it can be");
            }
            if cancels && request.cancel == Some(n) {
                runner.cancel(sequence);
            }
        }
        step(runner, &mut courses).expect("nothing is to fail");
    }
    run(runner, &mut courses);
    courses
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// With blocks enough or scarce, so that sequences give way, or with slots that hold the KV.
    #[test]
    fn what_a_client_sees_does_not_depend_on_running_ahead(
        requests in prop::collection::vec(request(), 1..7),
        sequences_max in 1u32..5,
        blocks in prop::option::of(16u32..60),
    ) {
        let model = || match blocks {
            Some(blocks) => TestModel::paged(sequences_max, 60, blocks),
            None => TestModel::new(sequences_max, 60, 8),
        };
        let want = courses(&mut Runner::new(model()).expect("sound"), &requests, false);
        let mut ahead = Runner::new(Launcher::new(model())).expect("sound");
        let got = courses(&mut ahead, &requests, true);
        for (request, sequence) in requests.iter().zip(1..) {
            let (want, got) = (&want[&sequence], got.get(&sequence).cloned().unwrap_or_default());
            let Some((last, before)) = got.split_last() else {
                panic!("sequence {sequence} had no event");
            };
            if request.cancel.is_some() && last.starts_with("Cancelled") {
                prop_assert_eq!(before, &want[..before.len()]);
            } else {
                prop_assert_eq!(&got, want);
            }
        }
        prop_assert_eq!((slots_held(), ahead.memory().kv_bytes_used), (0, 0));
        // Numbers are free again, whatever is still under way.
        let again = courses(&mut ahead, &requests[..1], false);
        prop_assert_eq!(&again[&1], &want[&1]);
    }
}

fn prompt(text: &str) -> Prompt {
    Prompt::Text { text: text.to_owned(), literal: Vec::new() }
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

fn ahead() -> Runner<Launcher> {
    Runner::new(Launcher::new(TestModel::paged(2, 64, 40))).expect("sound")
}

#[test]
fn a_step_is_launched_before_the_tokens_of_the_last_one_are_delivered() {
    let mut runner = ahead();
    runner.submit(1, prompt("w"), greedy()).expect("it can be");
    let mut courses = Courses::new();
    let mut seen = Vec::new();
    while step(&mut runner, &mut courses).expect("nothing is to fail") > 0 {
        seen.push((runner.counters().steps, courses[&1].len()));
    }
    // Launched so far, and "started" with the tokens so far: x, y, z, and with the end its last event.
    assert_eq!(seen, [(1, 1), (2, 2), (3, 3), (4, 4)]);
    assert_eq!((runner.counters().steps, courses[&1].len()), (5, 6), "one row too many");
    assert_eq!(runner.counters().completion_tokens, 4);
}

#[test]
fn an_answer_of_known_length_has_no_row_too_many() {
    let mut runner = ahead();
    runner.submit(1, prompt("a"), Sampling { tokens_max: 3, ..greedy() }).expect("it can be");
    run(&mut runner, &mut Courses::new());
    assert_eq!(runner.counters().steps, 3);
}

#[test]
fn where_the_host_chooses_the_next_step_waits() {
    for sampling in
        [Sampling { top_k: 1, ..Sampling::default() }, Sampling { presence_penalty: 1.0, ..greedy() }]
    {
        let mut runner = ahead();
        runner.submit(1, prompt("w"), sampling).expect("it can be");
        run(&mut runner, &mut Courses::new());
        assert_eq!(runner.counters().steps, runner.counters().completion_tokens);
    }
}

#[test]
fn a_launch_that_fails_ends_everything_and_the_next_sequence_works() {
    let mut runner = ahead();
    runner.submit(1, prompt("a"), greedy()).expect("it can be");
    let mut courses = Courses::new();
    step(&mut runner, &mut courses).expect("it works");
    step(&mut runner, &mut courses).expect("it works");
    set_fault("status in forward");
    assert_eq!(step(&mut runner, &mut courses).expect_err("it is to fail").code, StatusCode::OomVram);
    set_fault("");
    assert_eq!((runner.sequences(), slots_held()), ((0, 0), 0));
    runner.submit(1, prompt("z"), greedy()).expect("it can be");
    run(&mut runner, &mut courses);
    assert_eq!(courses[&1].last().map(String::as_str), Some("Stop 1"));
}

#[test]
fn a_host_that_says_stop_leaves_nothing_under_way() {
    let mut runner = ahead();
    runner.submit(1, prompt("a"), greedy()).expect("it can be");
    let mut courses = Courses::new();
    step(&mut runner, &mut courses).expect("it works");
    let stopped = runner.step(&mut Progress::new(&mut |_, _| false), &mut |_| {});
    assert_eq!(stopped.expect_err("it is to stop").code, StatusCode::Cancelled);
    assert!(runner.model.launched.is_empty() && runner.under_way.is_none());
    assert_eq!((runner.sequences(), slots_held()), ((0, 0), 0));
}
