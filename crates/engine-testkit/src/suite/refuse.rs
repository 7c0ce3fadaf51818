//! What is refused, with which code, reason and numbers.

use anyhow::{Context as _, Result, bail, ensure};
use engine_protocol::{Prompt, Sampling, Settings, StatusCode, Submit};

use super::bench::{Bench, CONTEXT, PROMPT, endless, sampling, settings, submit, submit_tokens};
use super::{Case, Outcome, Subject};

pub const CASES: [Case; 5] = [
    Case {
        name: "context_exceeded_has_both_numbers",
        promise: "a prompt that leaves no room is refused: its tokens and one, and the context",
        run: context,
    },
    Case {
        name: "bad_prompts_are_refused",
        promise: "an empty prompt and token ids outside the vocabulary are refused",
        run: prompts,
    },
    Case {
        name: "bad_sampling_is_refused",
        promise: "values out of range are refused, none is changed silently",
        run: bad_sampling,
    },
    Case { name: "unknown_option_is_refused", promise: "an option nobody knows is no option", run: option },
    Case { name: "unknown_device_is_refused", promise: "a device that is not there is named", run: device },
];

fn context(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::load(subject, &settings(32, 1))?;
    let piece = bench.worker.tokenize("a", &[])?.context("tokenize")?[0];
    for (sequence, over) in [(1, 0), (2, 7)] {
        let length = loaded.context_length + over;
        let prompt = submit_tokens(sequence, vec![piece; length as usize], sampling(1));
        let status = bench.refused("a prompt as long as the context", prompt, "context_length_exceeded")?;
        let expected = (u64::from(length) + 1, u64::from(loaded.context_length));
        ensure!(
            (status.needed, status.available) == expected,
            "expected needed and available to be {expected:?}: {status}"
        );
    }
    bench.run_text(3, PROMPT, endless(1)).context("after a refusal")?;
    bench.finish()
}

fn prompts(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    bench.refused("an empty text", submit(1, "", sampling(1)), "empty_prompt")?;
    bench.refused("no tokens", submit_tokens(2, Vec::new(), sampling(1)), "empty_prompt")?;
    for (sequence, id) in [(3, loaded.vocabulary_size), (4, u32::MAX)] {
        bench.refused(
            "a token outside the vocabulary",
            submit_tokens(sequence, vec![id], sampling(1)),
            "invalid_prompt",
        )?;
    }
    bench.run_text(5, PROMPT, endless(1)).context("after a refusal")?;
    bench.finish()
}

fn bad_sampling(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    let good = || sampling(2);
    let bad = [
        ("temperature -1", Sampling { temperature: -1.0, ..good() }),
        ("temperature NaN", Sampling { temperature: f32::NAN, ..good() }),
        ("temperature 2.5", Sampling { temperature: 2.5, ..good() }),
        ("top_p 0", Sampling { top_p: 0.0, ..good() }),
        ("top_p 1.5", Sampling { top_p: 1.5, ..good() }),
        ("top_p NaN", Sampling { top_p: f32::NAN, ..good() }),
        ("min_p -0.1", Sampling { min_p: -0.1, ..good() }),
        ("min_p 1.5", Sampling { min_p: 1.5, ..good() }),
        ("presence_penalty 3", Sampling { presence_penalty: 3.0, ..good() }),
        ("frequency_penalty infinite", Sampling { frequency_penalty: f32::INFINITY, ..good() }),
        ("repetition_penalty 0", Sampling { repetition_penalty: 0.0, ..good() }),
        ("logit_bias 101", Sampling { logit_bias: vec![(0, 101.0)], ..good() }),
        ("logit_bias NaN", Sampling { logit_bias: vec![(0, f32::NAN)], ..good() }),
        ("an empty stop string", Sampling { stop: vec![String::new()], ..good() }),
        ("a stop token outside", Sampling { stop_tokens: vec![loaded.vocabulary_size], ..good() }),
        ("logprobs 21", Sampling { logprobs: Some(21), ..good() }),
    ];
    for (sequence, (what, sampling)) in (1..).zip(bad) {
        bench.refused(what, submit(sequence, PROMPT, sampling), "invalid_sampling")?;
    }
    // What is honoured or refused, and neither ignored nor fatal.
    let prompt = || Prompt::Text { text: PROMPT.to_owned(), literal: Vec::new() };
    let biased = Sampling { logit_bias: vec![(5, 100.0)], ..endless(1) };
    let reply = bench.worker.run(Submit { prompt: prompt(), ..submit(100, "", biased) })?;
    match reply.failure() {
        Some(status) => ensure!(status.reason == "invalid_sampling", "logit_bias: {status}"),
        None => ensure!(reply.ids() == [5], "a bias of 100 for token 5 was ignored: {:?}", reply.ids()),
    }
    bench.finish()
}

fn refused_settings(subject: &Subject, settings: &Settings, reason: &str) -> Result<Outcome> {
    let mut bench = Bench::open(subject)?;
    for (what, status) in [
        ("estimate", bench.worker.estimate(&bench.model, settings)?.err()),
        ("load", bench.worker.load(&bench.model, settings, &[])?.err()),
    ] {
        let Some(status) = status else { bail!("{what} took {settings:?}") };
        ensure!(
            status.code == StatusCode::Unsupported && status.reason == reason,
            "{what}: expected UNSUPPORTED ({reason}), got {status}"
        );
    }
    bench.finish()
}

fn option(subject: &Subject) -> Result<Outcome> {
    let options_json = r#"{"no_such_option_of_any_engine": 1}"#.to_owned();
    refused_settings(subject, &Settings { options_json, ..settings(CONTEXT, 1) }, "unknown_option")
}

fn device(subject: &Subject) -> Result<Outcome> {
    let devices = vec!["toaster:7".to_owned()];
    refused_settings(subject, &Settings { devices, ..settings(CONTEXT, 1) }, "unknown_device")
}
