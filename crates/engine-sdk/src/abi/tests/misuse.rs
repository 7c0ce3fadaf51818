//! Hosts that break the rules: a status that says which, and nothing written or read that must not be.

use std::{ffi::c_void, ptr::null, ptr::null_mut};

use engine_abi as c;

use super::harness::*;

fn is_null(said: &Said, name: &str) {
    assert_eq!((said.code, &*said.reason), (c::INTERNAL, "null_argument"));
    assert!(said.message.contains(name), "{said:?}");
}

#[test]
fn null_pointers_are_named_in_every_function() {
    let host = Host::loaded();
    let (api, engine) = (api(), host.engine);
    let (settings, sampling) = (c_settings(), c_sampling());
    let submit = c_submit(1, "a", &sampling);
    let model = c_model(&[]);
    let sink = c::EventSink { context: null_mut(), event: None };
    let mut pending = 5;
    let mut tokens = c::Tokens { struct_size: size_of::<c::Tokens>() as u32, count: 7, ids: null() };
    let (mut estimate, mut loaded, mut stats) = (empty_estimate(), empty_loaded(), empty_stats());
    let mut devices =
        c::Devices { struct_size: size_of::<c::Devices>() as u32, count: 7, element_size: 0, items: null() };
    let mut out = null_mut();
    // SAFETY: every pointer is null or live.
    unsafe {
        let open = api.open.unwrap();
        is_null(&called(|s| open(null(), &raw mut out, s)).unwrap_err(), "host");
        is_null(&called(|s| open(&raw const *host.host, null_mut(), s)).unwrap_err(), "out");
        let silent = c::Host { log: None, ..*host.host };
        is_null(&called(|s| open(&raw const silent, &raw mut out, s)).unwrap_err(), "log");
        assert!(out.is_null(), "untouched");

        let call = api.devices.unwrap();
        is_null(&called(|s| call(null_mut(), &raw mut devices, s)).unwrap_err(), "engine");
        is_null(&called(|s| call(engine, null_mut(), s)).unwrap_err(), "out");
        assert_eq!(devices.count, 7, "untouched");

        let call = api.estimate.unwrap();
        is_null(
            &called(|s| call(null_mut(), &model, &settings, &raw mut estimate, s)).unwrap_err(),
            "engine",
        );
        is_null(&called(|s| call(engine, null(), &settings, &raw mut estimate, s)).unwrap_err(), "model");
        is_null(&called(|s| call(engine, &model, null(), &raw mut estimate, s)).unwrap_err(), "settings");
        is_null(&called(|s| call(engine, &model, &settings, null_mut(), s)).unwrap_err(), "out");

        let call = api.load.unwrap();
        let l = &raw mut loaded;
        is_null(
            &called(|s| call(null_mut(), &model, &settings, null(), 0, null(), l, s)).unwrap_err(),
            "engine",
        );
        is_null(&called(|s| call(engine, null(), &settings, null(), 0, null(), l, s)).unwrap_err(), "model");
        is_null(&called(|s| call(engine, &model, null(), null(), 0, null(), l, s)).unwrap_err(), "settings");
        is_null(&called(|s| call(engine, &model, &settings, null(), 1, null(), l, s)).unwrap_err(), "budget");
        is_null(
            &called(|s| call(engine, &model, &settings, null(), 0, null(), null_mut(), s)).unwrap_err(),
            "out",
        );

        let call = api.tokenize.unwrap();
        let t = &raw mut tokens;
        is_null(&called(|s| call(null_mut(), text("a"), null(), 0, t, s)).unwrap_err(), "engine");
        is_null(
            &called(|s| call(engine, c::Str { data: null(), size: 3 }, null(), 0, t, s)).unwrap_err(),
            "text",
        );
        is_null(&called(|s| call(engine, text("a"), null(), 2, t, s)).unwrap_err(), "literal");
        is_null(&called(|s| call(engine, text("a"), null(), 0, null_mut(), s)).unwrap_err(), "out");
        assert_eq!(tokens.count, 7, "untouched");

        let call = api.submit.unwrap();
        is_null(&called(|s| call(null_mut(), &submit, s)).unwrap_err(), "engine");
        is_null(&called(|s| call(engine, null(), s)).unwrap_err(), "submit");
        let bare = c::Submit { sampling: null(), ..submit };
        is_null(&called(|s| call(engine, &bare, s)).unwrap_err(), "sampling");
        for (broken, name) in [
            (c::Sampling { logit_bias_count: 1, ..sampling }, "logit_bias"),
            (c::Sampling { stop_count: 1, ..sampling }, "stop"),
            (c::Sampling { stop_token_count: 1, ..sampling }, "stop_tokens"),
            (c::Sampling { begin_with_count: 1, ..sampling }, "begin_with"),
            (
                c::Sampling {
                    constraint_kind: c::CONSTRAINT_LARK,
                    constraint: c::Str { data: null(), size: 1 },
                    ..sampling
                },
                "constraint",
            ),
        ] {
            is_null(&host.submit_with(1, "a", &broken).unwrap_err(), name);
        }
        let tokenless = c::Submit { prompt_kind: c::PROMPT_TOKENS, token_count: 1, ..submit };
        is_null(&called(|s| call(engine, &tokenless, s)).unwrap_err(), "tokens");

        let call = api.step.unwrap();
        is_null(&called(|s| call(null_mut(), null(), &sink, &raw mut pending, s)).unwrap_err(), "engine");
        assert_eq!(pending, 0);
        is_null(&called(|s| call(engine, null(), null(), &raw mut pending, s)).unwrap_err(), "sink");
        is_null(&called(|s| call(engine, null(), &sink, &raw mut pending, s)).unwrap_err(), "sink.event");
        is_null(&called(|s| call(engine, null(), &sink, null_mut(), s)).unwrap_err(), "pending");

        let call = api.stats.unwrap();
        is_null(&called(|s| call(null_mut(), &raw mut stats, s)).unwrap_err(), "engine");
        is_null(&called(|s| call(engine, null_mut(), s)).unwrap_err(), "out");

        // These have no status to answer with.
        api.unload.unwrap()(null_mut());
        api.cancel.unwrap()(null_mut(), 1);
        api.close.unwrap()(null_mut());
        // And a host need not want one.
        assert_eq!(api.devices.unwrap()(engine, null_mut(), null_mut()), c::INTERNAL);
    }
}

