//! Embeddings: of engines that have them and of those that do not.

use anyhow::{Context as _, Result, bail, ensure};
use engine_protocol::{EventKind, FinishReason, Loaded, SequenceId, Submit, Task, ToWorker};

use super::bench::{Bench, PROMPT, endless, settings, submit, submit_tokens};
use super::{Case, Outcome, Subject};
use crate::worker::Reply;

pub const CASES: [Case; 3] = [
    Case {
        name: "tasks_are_done_or_refused",
        promise: "an engine says whether a model has embeddings and answers, and does what it says",
        run: done_or_refused,
    },
    Case {
        name: "embeddings_are_directions",
        promise: "an embedding has the size that was said and the length 1, and depends on its prompt alone",
        run: directions,
    },
    Case {
        name: "embeddings_keep_to_the_context",
        promise: "a prompt that fills the context is embedded, a longer one refused with both numbers",
        run: context,
    },
];

/// How far the length of an embedding may be from 1: thousands of roundings of f32.
const LENGTH_ROUNDING: f64 = 1e-4;
/// How far two of one prompt may be apart: engines sum in another order where others are in the batch, and half floats are
/// rounded.
const ANGLE_ROUNDING: f64 = 1e-3;

pub fn embed(sequence: SequenceId, text: &str) -> Submit {
    Submit { task: Task::Embed, ..submit(sequence, text, endless(1)) }
}

fn embed_tokens(sequence: SequenceId, tokens: Vec<u32>) -> Submit {
    Submit { task: Task::Embed, ..submit_tokens(sequence, tokens, endless(1)) }
}

/// A model for a case that needs embeddings; the reason where it has none.
fn with_embeddings(subject: &Subject, context: u32) -> Result<Result<(Bench, Loaded), Outcome>> {
    let (bench, loaded) = Bench::load(subject, &settings(context, 4))?;
    if loaded.embedding_size > 0 {
        return Ok(Ok((bench, loaded)));
    }
    bench.finish()?;
    Ok(Err(Outcome::NotApplicable("the model has no embeddings".to_owned())))
}

/// The numbers of a reply that is as it has to be.
pub fn vector(reply: &Reply, loaded: &Loaded) -> Result<Vec<f32>> {
    let [
        EventKind::Started { .. },
        EventKind::Embedding(numbers),
        EventKind::Finished { reason, completion_tokens: 0 },
    ] = reply.events.as_slice()
    else {
        bail!("expected started, one embedding, finished without tokens: {:?}", reply.events);
    };
    ensure!(*reason == FinishReason::Stop, "it finished with {reason:?}");
    let size = numbers.len();
    ensure!(size == loaded.embedding_size as usize, "{size} numbers, {} were said", loaded.embedding_size);
    let squares: f64 = numbers.iter().map(|n| f64::from(*n) * f64::from(*n)).sum();
    ensure!((squares.sqrt() - 1.0).abs() < LENGTH_ROUNDING, "its length is {}", squares.sqrt());
    Ok(numbers.clone())
}

/// 1 less the cosine of the angle between two of length 1.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    1.0 - a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
}

fn done_or_refused(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    ensure!(!loaded.embeds_only || loaded.embedding_size > 0, "it gives embeddings only, and none");
    if loaded.embedding_size > 0 {
        vector(&bench.worker.run(embed(1, PROMPT))?, &loaded)?;
    } else {
        bench.refused("a prompt to be embedded", embed(1, PROMPT), "no_embeddings")?;
    }
    if loaded.embeds_only {
        bench.refused("a prompt to be answered", submit(2, PROMPT, endless(1)), "no_generation")?;
    } else {
        bench.run_text(2, PROMPT, endless(1)).context("an answer beside embeddings")?;
    }
    bench.finish()
}

fn directions(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = match with_embeddings(subject, 256)? {
        Ok(ready) => ready,
        Err(outcome) => return Ok(outcome),
    };
    let texts = [PROMPT, "Something else, and longer than that.", "x", PROMPT];
    let mut alone = Vec::new();
    for (sequence, text) in (1..).zip(texts) {
        alone.push(vector(&bench.worker.run(embed(sequence, text))?, &loaded)?);
    }
    ensure!(apart(&alone[0], &alone[3]) < ANGLE_ROUNDING, "one text has two embeddings");
    ensure!(apart(&alone[0], &alone[1]) > 0.0, "two texts have one embedding");
    let at_once: Vec<ToWorker> =
        (11..).zip(texts).map(|(sequence, text)| ToWorker::Submit(Box::new(embed(sequence, text)))).collect();
    bench.worker.send_all(&at_once)?;
    for (sequence, alone) in (11..).zip(&alone) {
        let beside = vector(&bench.worker.collect(sequence)?, &loaded)?;
        ensure!(
            apart(alone, &beside) < ANGLE_ROUNDING,
            "the embedding of sequence {sequence} is another beside others, {} apart",
            apart(alone, &beside)
        );
    }
    // Tokens stay as they are: the prompt has as many as were sent.
    let ids = bench.worker.tokenize(PROMPT, &[])?.context("tokenize")?;
    let count = ids.len() as u32;
    let reply = bench.worker.run(embed_tokens(21, ids))?;
    vector(&reply, &loaded)?;
    let Some(EventKind::Started { prompt_tokens, .. }) = reply.events.first() else {
        bail!("no start: {:?}", reply.events);
    };
    ensure!(*prompt_tokens == count, "{count} tokens were sent, and {prompt_tokens} are said to have been");
    bench.finish()
}

fn context(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = match with_embeddings(subject, 32)? {
        Ok(ready) => ready,
        Err(outcome) => return Ok(outcome),
    };
    let piece = bench.worker.tokenize("a", &[])?.context("tokenize")?[0];
    let length = loaded.context_length;
    let prompt = |sequence, tokens: u32| embed_tokens(sequence, vec![piece; tokens as usize]);
    vector(&bench.worker.run(prompt(1, length))?, &loaded).context("a prompt as long as the context")?;
    let status = bench.refused("a longer one", prompt(2, length + 1), "context_length_exceeded")?;
    let expected = (u64::from(length) + 1, u64::from(length));
    ensure!((status.needed, status.available) == expected, "expected the numbers {expected:?}: {status}");
    bench.refused("no tokens", embed_tokens(3, Vec::new()), "empty_prompt")?;
    let outside = embed_tokens(4, vec![loaded.vocabulary_size]);
    bench.refused("a token outside the vocabulary", outside, "invalid_prompt")?;
    vector(&bench.worker.run(prompt(5, 1))?, &loaded).context("after refusals")?;
    bench.finish()
}
