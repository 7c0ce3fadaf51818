//! Workers that die with requests on them: who is told what, and who may begin beside whom.

use std::path::Path;

use fixture_hub::Repo;
use model_manifest::Source;
use node_api::{
    ApiError, FinishReason, GenerateEvent, GenerateRequest, ModelSettings, ModelState, NodeStatus,
};
use serde_json::{Value, json};

use crate::support::{Rig, collect, files, manifest, request, rig_with, within};

/// A node with the engine that misbehaves, and its model under these rules.
async fn rig(faults: Value) -> (Rig, String) {
    let engines = tempfile::tempdir().unwrap();
    engine_testkit::build::install_engine("fault", "0.1.0", engines.path()).unwrap();
    let folder = engines.path().to_owned();
    let rig = rig_with(move |config| config.engine_dirs = vec![folder]).await;
    // Kept for as long as the node runs: the test's process is short.
    let _ = engines.keep();
    let mut named = Vec::new();
    for (name, role, bytes) in files() {
        let bytes = match name {
            "config.json" => br#"{"model_type": "fault", "max_position_embeddings": 4096}"#.to_vec(),
            _ => bytes,
        };
        named.push((name, role, bytes));
    }
    let repo =
        named.iter().fold(Repo::new("org/fault"), |repo, (name, _, bytes)| repo.file(*name, bytes.clone()));
    let source = Source::Hub { repo: "org/fault".into(), revision: "main".into(), commit: repo.commit() };
    rig.hub.push(repo);
    let mut manifest = manifest(source);
    manifest.id = "org/fault".into();
    manifest.architecture = "fault".into();
    manifest.runtimes = vec!["fault".into()];
    for file in &mut manifest.files {
        let (_, _, bytes) = named.iter().find(|(name, ..)| *name == file.name).unwrap();
        file.size = bytes.len() as u64;
        file.sha256 = crate::support::sha256(bytes);
    }
    let options = json!({ "faults": faults }).as_object().unwrap().clone();
    let settings = ModelSettings { sequences_max: Some(8), options, ..ModelSettings::default() };
    let fingerprint = rig.put(&manifest, settings).await;
    rig.wait_for("ready", ModelState::is_ready).await;
    (rig, fingerprint)
}

fn ask(fingerprint: &str, text: &str, worker_deaths: u32) -> GenerateRequest {
    GenerateRequest { model: "org/fault".into(), worker_deaths, ..request(fingerprint, text) }
}

async fn failed(rig: &Rig, request: &GenerateRequest) -> (String, ApiError) {
    let reply = collect(within("the stream", rig.link.generate(request)).await.unwrap()).await;
    (reply.text.clone(), reply.failed.unwrap_or_else(|| panic!("it did not fail: {}", reply.text)))
}

async fn status(rig: &Rig, what: &str, wanted: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
    let mut lines = rig.link.status().await.unwrap();
    within(what, async {
        loop {
            let status = lines.next().await.expect("the status goes on").unwrap();
            if wanted(&status) {
                return status;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_before_the_first_token_is_told_as_one_and_the_next_request_is_served() {
    let (rig, fingerprint) = rig(json!([{"at": "step", "do": "abort", "prompt": "poison"}])).await;
    let (text, error) = failed(&rig, &ask(&fingerprint, "poison", 0)).await;
    assert_eq!((text.as_str(), error.code.as_str(), error.status), ("", "worker_died", 500), "{error}");
    assert!(error.worker_died && error.retry, "{error:?}");
    let reply = collect(rig.link.generate(&ask(&fingerprint, "hello", 0)).await.unwrap()).await;
    assert_eq!((reply.text.as_str(), reply.finished), ("hello", Some(FinishReason::Stop)), "{reply:?}");
    let status = status(&rig, "the count", |s| s.counters.requests_interrupted > 0).await;
    assert_eq!((status.counters.requests, status.counters.requests_interrupted), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_after_tokens_ends_the_stream_with_the_cause() {
    let (rig, fingerprint) =
        rig(json!([{"at": "step", "do": "segfault", "prompt": "late", "token": 2}])).await;
    let (text, error) = failed(&rig, &ask(&fingerprint, "late", 0)).await;
    assert!(!text.is_empty() && "late".starts_with(&text), "{text}");
    assert!(error.worker_died && error.code == "worker_died", "{error:?}");
    assert!(error.message.contains("signal") || cfg!(windows), "the cause is named: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_is_ended_and_the_cause_is_named() {
    let (rig, fingerprint) = rig(json!([{"at": "step", "do": "hang", "prompt": "still", "token": 1}])).await;
    let (_, error) = failed(&rig, &ask(&fingerprint, "still", 0)).await;
    assert!(error.worker_died && error.code == "worker_hung", "{error:?}");
    let reply = collect(rig.link.generate(&ask(&fingerprint, "hello", 0)).await.unwrap()).await;
    assert_eq!(reply.text, "hello", "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_seen_a_death_waits_for_a_worker_also_in_a_crash_loop() {
    let (rig, fingerprint) = rig(json!([{"at": "step", "do": "abort", "prompt": "poison"}])).await;
    for _ in 0..3 {
        let (_, error) = failed(&rig, &ask(&fingerprint, "poison", 0)).await;
        assert!(error.worker_died, "{error:?}");
    }
    // The third death in a row makes a loop of it: the next start is a second away.
    let suspect = collect(rig.link.generate(&ask(&fingerprint, "suspect", 1)).await.unwrap()).await;
    assert_eq!((suspect.text.as_str(), suspect.failed), ("suspect", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_has_seen_a_death_waits_until_the_others_have_begun_and_is_heard_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let hold = json!([{"at": "step", "do": {"hold": {"file": file}}, "prompt": "slow"}]);
    let (rig, fingerprint) = rig(hold).await;
    let slow = rig.link.generate(&ask(&fingerprint, "slow", 0)).await.unwrap();
    status(&rig, "the slow one to run", |s| s.requests_running == 1).await;
    let mut suspect = rig.link.generate(&ask(&fingerprint, "suspect", 1)).await.unwrap();
    // It says that it lives, and is on no worker.
    let first = within("a sign of life", suspect.next()).await.unwrap().unwrap();
    assert_eq!(first, GenerateEvent::Alive);
    let now = status(&rig, "both", |s| s.requests_running + s.requests_waiting == 2).await;
    assert_eq!((now.requests_running, now.requests_waiting), (1, 1));
    go(&file);
    let (slow, suspect) = tokio::join!(collect(slow), collect(suspect));
    assert_eq!((slow.text.as_str(), suspect.text.as_str()), ("slow", "suspect"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_takes_nobody_along_who_waits_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let hold = json!([
        {"at": "step", "do": {"hold": {"file": file}}, "prompt": "poison"},
        {"at": "step", "do": "abort", "prompt": "poison"},
    ]);
    let (rig, fingerprint) = rig(hold).await;
    let poison = rig.link.generate(&ask(&fingerprint, "poison", 0)).await.unwrap();
    status(&rig, "the poison to run", |s| s.requests_running == 1).await;
    let suspect = rig.link.generate(&ask(&fingerprint, "suspect", 1)).await.unwrap();
    status(&rig, "the suspect to wait", |s| s.requests_waiting == 1).await;
    go(&file);
    let (poison, suspect) = tokio::join!(collect(poison), collect(suspect));
    assert!(poison.failed.is_some_and(|e| e.worker_died));
    assert_eq!(suspect.text, "suspect", "{suspect:?}");
}

fn go(file: &Path) {
    std::fs::write(file, "").unwrap();
}