#[test]
fn a_pointer_at_an_odd_address_is_refused() {
    let host = Host::open();
    let bytes = [0u64; 8];
    let odd = bytes.as_ptr().cast::<u8>().wrapping_add(1).cast_mut().cast::<c::Devices>();
    // SAFETY: refused before it is read.
    is_null(&called(|s| unsafe { api().devices.unwrap()(host.engine, odd, s) }).unwrap_err(), "out");
}

#[test]
fn a_struct_that_does_not_cover_itself_is_an_abi_mismatch() {
    let host = Host::loaded();
    let wrong =
        |said: Said| assert_eq!((said.code, &*said.reason), (c::ABI_MISMATCH, "abi_mismatch"), "{said:?}");
    let model = c::Model { struct_size: 0, ..c_model(&[]) };
    wrong(host.estimate(&model).unwrap_err());
    wrong(host.submit_with(1, "a", &c::Sampling { struct_size: 3, ..c_sampling() }).unwrap_err());
    let mut out = null_mut();
    let bad = c::Host { struct_size: 0, ..*host.host };
    // SAFETY: all pointers are live.
    wrong(called(|s| unsafe { api().open.unwrap()(&raw const bad, &raw mut out, s) }).unwrap_err());
}

#[test]
fn fields_that_a_short_struct_does_not_cover_count_as_zero() {
    let host = Host::loaded();
    // Everything from top_k on is not covered: no limit, and logprobs 0.
    let short = std::mem::offset_of!(c::Sampling, top_k) as u32;
    host.submit_with(1, "x", &c::Sampling { struct_size: short, tokens_max: 1, ..c_sampling() }).unwrap();
    assert_eq!(host.run().last().unwrap(), "1 finished 0 3");
    // Without top_p it is 0, which is out of its range and named.
    let short = std::mem::offset_of!(c::Sampling, top_p) as u32;
    let said = host.submit_with(2, "x", &c::Sampling { struct_size: short, ..c_sampling() }).unwrap_err();
    assert_eq!(said.reason, "invalid_sampling");
    assert!(said.message.contains("top_p"), "{said:?}");
    assert_eq!(said.param, "top_p");
}

