//! Embeddings: of an encoder beside a computation of our own, of a decoder beside recorded ones, and both by the ABI's cases.

#[path = "embeddings/decoder.rs"]
mod decoder;
#[path = "embeddings/reference.rs"]
mod reference;

use engine_protocol::{EventKind, Loaded, Prompt, Submit, Task, ToWorker};
use engine_testkit::suite::{Bench, Subject, run_named, vector};
use gpt_oss_synth::{BertShape, Family, Pooling, write_bert_gguf, write_pooled_gguf};
use tempfile::TempDir;

use crate::{SEED, greedy, llama_cpp_is_missing, settings, subject, submit, text};

/// How far two embeddings of one prompt may be apart, as 1 less the cosine of their angle: half floats are rounded to
/// 1e-3, and the squares of such differences add up.
const ANGLE_ROUNDING: f64 = 1e-4;

fn bert(pooling: Pooling) -> (TempDir, Vec<gpt_oss_synth::MadeTensor>) {
    let dir = tempfile::tempdir().unwrap();
    let tensors = write_bert_gguf(pooling, SEED, &dir.path().join("model.gguf")).unwrap();
    (dir, tensors)
}

fn pooled(family: Family, pooling: Pooling) -> (TempDir, Vec<gpt_oss_synth::MadeTensor>) {
    let dir = tempfile::tempdir().unwrap();
    let tensors = write_pooled_gguf(family, pooling, SEED, &dir.path().join("model.gguf")).unwrap();
    (dir, tensors)
}

fn embed(sequence: u64, prompt: Prompt) -> Submit {
    Submit { task: Task::Embed, ..submit(sequence, prompt, greedy(1)) }
}

fn apart(a: &[f32], b: &[f32]) -> f64 {
    1.0 - a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
}

fn load(subject: &Subject, context: u32) -> (Bench, Loaded) {
    Bench::load(subject, &settings(context, 4)).unwrap()
}

#[test]
fn an_encoders_embeddings_are_those_of_a_plain_computation() {
    if llama_cpp_is_missing() {
        return;
    }
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
        let (dir, tensors) = bert(pooling);
        let (mut bench, loaded) = load(&subject(dir.path()), BertShape::CONTEXT as u32);
        assert_eq!((loaded.embedding_size as usize, loaded.embeds_only), (BertShape::HIDDEN, true));
        let plain = reference::Bert::new(&tensors);
        let ragged =
            [vec![7], vec![5, 9, 30, 31, 8], (5..5 + 61).map(|id| 5 + id % 60).collect::<Vec<u32>>()];
        // At once: sequences of other lengths are beside each in the pass.
        let all: Vec<ToWorker> = (1u64..)
            .zip(&ragged)
            .map(|(n, ids)| ToWorker::Submit(Box::new(embed(n, Prompt::Tokens(ids.clone())))))
            .collect();
        bench.worker.send_all(&all).unwrap();
        for (n, ids) in (1u64..).zip(&ragged) {
            let got = vector(&bench.worker.collect(n).unwrap(), &loaded).unwrap();
            let apart = apart(&got, &plain.embed(ids, pooling));
            assert!(apart < ANGLE_ROUNDING, "{pooling:?}, {} tokens: {apart} apart", ids.len());
        }
        // What goes around a text.
        let words = bench.worker.tokenize("the one", &[]).unwrap().unwrap();
        let around = [&[BertShape::BEGIN], words.as_slice(), &[BertShape::SEPARATOR]].concat();
        let of_text = vector(&bench.worker.run(embed(11, text("the one"))).unwrap(), &loaded).unwrap();
        assert!(apart(&of_text, &plain.embed(&around, pooling)) < ANGLE_ROUNDING, "{around:?}");
        bench.finish().unwrap();
    }
}

#[test]
fn a_decoders_embeddings_are_those_of_a_plain_computation() {
    if llama_cpp_is_missing() {
        return;
    }
    for (family, pooling) in
        [(Family::Qwen3, Pooling::Last), (Family::Qwen2, Pooling::First), (Family::Llama, Pooling::Mean)]
    {
        let (dir, tensors) = pooled(family, pooling);
        let (mut bench, loaded) = load(&subject(dir.path()), 256);
        let plain = decoder::Decoder::new(family, &tensors);
        for (n, count) in (1u64..).zip([1u32, 5, 67]) {
            let ids: Vec<u32> = (0..count).map(|at| (at * 37 + 11) % 600).collect();
            let got = bench.worker.run(embed(n, Prompt::Tokens(ids.clone()))).unwrap();
            let apart = apart(&vector(&got, &loaded).unwrap(), &plain.embed(&ids, pooling));
            assert!(apart < ANGLE_ROUNDING, "{family:?} {pooling:?}, {count} tokens: {apart} apart");
        }
        bench.finish().unwrap();
    }
}

#[test]
fn an_end_token_is_put_behind_a_text_where_the_vocabulary_says_so() {
    if llama_cpp_is_missing() {
        return;
    }
    let (dir, _) = pooled(Family::Qwen3, Pooling::Last);
    let (mut bench, loaded) = load(&subject(dir.path()), 256);
    let mut ids = bench.worker.tokenize("some text", &[]).unwrap().unwrap();
    ids.push(601);
    let of_text = vector(&bench.worker.run(embed(1, text("some text"))).unwrap(), &loaded).unwrap();
    let reply = bench.worker.run(embed(2, Prompt::Tokens(ids.clone()))).unwrap();
    let of_tokens = vector(&reply, &loaded).unwrap();
    assert!(apart(&of_text, &of_tokens) < ANGLE_ROUNDING);
    // The same read in pieces, beside others, and gone on from what is there.
    let long: Vec<u32> = (0..200).map(|n| n * 7 % 600).collect();
    let first = vector(&bench.worker.run(embed(3, Prompt::Tokens(long.clone()))).unwrap(), &loaded).unwrap();
    let again = bench.worker.run(embed(4, Prompt::Tokens(long))).unwrap();
    let Some(EventKind::Started { cached_tokens, .. }) = again.events.first() else { panic!("{again:?}") };
    assert!(*cached_tokens > 100, "{cached_tokens}");
    assert!(apart(&first, &vector(&again, &loaded).unwrap()) < ANGLE_ROUNDING);
    bench.finish().unwrap();
}

#[test]
fn the_cases_of_the_abi_pass_for_models_that_embed() {
    if llama_cpp_is_missing() {
        return;
    }
    let dirs = [
        bert(Pooling::Mean).0,
        pooled(Family::Qwen3, Pooling::Last).0,
        pooled(Family::Llama, Pooling::Mean).0,
    ];
    for dir in &dirs {
        for case in
            ["tasks_are_done_or_refused", "embeddings_are_directions", "embeddings_keep_to_the_context"]
        {
            run_named(case, &subject(dir.path())).unwrap().result.unwrap();
        }
    }
}
