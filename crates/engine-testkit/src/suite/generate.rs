//! One sequence: its events, what ends it, how its tokens are chosen.

use anyhow::{Context as _, Result, bail, ensure};
use engine_protocol::{Constraint, EventKind, FinishReason, Sampling, ToNode, ToWorker, TokenLogprob};
use serde_json::{Value, json};

use super::bench::{Bench, CONTEXT, PROMPT, endless, sampling, settings, submit, submit_tokens};
use super::{Case, Outcome, Subject};
use crate::worker::Reply;

pub const CASES: [Case; 13] = [
    Case {
        name: "events_come_in_order",
        promise: "started, one event for each token, finished with their number",
        run: order,
    },
    Case {
        name: "one_token_an_event_and_a_step",
        promise: "no token is kept back to leave with the next one",
        run: one_per_step,
    },
    Case {
        name: "tokens_max_is_kept",
        promise: "not a token more, and the reason is length",
        run: tokens_max,
    },
    Case {
        name: "context_end_is_kept",
        promise: "prompt and answer fill the context and no more",
        run: context_end,
    },
    Case {
        name: "end_tokens_end_an_answer",
        promise: "an end token is the last event before finished, and nothing else says stop",
        run: end_tokens,
    },
    Case {
        name: "tokens_min_is_kept",
        promise: "end tokens are not chosen before tokens_min tokens",
        run: tokens_min,
    },
    Case {
        name: "stop_string_ends_at_its_token",
        promise: "the token that completes a stop string is the last",
        run: stop_string,
    },
    Case { name: "stop_token_ends_an_answer", promise: "a stop token is the last", run: stop_token },
    Case {
        name: "begin_with_is_honoured_or_refused",
        promise: "the answer begins with one of the texts, or the engine says that it cannot do that",
        run: begin_with,
    },
    Case {
        name: "constraint_is_honoured_or_refused",
        promise: "the answer fits the schema and ends there; an engine without the capability says that it cannot do that",
        run: constraint,
    },
    Case {
        name: "same_seed_same_answer",
        promise: "seed, prompt and values decide the answer",
        run: repeatable,
    },
    Case {
        name: "logprobs_only_when_asked",
        promise: "no logprobs unless asked for; then the chosen token's and those of the n most likely, best first",
        run: logprobs,
    },
    Case {
        name: "prompt_that_just_fits_is_taken",
        promise: "a prompt that leaves room for one token gets one",
        run: just_fits,
    },
];

fn order(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let reply = bench.run_text(1, PROMPT, endless(8))?;
    let [
        EventKind::Started { prompt_tokens, cached_tokens },
        middle @ ..,
        EventKind::Finished { completion_tokens, .. },
    ] = &reply.events[..]
    else {
        bail!("expected started, tokens, finished: {:?}", reply.events)
    };
    ensure!(*prompt_tokens > 0 && cached_tokens <= prompt_tokens, "{:?}", reply.events[0]);
    ensure!(
        middle.iter().all(|e| matches!(e, EventKind::Token(_))),
        "something else than tokens between started and finished: {middle:?}"
    );
    ensure!(
        *completion_tokens as usize == middle.len(),
        "finished says {completion_tokens} tokens, and there were {} events",
        middle.len()
    );
    bench.finish()
}

fn one_per_step(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    bench.worker.send(&ToWorker::Submit(Box::new(submit(1, PROMPT, endless(16)))))?;
    let mut tokens = 0;
    loop {
        let ToNode::Events(events) = bench.worker.next_message()? else { continue };
        let of_step = events.iter().filter(|e| matches!(e.kind, EventKind::Token(_))).count();
        ensure!(
            of_step <= 1,
            "{of_step} tokens of one sequence in one step: the earlier ones were kept back"
        );
        tokens += of_step;
        if events.iter().any(|e| matches!(e.kind, EventKind::Finished { .. })) {
            break;
        }
    }
    ensure!(tokens == 16, "{tokens} tokens for 16");
    let stats = bench.worker.stats()?.context("no stats")?;
    ensure!(stats.steps >= 16, "{} steps made 16 tokens of one sequence", stats.steps);
    bench.finish()
}

