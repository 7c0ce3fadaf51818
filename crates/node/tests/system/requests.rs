//! Requests: one, many, cancelled, refused.

use futures_util::future::join_all;
use node_api::{ApiError, FinishReason, GenerateEvent, ModelSettings, ModelState, TokenizeRequest};

use crate::support::{collect, request, rig, within};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_request_loads_the_model_and_is_answered() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    let reply = collect(rig.generate(&fingerprint, "hello, こんにちは").await).await;
    assert_eq!(reply.text, "hello, こんにちは");
    assert_eq!(reply.finished, Some(FinishReason::Stop));
    assert!(reply.loading > 0 && reply.prompt_tokens > 0, "{reply:?}");
    let state = rig.wait_for("loaded", |s| matches!(s, ModelState::Loaded { .. })).await;
    let ModelState::Loaded { context_length, sequences_max, .. } = state else { panic!("waited for it") };
    assert!(context_length >= 2048 && sequences_max >= 1);
    let again = collect(rig.generate(&fingerprint, "again").await).await;
    assert_eq!((again.text.as_str(), again.loading), ("again", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_answer_has_to_begin_with_reaches_the_engine() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    let mut asked = request(&fingerprint, "abc");
    asked.sampling.begin_with = vec!["xbc".into(), "xbd".into()];
    let reply = collect(within("the stream", rig.link.generate(&asked)).await.unwrap()).await;
    assert_eq!((&*reply.text, reply.finished), ("xbc", Some(FinishReason::Stop)), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_together_share_one_load_and_each_gets_its_own_answer() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    let texts: Vec<String> = (0..12).map(|n| format!("request {n} ").repeat(20)).collect();
    let streams = join_all(texts.iter().map(|text| rig.generate(&fingerprint, text))).await;
    let replies = join_all(streams.into_iter().map(collect)).await;
    for (text, reply) in texts.iter().zip(&replies) {
        assert_eq!(&reply.text, text, "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_ends_its_sequence() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    let mut lines = rig.generate(&fingerprint, &"x".repeat(300_000)).await;
    let first = async { while !matches!(lines.next().await, Some(Ok(GenerateEvent::Token(_)))) {} };
    within("a token", first).await;
    drop(lines);
    let mut status = rig.link.status().await.unwrap();
    let idle =
        async { while status.next().await.expect("the status goes on").unwrap().requests_running > 0 {} };
    within("nothing runs", idle).await;
    assert_eq!(collect(rig.generate(&fingerprint, "after").await).await.text, "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokenizing_loads_the_model_too() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    let text =
        TokenizeRequest { model: "org/echo".into(), fingerprint, text: "abc".into(), literal: Vec::new() };
    assert_eq!(rig.link.tokenize(&text).await.unwrap().ids, [97, 98, 99]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_longer_than_the_context_is_refused_with_both_counts() {
    let rig = rig().await;
    let settings = ModelSettings { context_length: Some(64), ..ModelSettings::default() };
    let fingerprint = rig.put(&rig.manifest(), settings).await;
    rig.wait_for("ready", ModelState::is_ready).await;
    let failed = collect(rig.generate(&fingerprint, &"y".repeat(100)).await).await.failed.unwrap();
    assert_eq!((failed.status, failed.code.as_str()), (400, "context_length_exceeded"), "{failed}");
    assert!(failed.message.contains("100") && failed.message.contains("64"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_does_not_fit_is_refused_with_both_numbers() {
    let rig = rig().await;
    // 4 bytes a token: 4 TiB for a million sequences of a million tokens.
    let settings = ModelSettings {
        context_length: Some(1 << 20),
        sequences_max: Some(1 << 20),
        ..ModelSettings::default()
    };
    let fingerprint = rig.put(&rig.manifest(), settings).await;
    rig.wait_for("ready", ModelState::is_ready).await;
    let failed = collect(rig.generate(&fingerprint, "hello").await).await.failed.unwrap();
    assert_eq!((failed.status, failed.code.as_str()), (507, "out_of_ram"), "{failed}");
    assert!(failed.message.contains(&(4u64 << 40).to_string()), "{failed}");
    assert!(failed.hint.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_models_and_other_registrations_are_refused() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    let code = async |fingerprint: &str, model: &str| {
        let request = node_api::GenerateRequest { model: model.into(), ..request(fingerprint, "x") };
        let error = ApiError::from(rig.link.generate(&request).await.unwrap_err());
        (error.status, error.code)
    };
    assert_eq!(code(&fingerprint, "org/absent").await, (503, "model_not_here".into()));
    assert_eq!(code("0000", "org/echo").await, (503, "model_not_here".into()));
}
