//! What a well-behaved host sees.

use std::ffi::c_void;

use engine_abi as c;

use super::harness::*;
use crate::testing::{models_held, slots_held};

#[test]
fn the_table_is_complete_and_says_its_version() {
    let api = api();
    assert_eq!(api.struct_size as usize, size_of::<c::EngineApi>());
    assert_eq!((api.abi_major, api.abi_minor, api.reserved), (1, 2, 0));
    // SAFETY: info may be called at any time.
    let info = unsafe { &*api.info.unwrap()() };
    // SAFETY: static text.
    assert_eq!(unsafe { (string(info.id), string(info.version)) }, ("test".to_owned(), "1.2.3".to_owned()));
    // SAFETY: as above.
    assert!(std::ptr::eq(info, unsafe { api.info.unwrap()() }), "constant for the life of the process");
    // SAFETY: get_extension may be called at any time.
    assert!(unsafe { api.get_extension.unwrap()(text("llmr.nothing/1")) }.is_null());
}

#[test]
fn devices_and_needs_are_told() {
    let host = Host::open();
    let expected =
        [("cpu".to_owned(), "the cpu".to_owned(), 1000), ("cpu:1".to_owned(), "the cpu:1".to_owned(), 1000)];
    assert_eq!(host.devices().unwrap(), expected);
    let files = [c::File { name: text("config.json"), path: text("/c") }];
    let estimate = host.estimate(&c_model(&files)).unwrap();
    assert_eq!((estimate.count, estimate.context_length_max), (1, 64));
    // SAFETY: the engine's until the next call.
    let need = unsafe { &*estimate.items };
    assert_eq!(
        (
            need.weights,
            need.weights_mapped,
            need.workspace,
            need.per_sequence,
            need.kv_per_token,
            need.kv_fixed
        ),
        (1, 2, 3, 4, 5, 6)
    );
}

#[test]
fn a_model_loads_answers_and_goes() {
    let host = Host::open();
    let loaded = host.load(&[("cpu", 100)]).unwrap();
    assert_eq!((loaded.context_length, loaded.sequences_max, loaded.vocabulary_size), (64, 2, 260));
    // SAFETY: the engine's until unload.
    let ends = unsafe { std::slice::from_raw_parts(loaded.end_tokens, loaded.end_token_count as usize) };
    assert_eq!(ends, [256]);
    host.submit(9, "x").unwrap();
    assert_eq!(host.step().unwrap(), (vec!["9 started 1".to_owned(), "9 token 121 y".to_owned()], 1));
    let stats = host.stats().unwrap();
    assert_eq!(
        (stats.sequences_running, stats.steps, stats.prompt_tokens, stats.completion_tokens),
        (1, 1, 1, 1)
    );
    assert_eq!((stats.kv_bytes_used, stats.kv_bytes_total, stats.memory_count), (1, 128, 1));
    // SAFETY: the engine's until the next call.
    let told = unsafe { (string((*stats.memory).device), string(stats.details_json)) };
    let details: serde_json::Value = serde_json::from_str(&told.1).unwrap();
    assert_eq!((&*told.0, &details["a"]), ("cpu", &serde_json::json!(1)), "the engine's own");
    assert_eq!(details["prefill"]["gap_ms"], 200, "the scheduler's");
    assert_eq!(host.run(), ["9 token 122 z", "9 token 256 <|end|> control", "9 finished 0 3"]);
    host.unload();
    assert_eq!((models_held(), slots_held()), (0, 0));
    assert_eq!(host.step().unwrap_err().reason, "model_not_loaded");
    host.unload();
    host.load(&[]).unwrap();
}

#[test]
fn unloading_and_closing_free_what_still_runs() {
    let host = Host::loaded();
    host.submit(1, "a").unwrap();
    host.step().unwrap();
    host.unload();
    assert_eq!((models_held(), slots_held()), (0, 0));
    host.load(&[]).unwrap();
    host.submit(1, "a").unwrap();
    host.step().unwrap();
    drop(host);
    assert_eq!((models_held(), slots_held()), (0, 0));
}

#[test]
fn literal_ranges_reach_the_tokenizer() {
    let host = Host::loaded();
    assert_eq!(host.tokenize("<|end|>", &[]).unwrap(), [256]);
    assert_eq!(host.tokenize("<|end|>", &[c::Range { start: 0, end: 7 }]).unwrap().len(), 7);
    assert_eq!(host.tokenize("", &[]).unwrap(), Vec::<u32>::new());
}

