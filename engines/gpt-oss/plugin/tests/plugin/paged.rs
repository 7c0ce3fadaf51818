//! Paged KV with a real model: what is found again, who gives way, and that nobody's tokens change.

use super::*;

type Loaded = Runner<<GptOss as Engine>::Model>;

fn with(options: &str, sequences: u32, context: u32) -> Loaded {
    let settings = Settings {
        options_json: options.to_owned(),
        sequences_max: Some(sequences),
        context_length: Some(context),
        ..Settings::default()
    };
    load(&demo(), &settings).unwrap()
}

/// The prompts of the recorded conversations one after the other: as much text as is asked for.
fn text(tokens: usize) -> Vec<u32> {
    let all: Vec<u32> = conversations().into_iter().flat_map(|c| c.prompt_token_ids).collect();
    all.into_iter().cycle().take(tokens).collect()
}

fn figure(runner: &Loaded, name: &str) -> u64 {
    let details: serde_json::Value = serde_json::from_str(&runner.memory().details_json).unwrap();
    details["kv"][name].as_u64().unwrap()
}

#[test]
fn a_prompt_is_found_again_by_the_same_caller_and_by_nobody_else() {
    let mut runner = with("{}", 2, 1024);
    let mut ask = |salt: u64, tokens: Vec<u32>| {
        let mut answers = [Answer::default()];
        let sampling = Sampling { tokens_max: 8, ..greedy() };
        runner.submit_salted(1, Prompt::Tokens(tokens), sampling, salt).unwrap();
        run(&mut runner, &mut answers);
        let [answer] = answers;
        (answer.cached_tokens, answer.ids)
    };
    let (cached, first) = ask(7, text(300));
    assert_eq!(cached, 0);
    assert_eq!(ask(8, text(300)), (0, first.clone()), "another caller learns nothing");
    assert_eq!(ask(7, text(300)), (256, first.clone()), "four whole blocks of 64");
    let other_end = [text(200), vec![5; 100]].concat();
    assert_eq!(ask(7, other_end).0, 192, "as far as they agree");
    let next_turn = [text(300), first, text(40)].concat();
    assert_eq!(ask(7, next_turn).0, 256);
    assert!(figure(&runner, "blocks_kept") > 0 && figure(&runner, "blocks_used") == 0);
    let memory = runner.memory();
    assert_eq!(memory.kv_bytes_used, 0, "what is kept counts as free");
    assert!(memory.kv_bytes_total > 0);
}