fn ended(reply: &Reply, reason: FinishReason) -> Result<()> {
    match reply.last() {
        EventKind::Finished { reason: r, .. } if *r == reason => Ok(()),
        other => bail!("expected the reason {reason:?}, got {other:?} after {} tokens", reply.ids().len()),
    }
}

fn tokens_max(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    for (sequence, count) in [(1, 1), (2, 5)] {
        let reply = bench.run_text(sequence, PROMPT, endless(count))?;
        ensure!(reply.ids().len() == count as usize, "{} tokens for tokens_max {count}", reply.ids().len());
        ended(&reply, FinishReason::Length)?;
    }
    bench.finish()
}

fn context_end(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::load(subject, &settings(64, 1))?;
    let prompt = bench.worker.tokenize(PROMPT, &[])?.context("tokenize")?;
    let room = loaded.context_length as usize - prompt.len();
    for (sequence, asked) in [(1, 0), (2, 100_000)] {
        let reply = bench.run_text(sequence, PROMPT, endless(asked))?;
        ensure!(
            reply.ids().len() == room,
            "{} tokens, and a context of {} with a prompt of {} has room for {room}",
            reply.ids().len(),
            loaded.context_length,
            prompt.len()
        );
        ended(&reply, FinishReason::Length)?;
    }
    bench.finish()
}

fn end_tokens(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    let reply = bench.run_text(1, PROMPT, sampling(CONTEXT / 2))?;
    let ids = reply.ids();
    let (last, before) = ids.split_last().context("an answer without tokens")?;
    let ends = |id: &u32| loaded.end_tokens.contains(id);
    ensure!(!before.iter().any(ends), "an end token ended nothing: {ids:?}, ends {:?}", loaded.end_tokens);
    ended(&reply, if ends(last) { FinishReason::Stop } else { FinishReason::Length })?;
    bench.finish()
}

fn tokens_min(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    // The shortest answer there is, made longer by two tokens.
    let natural = bench.run_text(1, "a", sampling(CONTEXT / 2))?.ids().len() as u32;
    let least = natural + 2;
    let reply = bench.run_text(2, "a", Sampling { tokens_min: least, ..sampling(CONTEXT / 2 + 4) })?;
    let early = reply.ids().into_iter().take(least as usize).find(|id| loaded.end_tokens.contains(id));
    ensure!(early.is_none(), "the end token {early:?} came before {least} tokens: {:?}", reply.ids());
    ensure!(reply.ids().len() >= least as usize, "{} tokens for at least {least}", reply.ids().len());
    bench.finish()
}

/// Where a text first contains `stop`, as the number of tokens up to there.
fn tokens_until(reply: &Reply, stop: &[u8]) -> Option<usize> {
    let mut text = Vec::new();
    reply.tokens().position(|token| {
        if !token.control {
            text.extend_from_slice(&token.bytes);
        }
        text.windows(stop.len()).any(|w| w == stop)
    })
}

fn stop_string(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let free = bench.run_text(1, PROMPT, endless(24))?;
    // From the middle of the answer, over more than one token where they are text.
    let pieces: Vec<&[u8]> =
        free.tokens().filter(|t| !t.control).map(|t| &t.bytes[..]).skip(3).take(3).collect();
    let Some(stop) = String::from_utf8(pieces.concat()).ok().filter(|s| !s.is_empty()) else {
        bench.finish()?;
        return Ok(Outcome::NotApplicable("the answer has no text to stop at".to_owned()));
    };
    let expected = tokens_until(&free, stop.as_bytes()).context("the text is in the answer")? + 1;
    for (sequence, list) in [(2, vec![stop.clone()]), (3, vec!["never \u{1}".to_owned(), stop.clone()])] {
        let reply = bench.run_text(sequence, PROMPT, Sampling { stop: list, ..endless(24) })?;
        ensure!(
            reply.ids() == free.ids()[..expected],
            "stop {stop:?} is complete after {expected} tokens, and the answer has {}",
            reply.ids().len()
        );
        ended(&reply, FinishReason::Stop)?;
    }
    bench.finish()
}

