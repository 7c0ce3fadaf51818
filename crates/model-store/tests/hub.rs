//! The hub client against a hub on real sockets: every refusal told apart, lists in pages, new names, registration.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use fixture_hub::{Fault, FixtureHub, Options, Repo};
use model_manifest::{Format, Request, Rules};
use model_store::{
    HubClient, HubConfig, HubError, RegisterError, Registered, RetryPolicy, Token, register_hub,
};
use url::Url;

const ID: &str = "org/model";

fn model() -> Repo {
    Repo::new(ID)
        .file("config.json", r#"{"model_type": "gpt_oss"}"#)
        .file("tokenizer.json", r#"{"a": 1}"#)
        .file("chat_template.jinja", "{{ messages }}")
        .file("model.safetensors", "weights")
}

fn client(url: &str, token: Option<&str>) -> HubClient {
    let mut config = HubConfig::new(Url::parse(url).unwrap(), "unused".into());
    config.token = token.and_then(|t| Token::new(t, "test").unwrap());
    config.read_timeout = Duration::from_millis(500);
    config.retry = RetryPolicy {
        attempts: 3,
        pause: Duration::from_millis(1),
        pause_max: Duration::from_millis(5),
        wait_max: Duration::from_secs(1),
    };
    HubClient::new(&config).unwrap()
}

async fn register(hub: &FixtureHub, token: Option<&str>) -> Result<Registered, RegisterError> {
    register_hub(&client(hub.url(), token), ID, "main", &Request::default(), &Rules::default()).await
}

#[track_caller]
fn refused(result: Result<Registered, RegisterError>, code: &str, status: u16) -> RegisterError {
    let error = result.unwrap_err();
    assert_eq!((error.code(), error.http_status()), (code, status), "{error}");
    error
}

#[tokio::test]
async fn a_model_is_registered_from_its_list_and_small_files() {
    let repo = model();
    let commit = repo.commit();
    let hub = FixtureHub::start([repo]).await.unwrap();
    let registered = register(&hub, None).await.unwrap();
    let manifest = &registered.manifest;
    assert_eq!((manifest.id.as_str(), manifest.format), (ID, Format::Safetensors));
    assert!(format!("{:?}", manifest.source).contains(&commit));
    assert_eq!(registered.contents["chat_template.jinja"], b"{{ messages }}");
    assert!(!hub.requests().iter().any(|r| r.target.contains("model.safetensors")), "no weights are read");
    // The tokenizer has only a git id on the hub; its sha256 was computed here.
    let expected = "f9d86028c6e0d64e225186f96acb69338b2c59764df79162107f5c4bb34d1310";
    assert_eq!(manifest.file("tokenizer.json").unwrap().sha256, expected);
}

#[tokio::test]
async fn weights_that_lie_in_git_are_hashed_by_reading_them() {
    let repo = Repo::new(ID)
        .never_lfs()
        .file("config.json", r#"{"model_type": "gpt_oss"}"#)
        .file("tokenizer.json", "{}")
        .file("model.safetensors", "abc");
    let hub = FixtureHub::start([repo]).await.unwrap();
    let manifest = register(&hub, None).await.unwrap().manifest;
    let weights = manifest.file("model.safetensors").unwrap();
    assert_eq!(weights.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(weights.git_oid.as_deref(), Some("f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"));
}

#[tokio::test]
async fn absent_and_private_are_one_refusal_with_and_without_a_token() {
    let hub = FixtureHub::start([]).await.unwrap();
    hub.know_token("hf_known");
    let error = refused(register(&hub, None).await, "repository_absent_or_private", 404);
    let text = error.message();
    assert!(text.contains("absent") && text.contains("private") && text.contains(ID), "{text}");
    assert!(error.hint().unwrap().contains("HF_TOKEN"));
    refused(register(&hub, Some("hf_known")).await, "repository_absent_or_private", 404);

    hub.push(model().private());
    refused(register(&hub, None).await, "repository_absent_or_private", 404);
    refused(register(&hub, Some("hf_known")).await, "repository_absent_or_private", 404);
    hub.allow_token("hf_good");
    register(&hub, Some("hf_good")).await.unwrap();
}

#[tokio::test]
async fn gated_says_where_to_ask() {
    let hub = FixtureHub::start([model().gated()]).await.unwrap();
    hub.know_token("hf_known");
    for token in [None, Some("hf_known")] {
        let error = refused(register(&hub, token).await, "repository_gated", 403);
        let hint = error.hint().unwrap();
        assert!(hint.contains(&format!("{}/{ID}", hub.url())), "{hint}");
        assert_eq!(hint.contains("HF_TOKEN"), token.is_none(), "{hint}");
    }
}

#[tokio::test]
async fn a_wrong_token_is_not_a_missing_model() {
    let hub = FixtureHub::start([model()]).await.unwrap();
    let error = refused(register(&hub, Some("hf_wrong")).await, "hub_token_refused", 502);
    assert!(!error.message().contains("hf_wrong"));
}

#[tokio::test]
async fn a_missing_revision_is_named() {
    let hub = FixtureHub::start([model().also_as("refs/pr/1")]).await.unwrap();
    let hub_client = client(hub.url(), None);
    let error = hub_client.info(ID, "v9").await.unwrap_err();
    assert!(matches!(&error, HubError::RevisionAbsent { revision, .. } if revision == "v9"), "{error}");
    assert_eq!(hub_client.info(ID, "refs/pr/1").await.unwrap().commit, model().commit());
}

#[tokio::test]
async fn a_new_name_of_a_repository_is_followed_and_kept() {
    let hub = FixtureHub::start([model()]).await.unwrap();
    hub.rename(ID, "new-org/new-model");
    let manifest = register(&hub, None).await.unwrap().manifest;
    assert_eq!(manifest.id, "new-org/new-model");
}

#[tokio::test]
async fn long_lists_come_in_pages() {
    let mut repo = model();
    for n in 0..25 {
        repo = repo.file(format!("extra/file {n:02}+&.txt"), format!("{n}"));
    }
    let options = Options { page_files_max: 4, ..Options::default() };
    let hub = FixtureHub::start_with(options, [repo]).await.unwrap();
    let hub_client = client(hub.url(), None);
    let commit = hub_client.info(ID, "main").await.unwrap().commit;
    let files = hub_client.list(ID, &commit).await.unwrap();
    assert_eq!(files.len(), 29);
    let mut paths: Vec<_> = files.iter().map(|f| f.path.clone()).collect();
    paths.dedup();
    assert_eq!(paths.len(), 29);
    assert!(hub.requests().iter().filter(|r| r.target.contains("/tree/")).count() >= 8);
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_unreachable() {
    let hub = FixtureHub::start([model()]).await.unwrap();
    let url = hub.url().to_owned();
    drop(hub);
    let error = register_hub(&client(&url, None), ID, "main", &Request::default(), &Rules::default()).await;
    let error = refused(error, "hub_unreachable", 502);
    assert!(error.message().contains("127.0.0.1"), "{}", error.message());
}

#[tokio::test]
async fn limits_and_passing_failures_are_waited_out_within_reason() {
    let hub = FixtureHub::start([model()]).await.unwrap();
    hub.fault("/revision/main", Fault::Status(503), 2);
    register(&hub, None).await.unwrap();
    hub.fault("/revision/main", Fault::RateLimited { retry_after_s: 1 }, 1);
    register(&hub, None).await.unwrap();
    hub.fault("/revision/main", Fault::RateLimited { retry_after_s: 900 }, 1);
    let error = refused(register(&hub, None).await, "hub_rate_limited", 503);
    assert!(error.message().contains("900"), "{}", error.message());
    hub.fault("/revision/main", Fault::Status(500), u32::MAX);
    refused(register(&hub, None).await, "hub_failed", 502);
}

#[tokio::test]
async fn answers_that_make_no_sense_are_refused() {
    for (path, body) in [
        ("/revision/main", "<html>"),
        ("/revision/main", r#"{"id": "org/model"}"#),
        ("/revision/main", r#"{"id": "org/model", "sha": "main"}"#),
        ("/revision/main", r#"{"id": "../../x", "sha": "6cee5e81ee83917806bbde320786a8fb61efebee"}"#),
        ("", "{}"),
        ("config.json", "another file"),
    ] {
        let hub = FixtureHub::start([model()]).await.unwrap();
        let path = if path.is_empty() { format!("/tree/{}", model().commit()) } else { path.to_owned() };
        hub.fault(&path, Fault::Body(body.to_owned()), u32::MAX);
        refused(register(&hub, None).await, "hub_failed", 502);
    }
}

#[tokio::test]
async fn a_cut_in_a_small_file_is_survived() {
    let hub = FixtureHub::start([model()]).await.unwrap();
    hub.fault("config.json", Fault::CutAfter(5), 2);
    hub.fault("tokenizer.json", Fault::CutAfter(3), 1);
    register(&hub, None).await.unwrap();
}

#[tokio::test]
async fn a_hub_that_says_nothing_ends_the_wait() {
    let hub = FixtureHub::start([model()]).await.unwrap();
    hub.fault("config.json", Fault::StallAfter(5), u32::MAX);
    refused(register(&hub, None).await, "hub_unreachable", 502);
}

#[tokio::test]
async fn refused_repositories_are_refused_with_the_file() {
    let hub = FixtureHub::start([model().without("tokenizer.json")]).await.unwrap();
    let error = refused(register(&hub, None).await, "missing_file", 400);
    assert!(error.message().contains("tokenizer.json"));
    assert_eq!(
        hub.requests().iter().filter(|r| r.target.contains("/resolve/")).count(),
        0,
        "nothing was fetched"
    );
}