#[test]
fn a_longer_struct_of_a_later_host_is_read_as_far_as_it_is_known() {
    #[repr(C)]
    struct Later {
        settings: c::Settings,
        more: [u64; 4],
    }
    let host = Host::open();
    let later = Later {
        settings: c::Settings { struct_size: size_of::<Later>() as u32, context_length: 32, ..c_settings() },
        more: [u64::MAX; 4],
    };
    let progress = c::Progress { context: null_mut(), report: None };
    let loaded = host.load_with(&[], &later.settings, &progress).unwrap();
    assert_eq!((loaded.context_length, later.more), (32, [u64::MAX; 4]));
}

#[test]
fn an_output_is_written_as_far_as_its_size_goes() {
    let host = Host::open();
    let files = [c::File { name: text("config.json"), path: text("/c") }];
    let (model, settings) = (c_model(&files), c_settings());
    let mut loaded = c::Loaded { struct_size: 12, vocabulary_size: 5, end_token_count: 9, ..empty_loaded() };
    // SAFETY: all pointers are live.
    called(|s| unsafe {
        api().load.unwrap()(host.engine, &model, &settings, null(), 0, null(), &raw mut loaded, s)
    })
    .unwrap();
    assert_eq!((loaded.struct_size, loaded.context_length, loaded.sequences_max), (12, 64, 2));
    assert_eq!((loaded.vocabulary_size, loaded.end_token_count), (5, 9), "not covered, not written");

    #[repr(C)]
    struct Later {
        stats: c::Stats,
        more: u64,
    }
    let mut later =
        Later { stats: c::Stats { struct_size: size_of::<Later>() as u32, ..empty_stats() }, more: 0xAB };
    // SAFETY: all pointers are live.
    called(|s| unsafe { api().stats.unwrap()(host.engine, (&raw mut later).cast(), s) }).unwrap();
    assert_eq!((later.stats.kv_bytes_total, later.more), (128, 0xAB));
    assert_eq!(later.stats.struct_size as usize, size_of::<Later>());
}

#[test]
fn a_short_status_is_written_as_far_as_its_size_goes() {
    let host = Host::open();
    let mut status = c::Status { struct_size: 8, ..empty_status() };
    // SAFETY: all pointers are live.
    let code = unsafe { api().devices.unwrap()(host.engine, null_mut(), &raw mut status) };
    assert_eq!((code, status.code, status.reason[0]), (c::INTERNAL, c::INTERNAL, 0));
}

#[test]
fn another_major_version_is_refused_with_both() {
    let host = Host::open();
    let newer = c::Host { abi_major: 2, ..*host.host };
    let mut out = null_mut();
    // SAFETY: all pointers are live.
    let said = called(|s| unsafe { api().open.unwrap()(&raw const newer, &raw mut out, s) }).unwrap_err();
    assert_eq!((said.code, &*said.reason, said.numbers), (c::ABI_MISMATCH, "abi_mismatch", (2, 1)));
}

#[test]
fn opening_twice_is_refused_and_works_after_close() {
    let host = Host::open();
    let mut out = null_mut();
    // SAFETY: all pointers are live.
    let said =
        called(|s| unsafe { api().open.unwrap()(&raw const *host.host, &raw mut out, s) }).unwrap_err();
    assert_eq!((said.code, &*said.reason), (c::UNSUPPORTED, "already_open"));
    drop(host);
    drop(Host::open());
}

#[test]
fn functions_of_the_engine_thread_are_refused_elsewhere() {
    struct Anywhere(*mut c::Engine);
    // SAFETY: sent to show that the rule is kept.
    unsafe impl Send for Anywhere {}

    let host = Host::loaded();
    let engine = Anywhere(host.engine);
    let said = std::thread::spawn(move || {
        let engine = engine;
        let mut stats = empty_stats();
        // SAFETY: the engine is open until the thread is joined.
        called(|s| unsafe { api().stats.unwrap()(engine.0, &raw mut stats, s) }).unwrap_err()
    })
    .join()
    .unwrap();
    assert_eq!((said.code, &*said.reason), (c::INTERNAL, "wrong_thread"));
}