fn stop_token(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let free = bench.run_text(1, PROMPT, endless(8))?.ids();
    let stop = free[3];
    let expected = free.iter().position(|id| *id == stop).context("it is in the answer")? + 1;
    let reply = bench.run_text(2, PROMPT, Sampling { stop_tokens: vec![stop], ..endless(8) })?;
    ensure!(
        reply.ids() == free[..expected],
        "stop token {stop}: expected {:?}, got {:?}",
        &free[..expected],
        reply.ids()
    );
    ended(&reply, FinishReason::Stop)?;
    bench.finish()
}

/// Tokens enough for a text of [`begin_with`], one byte each, and a few more.
const BEGIN_TOKENS: u32 = 24;

fn begin_with(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let drawn = Sampling { temperature: 2.0, seed: 7, ..sampling(BEGIN_TOKENS) };
    let lists: [&[&str]; 3] = [&["qz_17 x"], &["one_thing", "one", "other_thing"], &["\u{e9}t\u{e9}"]];
    let all = [sampling(BEGIN_TOKENS), endless(BEGIN_TOKENS), drawn];
    let asked = lists.iter().flat_map(|list| all.iter().map(move |sampling| (*list, sampling)));
    for (sequence, (texts, free)) in (1..).zip(asked) {
        let begin_with = texts.iter().map(|text| (*text).to_owned()).collect();
        let asked = submit(sequence, PROMPT, Sampling { begin_with, ..free.clone() });
        let reply = bench.worker.run(asked)?;
        if let Some(status) = reply.failure() {
            ensure!(
                status.reason == "invalid_sampling" && status.message.contains("begin_with"),
                "{texts:?} was neither honoured nor refused as begin_with: {status}"
            );
            continue;
        }
        let text: Vec<u8> =
            reply.tokens().take_while(|t| !t.control).flat_map(|t| t.bytes.iter().copied()).collect();
        ensure!(
            texts.iter().any(|begin| text.starts_with(begin.as_bytes())),
            "the answer was to begin with one of {texts:?}, and is {:?}",
            String::from_utf8_lossy(&text)
        );
    }
    let empty = Sampling { begin_with: vec![String::new()], ..sampling(2) };
    bench.refused("an empty text in begin_with", submit(100, PROMPT, empty), "invalid_sampling")?;
    bench.finish()
}

/// Tokens enough for an answer of [`constraint`], one byte each, with all the white space that JSON may have.
const CONSTRAINED_TOKENS: u32 = 200;

/// Schemas, and whether an answer to them fits.
type Fits = fn(&Value) -> bool;
const SCHEMAS: [(&str, Fits); 3] = [
    (r#"{"type": "string", "pattern": "^[b-d]{3,8}$"}"#, |answer| {
        answer.as_str().is_some_and(|text| {
            (3..=8).contains(&text.len()) && text.bytes().all(|byte| (b'b'..=b'd').contains(&byte))
        })
    }),
    (
        r#"{"type": "object", "properties": {"q": {"type": "boolean"}}, "required": ["q"], "additionalProperties": false}"#,
        |answer| answer.as_object().is_some_and(|object| object.len() == 1 && object["q"].is_boolean()),
    ),
    (r#"{"enum": ["a<b>", 17, null]}"#, |answer| [json!("a<b>"), json!(17), Value::Null].contains(answer)),
];

fn constraint(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let can = bench.manifest.capabilities.iter().any(|capability| capability == "constraint");
    let drawn = |seed| Sampling { temperature: 2.0, seed, ..sampling(CONSTRAINED_TOKENS) };
    let all = [sampling(CONSTRAINED_TOKENS), drawn(7), drawn(8)];
    let asked = SCHEMAS.iter().flat_map(|schema| all.iter().map(move |sampling| (schema, sampling)));
    for (sequence, ((schema, fits), free)) in (1..).zip(asked) {
        let constraint = Some(Constraint::JsonSchema((*schema).to_owned()));
        let asked = submit(sequence, PROMPT, Sampling { constraint, ..free.clone() });
        if !can {
            let status =
                bench.refused("a constraint that the manifest does not name", asked, "invalid_sampling")?;
            ensure!(status.message.contains("constraint"), "the refusal names another field: {status}");
            continue;
        }
        let reply = bench.worker.run(asked)?;
        ended(&reply, FinishReason::Stop)?;
        let text: Vec<u8> =
            reply.tokens().filter(|t| !t.control).flat_map(|t| t.bytes.iter().copied()).collect();
        let answer = serde_json::from_slice::<Value>(&text);
        ensure!(
            answer.as_ref().is_ok_and(fits),
            "the answer to {schema} is {:?}",
            String::from_utf8_lossy(&text)
        );
    }
    for wrong in [Constraint::JsonSchema("{".to_owned()), Constraint::Lark("start: (".to_owned())] {
        let asked = submit(100, PROMPT, Sampling { constraint: Some(wrong), ..sampling(2) });
        bench.refused("a constraint that says nothing", asked, "invalid_sampling")?;
    }
    bench.finish()
}

