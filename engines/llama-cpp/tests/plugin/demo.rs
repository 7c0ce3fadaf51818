//! The demo model's greedy answers through llama.cpp against its reference, which the gpt-oss engine equals.

use engine_protocol::Prompt;
use engine_testkit::build::workspace_root;
use serde::Deserialize;

use crate::{demo, greedy, llama_cpp_is_missing, load, submit, text};

/// How far two logits may be apart in one implementation and in the other order in the other. llama.cpp rounds activations to
/// bf16 beside bf16 weights and to 8 bits beside MXFP4; the reference rounds nothing. Half a nat is what the largest
/// difference of a logit between the two comes to over all prompts.
pub const LOGIT_ROUNDING: f64 = 0.5;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Conversation>,
}

#[derive(Deserialize)]
pub struct Conversation {
    name: String,
    prompt: String,
    pub prompt_token_ids: Vec<u32>,
    completion_token_ids: Vec<u32>,
}

pub fn reference() -> Vec<Conversation> {
    let bytes = std::fs::read(workspace_root().join("assets/demo-model/reference.json")).unwrap();
    serde_json::from_slice::<Reference>(&bytes).unwrap().prompts
}

#[test]
fn its_prompts_have_the_tokens_of_the_reference() {
    if llama_cpp_is_missing() {
        return;
    }
    let dir = demo();
    let (mut bench, loaded) = load(dir.path(), 1024);
    assert_eq!(loaded.end_tokens, [2001, 2004, 2014], "those of generation_config.json");
    for conversation in reference() {
        let ids = bench.worker.tokenize(&conversation.prompt, &[]).unwrap().unwrap();
        assert_eq!(ids, conversation.prompt_token_ids, "{}", conversation.name);
    }
    bench.finish().unwrap();
}

#[test]
fn its_greedy_answers_are_the_references_up_to_rounding() {
    if llama_cpp_is_missing() {
        return;
    }
    let dir = demo();
    let (mut bench, _) = load(dir.path(), 1024);
    let (mut equal, all) = (0, reference());
    for (sequence, conversation) in (1..).zip(&all) {
        let wanted = &conversation.completion_token_ids;
        let mut sampling = greedy(wanted.len() as u32);
        sampling.logprobs = Some(20);
        let reply = bench
            .worker
            .run(submit(sequence, Prompt::Tokens(conversation.prompt_token_ids.clone()), sampling))
            .unwrap();
        let ids = reply.ids();
        let Some(at) = ids.iter().zip(wanted).position(|(got, wanted)| got != wanted) else {
            assert_eq!(ids.len(), wanted.len(), "{}", conversation.name);
            equal += 1;
            continue;
        };
        let token = reply.tokens().nth(at).unwrap();
        let of = |id: u32| token.logprobs.iter().find(|l| l.id == id).map(|l| f64::from(l.logprob));
        let (got, expected) = (of(ids[at]).unwrap(), of(wanted[at]));
        println!(
            "{}: token {at} is {} with logprob {got}, and the reference has {} with {expected:?}",
            conversation.name, ids[at], wanted[at]
        );
        assert!(expected.is_some_and(|expected| got - expected < LOGIT_ROUNDING), "{}", conversation.name);
    }
    println!("{equal} of {} answers are equal token for token", all.len());
    bench.finish().unwrap();
}

#[test]
fn text_and_tokens_of_a_prompt_have_the_same_answer() {
    if llama_cpp_is_missing() {
        return;
    }
    let dir = demo();
    let (mut bench, _) = load(dir.path(), 512);
    let first = &reference()[0];
    let by_text = bench.worker.run(submit(1, text(&first.prompt), greedy(30))).unwrap();
    let tokens = Prompt::Tokens(first.prompt_token_ids.clone());
    let by_tokens = bench.worker.run(submit(2, tokens, greedy(30))).unwrap();
    assert_eq!(by_text.ids(), by_tokens.ids());
    bench.finish().unwrap();
}
