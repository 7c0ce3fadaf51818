//! Workers that die, talk nonsense or never speak: the node lives on and says why.
#![cfg(unix)]

use node::WorkerProgram;
use node_api::{EngineState, GenerateEvent, ModelState};

use crate::support::{collect, rig, rig_with, signal, within};

fn worker_of(state: &ModelState) -> u32 {
    match state {
        ModelState::Loaded { worker, .. } => *worker,
        other => panic!("not loaded: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_costs_its_requests_and_the_next_one_is_served_by_another() {
    let rig = rig().await;
    let fingerprint = rig.ready().await;
    collect(rig.generate(&fingerprint, "load").await).await;
    let loaded = |state: &ModelState| matches!(state, ModelState::Loaded { .. });
    let first = worker_of(&rig.wait_for("loaded", loaded).await);
    let mut lines = rig.generate(&fingerprint, &"x".repeat(500_000)).await;
    let token = async { while !matches!(lines.next().await, Some(Ok(GenerateEvent::Token(_)))) {} };
    within("a token", token).await;
    signal("-9", first);
    let failed = collect(lines).await.failed.expect("the worker is dead");
    assert_eq!((failed.status, failed.code.as_str()), (500, "worker_died"), "{failed}");
    assert!(failed.message.contains("signal 9"), "{failed}");

    let reply = collect(rig.generate(&fingerprint, "next").await).await;
    assert_eq!(reply.text, "next", "{reply:?}");
    assert_ne!(worker_of(&rig.wait_for("loaded", loaded).await), first);
}

async fn failure_with(script: &str) -> node_api::ApiError {
    let program =
        WorkerProgram { executable: "/bin/sh".into(), arguments: vec!["-c".into(), script.to_owned()] };
    let rig = rig_with(|config| config.worker = program).await;
    let fingerprint = rig.ready().await;
    let failed = collect(rig.generate(&fingerprint, "x").await).await.failed.expect("no worker");
    // The node is as before: the next request gets an answer too, the same.
    let again = collect(rig.generate(&fingerprint, "x").await).await.failed.expect("no worker");
    assert_eq!(again.code, failed.code);
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_prints_garbage_instead_of_hello_is_reported() {
    let failed = failure_with("echo this is no hello at all").await;
    assert_eq!((failed.status, failed.code.as_str()), (503, "worker_not_started"), "{failed}");
    assert!(failed.message.contains("did not say hello"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_at_once_is_reported_with_its_exit_status_and_last_words() {
    let failed = failure_with("echo the library is missing >&2; exit 7").await;
    assert!(failed.message.contains("exit status 7"), "{failed}");
    assert!(failed.message.contains("the library is missing"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_after_hello_ends_the_worker() {
    let version = engine_protocol::PROTOCOL_VERSION;
    let hello = format!(
        r"printf 'LLMRWRK\000\{version:03o}\000\000\000\001\000\000\000\377\377\377\377'; cat >/dev/null"
    );
    let program = WorkerProgram { executable: "/bin/sh".into(), arguments: vec!["-c".into(), hello] };
    let rig = rig_with(|config| config.worker = program).await;
    rig.put(&rig.manifest(), node_api::ModelSettings::default()).await;
    // Found out when the engine is tried, before a model depends on it.
    let unsupported = |state: &ModelState| matches!(state, ModelState::Unsupported { .. });
    let state = rig.wait_for("the engine is refused", unsupported).await;
    let ModelState::Unsupported { reason } = state else { panic!("waited for it") };
    assert!(reason.contains("garbage"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_sees_no_secret_of_the_node() {
    let failed = failure_with("env | cut -d= -f1 | sort | tr '\\n' ' ' >&2; exit 3").await;
    let names: Vec<&str> = failed.message.rsplit("last words:").next().unwrap().split_whitespace().collect();
    let own = ["PWD", "SHLVL", "_", "OLDPWD"];
    for name in names {
        assert!(own.contains(&name) || engine_protocol::is_worker_variable(name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_be_opened_is_refused_with_the_reason_and_the_others_go_on() {
    let rig = rig_with(|config| {
        // First by its name, and so the first choice for every echo model, if it counted.
        let (dir, good) = (&config.engine_dirs[0], config.engine_dirs[0].join("echo"));
        let broken = dir.join("broken");
        std::fs::create_dir(&broken).unwrap();
        let text = std::fs::read_to_string(good.join("manifest.json")).unwrap();
        let mut manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
        manifest["id"] = "broken".into();
        std::fs::write(broken.join("manifest.json"), manifest.to_string()).unwrap();
        std::fs::write(broken.join(manifest["library"].as_str().unwrap()), "no library").unwrap();
    })
    .await;
    let status = rig.link.status().await.unwrap().next().await.unwrap().unwrap();
    let state = |id: &str| status.engines.iter().find(|e| e.id == id).expect(id).state.clone();
    let EngineState::Refused { reason } = state("broken") else { panic!("{:?}", state("broken")) };
    assert!(reason.contains("cannot be opened"), "{reason}");
    assert_eq!(state("echo"), EngineState::Available);
    let fingerprint = rig.ready().await;
    assert_eq!(collect(rig.generate(&fingerprint, "good").await).await.text, "good");
}