fn repeatable(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let greedy = endless(12);
    let drawn = Sampling { temperature: 1.5, seed: 42, ..endless(12) };
    for (sequence, sampling) in [(1, greedy), (10, drawn)] {
        let first = bench.run_text(sequence, PROMPT, sampling.clone())?;
        // Something else in between must not matter.
        bench.run_text(sequence + 1, "Another one", endless(3))?;
        let second = bench.run_text(sequence + 5, PROMPT, sampling.clone())?;
        ensure!(
            first.ids() == second.ids(),
            "temperature {}: {:?}, and the second time {:?}",
            sampling.temperature,
            first.ids(),
            second.ids()
        );
    }
    bench.finish()
}

fn logprobs(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    let without = bench.run_text(1, PROMPT, endless(4))?;
    ensure!(without.tokens().all(|t| t.logprobs.is_empty()), "logprobs came that nobody asked for");
    for (sequence, asked) in [(2, 0), (3, 4), (4, 20)] {
        let reply = bench.run_text(sequence, PROMPT, Sampling { logprobs: Some(asked), ..endless(4) })?;
        ensure!(reply.ids() == without.ids(), "logprobs change the answer");
        let expected = 1 + asked.min(loaded.vocabulary_size) as usize;
        for token in reply.tokens() {
            ensure!(
                token.logprobs.len() == expected,
                "{} logprobs for {asked} alternatives; expected {expected}",
                token.logprobs.len()
            );
            check_logprobs(token.id, &token.bytes, &token.logprobs)?;
        }
    }
    bench.finish()
}

/// Rounding of sums of exponentials in f32.
const LOGPROB_SLACK: f32 = 1e-3;

fn check_logprobs(id: u32, bytes: &[u8], logprobs: &[TokenLogprob]) -> Result<()> {
    let (chosen, best) = logprobs.split_first().context("at least the chosen token's")?;
    ensure!(
        chosen.id == id && chosen.bytes == bytes,
        "the first logprob is not the chosen token's: {logprobs:?}"
    );
    ensure!(
        logprobs.iter().all(|l| l.logprob <= LOGPROB_SLACK && l.logprob.is_finite()),
        "a logarithm of no probability: {logprobs:?}"
    );
    ensure!(best.is_sorted_by(|a, b| a.logprob >= b.logprob), "not best first: {best:?}");
    let different: std::collections::HashSet<u32> = best.iter().map(|l| l.id).collect();
    ensure!(different.len() == best.len(), "the same token twice: {best:?}");
    let sum: f32 = best.iter().map(|l| l.logprob.exp()).sum();
    ensure!(sum <= 1.0 + LOGPROB_SLACK, "probabilities add up to {sum}: {best:?}");
    if let Some(first) = best.first() {
        ensure!(
            (first.logprob - chosen.logprob).abs() <= LOGPROB_SLACK,
            "greedy decoding chose a token of {} where {} has {}",
            chosen.logprob,
            first.id,
            first.logprob
        );
    }
    Ok(())
}

fn just_fits(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::load(subject, &settings(32, 1))?;
    let piece = bench.worker.tokenize("a", &[])?.context("tokenize")?[0];
    let prompt = vec![piece; loaded.context_length as usize - 1];
    let reply = bench.worker.run(submit_tokens(1, prompt, endless(0)))?;
    ensure!(reply.ids().len() == 1, "one token fits, and there came {:?}", reply.events);
    ended(&reply, FinishReason::Length)?;
    bench.finish()
}
