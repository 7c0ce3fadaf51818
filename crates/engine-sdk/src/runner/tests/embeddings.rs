//! Prompts that are embedded, alone and beside others that are answered.

use super::*;
use crate::{EmbeddingSpec, testing::set_fault};

fn embedding_model(whole: bool, only: bool) -> TestModel {
    // Room for a whole context in a step.
    let mut model = TestModel::new(2, 16, 16);
    model.embeddings = Some(EmbeddingSpec { size: 3, only, whole });
    model
}

fn embed(runner: &mut Runner<TestModel>, sequence: SequenceId, tokens: &[u32]) -> Result<(), Status> {
    runner.submit_task(sequence, Prompt::Tokens(tokens.to_vec()), Task::Embed, 0)
}

#[test]
fn an_embedding_comes_once_with_the_length_one_and_leaves_the_slot() {
    let mut runner = Runner::new(embedding_model(false, false)).unwrap();
    embed(&mut runner, 1, &[1, 1]).unwrap();
    // (2, 2, 1) is 3 long.
    assert_eq!(run(&mut runner), ["1 started 2", "1 embedding [0.667, 0.667, 0.333]", "1 finished Stop 0"]);
    assert_eq!((runner.sequences(), crate::testing::slots_held()), ((0, 0), 0));
    let counted = runner.counters();
    assert_eq!((counted.prompt_tokens, counted.completion_tokens), (2, 0));
}

#[test]
fn a_prompt_to_be_embedded_may_fill_the_context_and_no_more() {
    let mut runner = Runner::new(embedding_model(false, false)).unwrap();
    let status = embed(&mut runner, 1, &[1; 17]).unwrap_err();
    assert_eq!((&*status.reason, status.needed, status.available), (reason::CONTEXT_LENGTH_EXCEEDED, 17, 16));
    assert_eq!(embed(&mut runner, 1, &[]).unwrap_err().reason, reason::EMPTY_PROMPT);
    embed(&mut runner, 1, &[1; 16]).unwrap();
    assert_eq!(run(&mut runner).last().unwrap(), "1 finished Stop 0");
}

#[test]
fn whoever_decodes_has_a_token_in_every_step_that_reads_what_is_to_be_embedded() {
    let mut model = TestModel::new(2, 200, 8);
    model.embeddings = Some(EmbeddingSpec { size: 3, only: false, whole: false });
    let mut runner = Runner::new(model).unwrap();
    runner.submit(1, text("a"), Sampling { tokens_max: 20, ..greedy() }).unwrap();
    step(&mut runner).unwrap();
    embed(&mut runner, 2, &[1; 60]).unwrap();
    let mut steps = 0;
    loop {
        let events = step(&mut runner).unwrap();
        assert!(events.iter().any(|event| event.starts_with("1 token")), "{events:?}");
        steps += 1;
        if events.iter().any(|event| event.starts_with("2 embedding")) {
            break;
        }
    }
    assert!(steps > 60 / 8, "{steps} steps");
}

#[test]
fn what_is_read_whole_is_one_row_whatever_else_is_read() {
    let mut runner = Runner::new(embedding_model(true, true)).unwrap();
    embed(&mut runner, 1, &[1; 10]).unwrap();
    embed(&mut runner, 2, &[1; 10]).unwrap();
    let first = step(&mut runner).unwrap();
    assert_eq!(first.iter().filter(|event| event.contains("embedding")).count(), 1, "{first:?}");
    let second = step(&mut runner).unwrap();
    assert_eq!(second, ["2 embedding [0.705, 0.705, 0.071]", "2 finished Stop 0"]);
}

#[test]
fn a_task_that_the_model_does_not_do_is_refused_by_name() {
    let mut without = Runner::new(TestModel::new(2, 16, 16)).unwrap();
    let status = embed(&mut without, 1, &[1]).unwrap_err();
    assert_eq!((&*status.reason, &*status.param), (reason::NO_EMBEDDINGS, "task"));
    let mut only = Runner::new(embedding_model(false, true)).unwrap();
    let status = only.submit(1, text("a"), greedy()).unwrap_err();
    assert_eq!((&*status.reason, &*status.param), (reason::NO_GENERATION, "task"));
    assert_eq!((without.sequences(), only.sequences()), ((0, 0), (0, 0)));
}

#[test]
fn one_that_fails_ends_alone() {
    let mut runner = Runner::new(embedding_model(false, false)).unwrap();
    embed(&mut runner, 1, &[u32::from(b'N')]).unwrap();
    embed(&mut runner, 2, &[1, 1]).unwrap();
    let events = run(&mut runner);
    assert!(events.contains(&"1 failed embedding_not_finite".to_owned()), "{events:?}");
    assert!(events.contains(&"2 finished Stop 0".to_owned()), "{events:?}");
    set_fault("status in embed");
    embed(&mut runner, 3, &[1]).unwrap();
    assert_eq!(run(&mut runner)[1], "3 failed out_of_device_memory");
    set_fault("");
    assert_eq!(crate::testing::slots_held(), 0);
}

#[test]
fn one_that_is_cancelled_has_no_embedding() {
    let mut runner = Runner::new(embedding_model(false, false)).unwrap();
    embed(&mut runner, 1, &[1]).unwrap();
    runner.cancel(1);
    assert_eq!(run(&mut runner), ["1 finished Cancelled 0"]);
}

#[test]
fn what_a_model_says_of_its_embeddings_has_to_be_possible() {
    for (size, context, batch) in [(0, 16, 16), (EMBEDDING_SIZE_MAX + 1, 16, 16), (3, 16, 15)] {
        let mut model = TestModel::new(2, context, batch);
        model.embeddings = Some(EmbeddingSpec { size, only: true, whole: true });
        assert_eq!(Runner::new(model).err().unwrap().reason, reason::INTERNAL, "{size} {context} {batch}");
    }
    let mut paged = TestModel::paged(2, 16, 8);
    paged.embeddings = Some(EmbeddingSpec { size: 3, only: true, whole: true });
    assert!(Runner::new(paged).is_err());
}