#[test]
fn every_field_of_sampling_is_heard() {
    let host = Host::loaded();
    let bias = [c::TokenBias { id: 65, bias: 100.0 }];
    let biased =
        c::Sampling { logit_bias: bias.as_ptr(), logit_bias_count: 1, tokens_max: 1, ..c_sampling() };
    host.submit_with(1, "x", &biased).unwrap();
    assert_eq!(host.run()[1..], ["1 token 65 A", "1 finished 1 1"]);

    let stops = [text("zz"), text("yz")];
    let stopped = c::Sampling { stop: stops.as_ptr(), stop_count: 2, logprobs: 1, ..c_sampling() };
    host.submit_with(2, "x", &stopped).unwrap();
    assert_eq!(host.run()[1..], ["2 token 121 y 121 121", "2 token 122 z 122 122", "2 finished 0 2"]);

    let ends = [121];
    let ended = c::Sampling { stop_tokens: ends.as_ptr(), stop_token_count: 1, ..c_sampling() };
    host.submit_with(3, "x", &ended).unwrap();
    assert_eq!(host.run()[1..], ["3 token 121 y", "3 finished 0 1"]);

    let endless = c::Sampling { flags: c::SAMPLING_IGNORE_END_TOKENS, tokens_max: 2, ..c_sampling() };
    host.submit_with(4, "z", &endless).unwrap();
    assert_eq!(host.run()[1..], ["4 token 256 <|end|> control", "4 token 97 a", "4 finished 1 2"]);

    let texts = [text("qr"), text("kl")];
    let begun =
        c::Sampling { begin_with: texts.as_ptr(), begin_with_count: 2, tokens_max: 2, ..c_sampling() };
    host.submit_with(5, "x", &begun).unwrap();
    assert_eq!(host.run()[1..], ["5 token 107 k", "5 token 108 l", "5 finished 1 2"]);
}

#[test]
fn a_prompt_of_tokens_is_taken() {
    let host = Host::loaded();
    let (tokens, sampling) = ([120u32], c_sampling());
    let submit = c::Submit {
        prompt_kind: c::PROMPT_TOKENS,
        tokens: tokens.as_ptr(),
        token_count: 1,
        ..c_submit(1, "", &sampling)
    };
    // SAFETY: all pointers are live.
    called(|status| unsafe { api().submit.unwrap()(host.engine, &raw const submit, status) }).unwrap();
    assert_eq!(host.run()[..2], ["1 started 1", "1 token 121 y"]);
}

#[test]
fn a_cancel_from_another_thread_ends_the_sequence_at_the_next_step() {
    struct Anywhere(*mut c::Engine);
    // SAFETY: cancel may be called on any thread.
    unsafe impl Send for Anywhere {}

    let host = Host::loaded();
    host.submit(1, "a").unwrap();
    host.submit(2, "a").unwrap();
    host.step().unwrap();
    let engine = Anywhere(host.engine);
    std::thread::spawn(move || {
        let engine = engine;
        for sequence in [1, 55] {
            // SAFETY: the engine is open until the thread is joined.
            unsafe { api().cancel.unwrap()(engine.0, sequence) };
        }
    })
    .join()
    .unwrap();
    assert_eq!(host.step().unwrap(), (vec!["1 finished 2 1".to_owned(), "2 token 99 c".to_owned()], 1));
}

#[test]
fn a_cancel_before_the_submit_of_a_number_is_ignored() {
    let host = Host::loaded();
    host.cancel(1);
    host.submit(1, "z").unwrap();
    assert_eq!(host.run().last().unwrap(), "1 finished 0 1");
}

unsafe extern "C" fn count_and_stop_at(context: *mut c_void, _done: u64, _total: u64) -> u32 {
    // SAFETY: the context is the test's pair (reports so far, answer "stop" from this one on).
    let (reports, stop_at) = unsafe { &mut *context.cast::<(u32, u32)>() };
    *reports += 1;
    u32::from(*reports >= *stop_at)
}

#[test]
fn progress_is_reported_and_can_stop_a_load_and_a_step() {
    let host = Host::open();
    let mut state = (0, 2);
    let progress = c::Progress { context: (&raw mut state).cast(), report: Some(count_and_stop_at) };
    let stopped = host.load_with(&[], &c_settings(), &progress).unwrap_err();
    assert_eq!((stopped.code, &*stopped.reason), (c::CANCELLED, "cancelled"));
    assert_eq!((state.0, models_held()), (2, 0));

    state = (0, u32::MAX);
    let progress = c::Progress { context: (&raw mut state).cast(), report: Some(count_and_stop_at) };
    host.load_with(&[], &c_settings(), &progress).unwrap();
    host.submit(1, "a").unwrap();
    host.step_with(&progress).unwrap();
    assert!(state.0 > 2);
    state = (0, 1);
    let progress = c::Progress { context: (&raw mut state).cast(), report: Some(count_and_stop_at) };
    assert_eq!(host.step_with(&progress).unwrap_err().code, c::CANCELLED);
    assert_eq!(slots_held(), 0);
    host.submit(2, "z").unwrap();
    assert_eq!(host.run().last().unwrap(), "2 finished 0 1");
}

#[test]
fn log_lines_carry_level_and_sequence_and_stop_with_close() {
    let host = Host::open();
    crate::log::warn("careful");
    crate::log::trace("not wanted at this level");
    crate::log::line(crate::LogLevel::Debug, 7, format_args!("about {}", 7));
    assert_eq!(
        *host.lines.lock().unwrap(),
        [(c::LOG_WARN, 0, "careful".to_owned()), (c::LOG_DEBUG, 7, "about 7".to_owned())]
    );
    host.load(&[]).unwrap();
    host.submit(3, "a").unwrap();
    let last = host.lines.lock().unwrap().last().unwrap().clone();
    assert_eq!((last.0, last.1), (c::LOG_DEBUG, 3));
    assert!(last.2.contains("req-1"), "{last:?}");
}