/// Each request alone in a model of its own, and all of them together where memory is short.
#[test]
fn deterministic_requests_have_the_same_tokens_alone_and_in_a_crowd_with_reuse_and_preemption() {
    const REQUESTS: u64 = 10;
    let request = |n: u64| {
        // Three beginnings; most requests share one with others.
        let start = (n % 3) as usize * 37;
        let mut tokens = text(600)[start..start + 70 + 5 * n as usize].to_vec();
        tokens.push(n as u32);
        let sampling = Sampling {
            temperature: 1.2,
            seed: n,
            tokens_max: 300 + 7 * n as u32,
            ignore_end_tokens: true,
            ..Sampling::default()
        };
        (Prompt::Tokens(tokens), sampling)
    };
    let alone: Vec<Vec<u32>> = (0..REQUESTS)
        .map(|n| {
            let mut runner = with(r#"{"deterministic":true}"#, 1, 512);
            let (prompt, sampling) = request(n);
            let mut answers = [Answer::default()];
            runner.submit(1, prompt, sampling).unwrap();
            run(&mut runner, &mut answers);
            answers[0].ids.clone()
        })
        .collect();
    let mut runner = with(r#"{"deterministic":true,"kv_tokens":256,"prefill_gap_ms":1}"#, 6, 512);
    let mut answers = vec![Answer::default(); REQUESTS as usize];
    for n in 0..REQUESTS {
        let (prompt, sampling) = request(n);
        runner.submit(n + 1, prompt, sampling).unwrap();
    }
    run(&mut runner, &mut answers);
    for (n, (answer, alone)) in answers.iter().zip(&alone).enumerate() {
        assert_eq!(answer.ids, *alone, "request {n}");
        assert_eq!(answer.reason, Some(FinishReason::Length));
    }
    assert!(figure(&runner, "preemptions") > 0, "nobody gave way: {}", runner.memory().details_json);
    assert!(answers.iter().any(|a| a.cached_tokens > 0), "nothing was found again");
    assert!(runner.counters().batch_sequences_max >= 3, "no crowd");
}

#[test]
fn many_share_a_room_that_is_too_small_for_the_longest_of_each() {
    let mut runner = with(r#"{"kv_tokens":1024}"#, 16, 1024);
    let conversations = conversations();
    for (i, conversation) in conversations.iter().enumerate() {
        let prompt = Prompt::Tokens(conversation.prompt_token_ids.clone());
        runner.submit(i as SequenceId + 1, prompt, greedy()).unwrap();
    }
    let mut answers = vec![Answer::default(); conversations.len()];
    run(&mut runner, &mut answers);
    for (conversation, answer) in conversations.iter().zip(&answers) {
        assert_eq!(answer.ids, conversation.completion_token_ids, "{}", conversation.name);
    }
    assert!(runner.counters().batch_sequences_max > 4);
    assert_eq!(figure(&runner, "blocks_used"), 0);
}

#[test]
fn a_prompt_that_fits_nowhere_is_kv_full_with_both_numbers() {
    let mut runner = with(r#"{"kv_tokens":64}"#, 1, 2048);
    let status = runner.submit(1, Prompt::Tokens(text(2000)), greedy()).unwrap_err();
    assert_eq!((status.code, status.reason.as_ref()), (StatusCode::OomRam, "kv_full"));
    assert!(
        status.needed > status.available && status.available == runner.memory().kv_bytes_total,
        "{status}"
    );
    // A short one still runs, and one that grows too long fails by itself.
    let sampling = Sampling { ignore_end_tokens: true, ..greedy() };
    runner.submit(2, Prompt::Tokens(text(20)), sampling).unwrap();
    let mut report = |_, _| true;
    let mut failed = None;
    for _ in 0..STEPS_MAX {
        let mut see = |event: &engine_sdk::Event<'_>| {
            if let EventKind::Failed(status) = &event.kind {
                failed = Some(status.reason.to_string());
            }
        };
        if runner.step(&mut Progress::new(&mut report), &mut see).unwrap() == 0 {
            break;
        }
    }
    assert_eq!(failed.as_deref(), Some("kv_full"));
}

#[test]
fn the_estimate_of_shared_room_is_what_a_load_may_use() {
    let settings = Settings {
        context_length: Some(4096),
        sequences_max: Some(8),
        options_json: r#"{"kv_tokens":5000}"#.to_owned(),
        ..Settings::default()
    };
    let need = &GptOss::estimate(&demo(), &settings).unwrap().devices[0];
    assert_eq!(need.kv_per_token, 0, "it does not grow with the context");
    let exact = need.workspace + 8 * (need.per_sequence + need.kv_fixed);
    let mut report = |_, _| true;
    for (bytes, fits) in [(exact, true), (exact - 1, false)] {
        let budget = [DeviceBytes { device: "cpu".to_owned(), bytes }];
        let loaded = GptOss::load(&demo(), &settings, &budget, &mut Progress::new(&mut report));
        assert_eq!(loaded.map(|_| ()).is_ok(), fits);
    }
}

#[test]
fn a_load_has_blocks_for_all_sequences_at_their_longest_within_what_was_granted() {
    for (context, sequences, batch) in [(512, 2, 256), (1000, 5, 7), (64, 1, 1), (65, 3, 64), (4096, 4, 512)]
    {
        let settings = Settings {
            context_length: Some(context),
            sequences_max: Some(sequences),
            batch_tokens_max: Some(batch),
            ..Settings::default()
        };
        let need = &GptOss::estimate(&demo(), &settings).unwrap().devices[0];
        let granted =
            need.workspace + u64::from(sequences) * (need.kv_fixed + u64::from(context) * need.kv_per_token);
        let budget = [DeviceBytes { device: "cpu".to_owned(), bytes: granted }];
        let mut report = |_, _| true;
        let model = GptOss::load(&demo(), &settings, &budget, &mut Progress::new(&mut report)).unwrap();
        let layout = model.kv().unwrap();
        let needed =
            u64::from(sequences) * layout.blocks_per_sequence(context) + layout.blocks_per_step(batch);
        assert!(u64::from(layout.blocks) >= needed, "{} of {needed} blocks", layout.blocks);
        assert!(u64::from(layout.blocks) * layout.block_bytes < granted);
    }
}