unsafe extern "C" fn call_back_in(context: *mut c_void, _event: *const c::Event) {
    // SAFETY: the context is the test's (engine, what stats said).
    let (engine, said) = unsafe { &mut *context.cast::<(*mut c::Engine, Vec<Said>)>() };
    let mut stats = empty_stats();
    // SAFETY: the engine is open.
    said.push(called(|s| unsafe { api().stats.unwrap()(*engine, &raw mut stats, s) }).unwrap_err());
    // SAFETY: cancel may be called while step runs.
    unsafe { api().cancel.unwrap()(*engine, 1) };
}

#[test]
fn calling_in_from_an_event_is_refused_except_for_cancel() {
    let host = Host::loaded();
    host.submit(1, "a").unwrap();
    let mut context = (host.engine, Vec::<Said>::new());
    let sink = c::EventSink { context: (&raw mut context).cast(), event: Some(call_back_in) };
    let mut pending = 0;
    // SAFETY: all pointers are live.
    called(|s| unsafe { api().step.unwrap()(host.engine, null(), &sink, &raw mut pending, s) }).unwrap();
    assert_eq!((pending, context.1.len()), (1, 2));
    assert!(context.1.iter().all(|said| said.reason == "wrong_thread"));
    assert_eq!(host.step().unwrap(), (vec!["1 finished 2 1".to_owned()], 0));
}

#[test]
fn without_a_model_what_needs_one_says_so() {
    let host = Host::open();
    let reasons = [
        host.submit(1, "a").unwrap_err().reason,
        host.tokenize("a", &[]).unwrap_err().reason,
        host.step().unwrap_err().reason,
    ];
    assert!(reasons.iter().all(|r| r == "model_not_loaded"), "{reasons:?}");
    assert_eq!(host.stats().unwrap().steps, 0);
}

#[test]
fn a_second_model_is_refused_and_the_first_stays() {
    let host = Host::loaded();
    host.submit(1, "z").unwrap();
    let said = host.load(&[]).unwrap_err();
    assert_eq!((said.code, &*said.reason), (c::UNSUPPORTED, "model_already_loaded"));
    assert_eq!(host.run().last().unwrap(), "1 finished 0 1");
}

#[test]
fn values_that_cannot_be_are_refused_by_name() {
    let host = Host::loaded();
    let sampling = c_sampling();
    let refused = |submit: &c::Submit| {
        // SAFETY: all pointers are live.
        called(|s| unsafe { api().submit.unwrap()(host.engine, submit, s) }).unwrap_err()
    };
    let not_utf8 = [0xffu8, 0xfe];
    let bad_text =
        c::Submit { text: c::Str { data: not_utf8.as_ptr().cast(), size: 2 }, ..c_submit(1, "a", &sampling) };
    assert_eq!(refused(&bad_text).reason, "invalid_prompt");
    assert_eq!(
        refused(&c::Submit { prompt_kind: 9, ..c_submit(1, "a", &sampling) }).reason,
        "invalid_prompt"
    );
    assert_eq!(refused(&c_submit(0, "a", &sampling)).reason, "sequence_exists");
    for (wrong, field) in [
        (c::Sampling { flags: 6, ..sampling }, "flags"),
        (c::Sampling { logprobs: -2, ..sampling }, "logprobs"),
        (c::Sampling { logprobs: 21, ..sampling }, "logprobs"),
        (c::Sampling { temperature: f32::NAN, ..sampling }, "temperature"),
        (c::Sampling { constraint_kind: 9, ..sampling }, "constraint"),
        (
            c::Sampling {
                constraint_kind: c::CONSTRAINT_JSON_SCHEMA,
                constraint: c::Str { data: not_utf8.as_ptr().cast(), size: 2 },
                ..sampling
            },
            "constraint",
        ),
    ] {
        let said = refused(&c_submit(1, "a", &wrong));
        assert_eq!(said.reason, "invalid_sampling");
        assert!(said.message.contains(field), "{said:?}");
    }
    let begin_with = [c::Str { data: not_utf8.as_ptr().cast(), size: 2 }];
    let wrong = c::Sampling { begin_with: begin_with.as_ptr(), begin_with_count: 1, ..sampling };
    let said = refused(&c_submit(1, "a", &wrong));
    assert_eq!(said.reason, "invalid_sampling");
    assert!(said.message.contains("begin_with"), "{said:?}");
    let long = "-".repeat(64);
    let said = refused(&c_submit(1, &long, &sampling));
    assert_eq!((&*said.reason, said.numbers), ("context_length_exceeded", (65, 64)));
}
