//! Several sequences, cancelling, and the figures.

use anyhow::{Context as _, Result, bail, ensure};
use engine_protocol::{EventKind, FinishReason, Settings, ToNode, ToWorker};

use super::bench::{Bench, PROMPT, endless, sampling, settings, submit};
use super::{Case, Outcome, Subject};

pub const CASES: [Case; 7] = [
    Case {
        name: "sequences_share_steps",
        promise: "sequences that run at the same time decode in the same steps",
        run: share,
    },
    Case {
        name: "sequences_are_isolated",
        promise: "an answer is the same alone and among others",
        run: isolated,
    },
    Case {
        name: "more_sequences_than_run_wait",
        promise: "sequences over sequences_max wait and are served",
        run: wait,
    },
    Case {
        name: "cancelled_before_it_starts",
        promise: "a cancelled sequence costs at most one token more",
        run: cancel_early,
    },
    Case {
        name: "cancelled_while_it_runs",
        promise: "a running sequence ends as cancelled, and the others do not",
        run: cancel_running,
    },
    Case {
        name: "cancel_of_nothing_is_ignored",
        promise: "a number that is not known or has ended may be cancelled",
        run: cancel_nothing,
    },
    Case {
        name: "stats_count",
        promise: "the figures are those of what ran, and its KV is gone",
        run: stats,
    },
];

fn submit_all(bench: &mut Bench, texts: &[&str], tokens: u32) -> Result<()> {
    let messages: Vec<ToWorker> = (1..)
        .zip(texts)
        .map(|(sequence, text)| ToWorker::Submit(Box::new(submit(sequence, text, endless(tokens)))))
        .collect();
    bench.worker.send_all(&messages)
}

fn share(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    if loaded.sequences_max < 2 {
        bench.finish()?;
        return Ok(Outcome::NotApplicable("the engine runs one sequence at a time".to_owned()));
    }
    submit_all(&mut bench, &[PROMPT, "Something else"], 12)?;
    let (mut shared, mut ended) = (0, 0);
    while ended < 2 {
        let ToNode::Events(events) = bench.worker.next_message()? else { continue };
        let with_token = |n| events.iter().any(|e| e.sequence == n && matches!(e.kind, EventKind::Token(_)));
        shared += usize::from(with_token(1) && with_token(2));
        ended += events.iter().filter(|e| matches!(e.kind, EventKind::Finished { .. })).count();
    }
    ensure!(shared >= 10, "of 12 tokens of two sequences submitted together {shared} came in the same steps");
    let stats = bench.worker.stats()?.context("no stats")?;
    ensure!(stats.batch_sequences_max >= 2, "stats says {} sequences a step", stats.batch_sequences_max);
    bench.finish()
}

const TEXTS: [&str; 4] =
    [PROMPT, "One two three", "x", "A longer prompt than the others, to be read in the meantime."];

fn isolated(subject: &Subject) -> Result<Outcome> {
    let (mut alone, _) = Bench::ready(subject)?;
    let expected: Vec<Vec<u32>> = (1..)
        .zip(TEXTS)
        .map(|(sequence, text)| Ok(alone.run_text(sequence, text, endless(10))?.ids()))
        .collect::<Result<_>>()?;
    alone.finish()?;
    let (mut bench, _) = Bench::ready(subject)?;
    submit_all(&mut bench, &TEXTS, 10)?;
    for ((sequence, text), expected) in (1..).zip(TEXTS).zip(expected) {
        let reply = bench.worker.collect(sequence)?;
        ensure!(
            reply.ids() == expected,
            "{text:?} answers {expected:?} alone and {:?} among others",
            reply.ids()
        );
    }
    bench.finish()
}

fn wait(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::load(subject, &settings(128, 2))?;
    submit_all(&mut bench, &TEXTS, 6)?;
    for sequence in 1..=TEXTS.len() as u64 {
        let reply = bench.worker.collect(sequence)?;
        ensure!(reply.ids().len() == 6, "sequence {sequence} ended with {:?}", reply.last());
    }
    let stats = bench.worker.stats()?.context("no stats")?;
    ensure!(
        stats.batch_sequences_max <= loaded.sequences_max,
        "{} sequences in a step, and at most {} run",
        stats.batch_sequences_max,
        loaded.sequences_max
    );
    bench.finish()
}

fn cancel_early(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let messages =
        [ToWorker::Submit(Box::new(submit(1, PROMPT, endless(100)))), ToWorker::Cancel { sequence: 1 }];
    bench.worker.send_all(&messages)?;
    let reply = bench.worker.collect(1)?;
    is_cancelled(reply.last())?;
    ensure!(reply.ids().len() <= 1, "{} tokens after it was cancelled", reply.ids().len());
    bench.run_text(2, PROMPT, endless(2)).context("after a cancellation")?;
    bench.finish()
}

/// KV of the long sequence of [`cancel_running`]: long enough that it cannot end by itself before the message arrives.
const KV_BYTES: u64 = 64 << 20;

fn cancel_running(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::open(subject)?;
    let estimate = bench.worker.estimate(&bench.model, &Settings::default())?.context("no estimate")?;
    let kv = estimate.devices.iter().map(|d| d.kv_per_token).max().unwrap_or(1).max(1);
    let context = u32::try_from(KV_BYTES / kv).unwrap_or(u32::MAX).clamp(256, estimate.context_length_max);
    let loaded =
        bench.worker.load(&bench.model, &settings(context, 2), &[])?.context("the model does not load")?;
    submit_all(&mut bench, &[PROMPT], 0)?;
    // It runs.
    let mut tokens = 0;
    while tokens < 2 {
        tokens += bench.worker.wait_for(|message| match message {
            ToNode::Events(events) => {
                Ok(events.iter().filter(|e| matches!(e.kind, EventKind::Token(_))).count())
            }
            other => Err(other),
        })?;
    }
    let other = submit(2, "Something else", endless(5));
    bench.worker.send_all(&[ToWorker::Cancel { sequence: 1 }, ToWorker::Submit(Box::new(other))])?;
    let reply = bench.worker.collect(1)?;
    is_cancelled(reply.last()).with_context(|| format!("with a context of {}", loaded.context_length))?;
    let EventKind::Finished { completion_tokens, .. } = reply.last() else { bail!("not finished") };
    ensure!(
        *completion_tokens as usize == reply.ids().len() + tokens,
        "finished says {completion_tokens} tokens, and there were {} events",
        reply.ids().len() + tokens
    );
    let other = bench.worker.collect(2)?;
    ensure!(other.ids().len() == 5, "the other sequence ended with {:?}", other.last());
    bench.finish()
}

fn is_cancelled(event: &EventKind) -> Result<()> {
    match event {
        EventKind::Finished { reason: FinishReason::Cancelled, .. } => Ok(()),
        other => bail!("a cancelled sequence ended with {other:?}"),
    }
}

fn cancel_nothing(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    bench.worker.send(&ToWorker::Cancel { sequence: 99 })?;
    bench.run_text(1, PROMPT, endless(2))?;
    // Taken up in this order, so 2 is there when the one that has ended is cancelled.
    let next = ToWorker::Submit(Box::new(submit(2, PROMPT, endless(3))));
    bench.worker.send_all(&[next, ToWorker::Cancel { sequence: 1 }])?;
    let reply = bench.worker.collect(2)?;
    ensure!(reply.ids().len() == 3, "a cancelled number ended another sequence: {:?}", reply.last());
    bench.finish()
}

fn stats(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let before = bench.worker.stats()?.context("no stats")?;
    ensure!(
        before.steps == 0 && before.prompt_tokens == 0 && before.completion_tokens == 0,
        "counters do not start at 0: {before:?}"
    );
    let prompt = bench.worker.tokenize(PROMPT, &[])?.context("tokenize")?.len() as u64;
    bench.run_text(1, PROMPT, endless(7))?;
    let second = bench.run_text(2, PROMPT, sampling(5))?.ids().len() as u64;
    let after = bench.worker.stats()?.context("no stats")?;
    ensure!(
        after.completion_tokens == 7 + second,
        "{} completion tokens for {}",
        after.completion_tokens,
        7 + second
    );
    // Less where a prompt was found in a cache.
    ensure!(
        (prompt..=2 * prompt).contains(&after.prompt_tokens),
        "{} prompt tokens for two prompts of {prompt}",
        after.prompt_tokens
    );
    ensure!(after.steps >= 7 + second, "{} steps for {} tokens", after.steps, 7 + second);
    ensure!(
        after.kv_bytes_used == before.kv_bytes_used,
        "sequences have ended, and their KV of {} bytes is still there",
        after.kv_bytes_used
    );
    ensure!(after.kv_bytes_used <= after.kv_bytes_total, "{after:?}");
    bench.finish()
}
