//! Models in workers: handed over, restarted, added, let go; with the engine that misbehaves on request.
#![cfg(unix)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine_testkit::build::install_engine;
use futures_util::future::join_all;
use node::Config;
use node_api::{
    EngineCommand, EngineReply, FinishReason, GenerateEvent, GenerateRequest, ModelAction, ModelCommand,
    ModelSettings, ModelState, ModelStatus, NodeStatus,
};
use serde_json::{Value, json};

use crate::fault::{Fault, MODEL, fault_with};
use crate::support::{Reply, collect, is_there, serving, signal, within};

/// A node with version 0.1.0 of the engine and a model of it that is ready.
async fn lab(settings: ModelSettings, options: Value, change: impl FnOnce(&mut Config)) -> Fault {
    let settings = ModelSettings {
        options: options.as_object().unwrap().clone(),
        context_length: settings.context_length.or(Some(4096)),
        sequences_max: settings.sequences_max.or(Some(4)),
        ..settings
    };
    fault_with(settings, change).await
}

impl Fault {
    /// One whose prompt begins as others of this mark do.
    fn like(&self, text: &str, affinity: u64) -> GenerateRequest {
        GenerateRequest { affinity, ..self.request(text) }
    }

    async fn engines(&self, command: &EngineCommand) -> EngineReply {
        within("the command", self.rig.link.engines(command)).await.unwrap()
    }

    async fn reload(&self, engine: Option<&str>) -> EngineReply {
        self.engines(&EngineCommand::Reload { engine: engine.map(str::to_owned) }).await
    }

    async fn model(&self, action: ModelAction) -> ModelStatus {
        let command = ModelCommand { model: MODEL.into(), fingerprint: self.fingerprint.clone(), action };
        within("the command", self.rig.link.model(&command)).await.unwrap()
    }

    /// Waits until the process has ended.
    async fn gone(&self, worker: u32) {
        // Each line is a look; they come at least once a second.
        self.until("the worker's end", |_| !is_there(worker)).await;
    }

    /// The workers that serve.
    async fn serving(&self, count: usize) -> Vec<u32> {
        serving(&self.until("workers serve", |status| serving(status).len() == count).await)
    }
}

fn whole(reply: &Reply, text: &str) {
    assert_eq!((&*reply.text, reply.finished), (text, Some(FinishReason::Stop)), "{:?}", reply.failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_reloads_under_a_steady_load_lose_nothing() {
    const RELOADS: usize = 50;
    let lab = Arc::new(lab(ModelSettings::default(), json!({ "tokens_per_second": 400 }), |_| {}).await);
    whole(&lab.ask("first").await, "first");
    let done = Arc::new(AtomicBool::new(false));
    let clients = (0..4).map(|client| {
        let (lab, done) = (Arc::clone(&lab), Arc::clone(&done));
        tokio::spawn(async move {
            let mut replies = 0;
            while !done.load(Ordering::Relaxed) {
                let text = format!("client {client}, request {replies}: {}", "some words ".repeat(8));
                whole(&lab.ask(&text).await, &text);
                replies += 1;
            }
            replies
        })
    });
    let clients: Vec<_> = clients.collect();
    for _ in 0..RELOADS {
        let reply = lab.reload(Some("fault")).await;
        assert!(matches!(&reply.handovers[..], [one] if one.done && one.pause_ms == 0), "{reply:?}");
    }
    done.store(true, Ordering::Relaxed);
    for replies in join_all(clients).await {
        assert!(replies.unwrap() > 0);
    }
    let counters = lab.until("nobody leaves any more", |s| s.models[0].replicas.len() == 1).await.counters;
    assert_eq!((counters.reloads, counters.reload_failures), (RELOADS as u64, 0));
    assert_eq!((counters.worker_crashes, counters.load_failures), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_takes_the_new_requests_and_the_old_one_finishes_what_it_has() {
    let lab = lab(ModelSettings::default(), json!({ "tokens_per_second": 40 }), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let text = "x".repeat(200);
    let mut running = lab.rig.link.generate(&lab.request(&text)).await.unwrap();
    let token = async { while !matches!(running.next().await, Some(Ok(GenerateEvent::Token(_)))) {} };
    within("a token", token).await;
    install_engine("fault", "0.2.0", &lab.engines).unwrap();
    let reply = lab.reload(None).await;
    let [handover] = &reply.handovers[..] else { panic!("{reply:?}") };
    assert_eq!((&*handover.from, &*handover.to, handover.done), ("fault 0.1.0", "fault 0.2.0", true));
    let next = collect(lab.rig.link.generate(&lab.request("b")).await.unwrap());
    let (old, new) = tokio::join!(collect(running), next);
    // One token of it was read before.
    whole(&old, &text[1..]);
    whole(&new, "b");
    let status = lab.until("the old one has left", |s| s.models[0].replicas.len() == 1).await;
    assert_eq!(status.models[0].replicas[0].engine_version, "0.2.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_fails_its_trial_leaves_the_old_one_serving_and_says_why() {
    let fail = json!({ "fail": { "code": 7, "reason": "broken", "message": "no step works" } });
    let faults = json!([{ "at": "step", "do": fail, "versions": ["0.2.0"] }]);
    let lab = lab(ModelSettings::default(), json!({ "faults": faults }), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let before = lab.serving(1).await;
    install_engine("fault", "0.2.0", &lab.engines).unwrap();
    let reply = lab.reload(None).await;
    let [handover] = &reply.handovers[..] else { panic!("{reply:?}") };
    assert!(!handover.done && handover.reason.as_ref().unwrap().contains("no step works"), "{handover:?}");
    let engine = reply.engines.iter().find(|engine| engine.version == "0.2.0").unwrap();
    assert!(engine.failed_trials[0].reason.contains("no step works"), "{engine:?}");
    whole(&lab.ask("b").await, "b");
    assert_eq!(lab.serving(1).await, before);
    // It is not tried again before somebody asks for it.
    let tried = lab.until("any status", |_| true).await.counters;
    assert_eq!((tried.reload_failures, tried.reloads), (1, 0));
}

fn small_device(config: &mut Config) {
    config.simulated_devices = "sim:0=1GiB".parse().unwrap();
    config.devices = "sim:0".parse().unwrap();
}

/// Long enough that the state is seen on a machine that does other things too.
const LOAD_MS: u64 = 2000;

#[tokio::test(flavor = "multi_thread")]
async fn where_two_copies_do_not_fit_new_requests_wait_and_the_pause_is_measured() {
    let options = json!({ "weights_bytes": 600 << 20, "load_ms": LOAD_MS });
    let lab = lab(ModelSettings::default(), options, small_device).await;
    whole(&lab.ask("a").await, "a");
    let asking = async {
        lab.until("it changes", |s| matches!(s.models[0].state, ModelState::Loading { .. })).await;
        lab.ask("waits").await
    };
    let (reply, waited) = tokio::join!(lab.reload(Some("fault")), asking);
    let [handover] = &reply.handovers[..] else { panic!("{reply:?}") };
    assert!(handover.done && handover.pause_ms >= LOAD_MS, "{handover:?}");
    whole(&waited, "waits");
    let counters = lab.until("any status", |_| true).await.counters;
    assert_eq!((counters.reloads, counters.reload_pauses), (1, 1));
    assert_eq!(counters.reload_pause_ms, handover.pause_ms);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_two_copies_do_not_fit_and_the_new_one_fails_the_old_one_comes_back() {
    let faults = json!([{ "at": "loaded", "do": "abort", "versions": ["0.2.0"] }]);
    let options = json!({ "weights_bytes": 600 << 20, "faults": faults });
    let lab = lab(ModelSettings::default(), options, small_device).await;
    whole(&lab.ask("a").await, "a");
    install_engine("fault", "0.2.0", &lab.engines).unwrap();
    let reply = lab.reload(None).await;
    let [handover] = &reply.handovers[..] else { panic!("{reply:?}") };
    assert!(!handover.done && handover.reason.is_some() && handover.pause_ms > 0, "{handover:?}");
    whole(&lab.ask("b").await, "b");
    let status = lab.until("it is back", |s| s.models[0].replicas.len() == 1).await;
    assert_eq!(status.models[0].replicas[0].engine_version, "0.1.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_takes_the_model_out_of_ready_and_it_comes_back_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let times = json!({ "file": folder.path().join("times"), "at_most": 4 });
    let faults = json!([{ "at": "load", "do": "abort", "times": times }]);
    let lab = lab(ModelSettings::default(), json!({ "faults": faults }), |_| {}).await;
    for _ in 0..3 {
        let failed = lab.ask("x").await.failed.expect("the load crashes");
        // It killed nobody: the router may send it again.
        assert!(failed.retry && !failed.worker_died, "{failed:?}");
    }
    let looping = |s: &NodeStatus| matches!(&s.models[0].state, ModelState::Failed { retrying: true, .. });
    let status = lab.until("not ready", looping).await;
    let ModelState::Failed { reason, .. } = &status.models[0].state else { panic!("waited for it") };
    assert!(reason.contains("SIGABRT"), "{reason}");
    lab.until("loaded again", |s| matches!(s.models[0].state, ModelState::Loaded { .. })).await;
    whole(&lab.ask("after").await, "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_idle_is_replaced_at_once() {
    let lab = lab(ModelSettings::default(), json!({}), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let first = lab.serving(1).await[0];
    signal("-9", first);
    let second = |s: &NodeStatus| s.models[0].replicas.first().is_some_and(|r| r.worker != first);
    let status = lab.until("another worker", second).await;
    assert_eq!(status.counters.worker_crashes, 1);
    whole(&lab.ask("b").await, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_nobody_uses_leaves_memory_after_its_time() {
    let settings = ModelSettings { keep_alive_seconds: Some(1), ..ModelSettings::default() };
    let lab = lab(settings, json!({}), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let status = lab.until("it left", |s| s.counters.expiries == 1 && s.models[0].replicas.is_empty()).await;
    assert!(matches!(status.models[0].state, ModelState::Ready { .. }), "{:?}", status.models[0].state);
    whole(&lab.ask("b").await, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_load_and_the_same_beginning_goes_to_the_same_one() {
    let settings = ModelSettings { replicas: Some(2), ..ModelSettings::default() };
    let lab = lab(settings, json!({ "tokens_per_second": 20 }), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    lab.serving(2).await;
    let text = "y".repeat(1000);
    let running = |s: &NodeStatus| -> Vec<u32> {
        let mut running: Vec<u32> = s.models[0].replicas.iter().map(|r| r.requests_running).collect();
        running.sort_unstable();
        running
    };
    let first = lab.rig.link.generate(&lab.like(&text, 7)).await.unwrap();
    lab.until("one runs", |s| running(s) == [0, 1]).await;
    let second = lab.rig.link.generate(&lab.like(&text, 7)).await.unwrap();
    lab.until("both on one", |s| running(s) == [0, 2]).await;
    let third = lab.rig.link.generate(&lab.like(&text, 8)).await.unwrap();
    lab.until("another on the other", |s| running(s) == [1, 2]).await;
    drop((first, second, third));
    lab.until("nothing runs", |s| running(s) == [0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_files_take_a_model_out_of_ready_until_an_operator_loads_it() {
    let fail = json!({ "fail": { "code": 3, "reason": "file_corrupt", "message": "a tensor is torn" } });
    let faults = json!([{ "at": "step", "do": fail, "prompt": "poison" }]);
    let lab = lab(ModelSettings::default(), json!({ "faults": faults }), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let failed = lab.ask("poison").await.failed.expect("the engine says so");
    assert_eq!((failed.status, &*failed.code), (503, "file_corrupt"), "{failed:?}");
    let torn = |s: &NodeStatus| match &s.models[0].state {
        ModelState::Failed { reason, retrying: false } => reason.contains("a tensor is torn"),
        _ => false,
    };
    lab.until("not ready", torn).await;
    let refused = lab.rig.link.generate(&lab.request("b")).await.unwrap_err();
    assert_eq!(node_api::ApiError::from(refused).code, "model_failed");
    let loaded = lab.model(ModelAction::Load).await;
    assert!(matches!(loaded.state, ModelState::Loaded { .. }), "{loaded:?}");
    whole(&lab.ask("c").await, "c");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_loads_and_unloads() {
    let lab = lab(ModelSettings::default(), json!({}), |_| {}).await;
    let loaded = lab.model(ModelAction::Load).await;
    assert!(matches!(loaded.state, ModelState::Loaded { .. }), "{loaded:?}");
    let worker = lab.serving(1).await[0];
    lab.model(ModelAction::Unload).await;
    let status = lab.until("it left", |s| s.models[0].replicas.is_empty()).await;
    assert!(matches!(status.models[0].state, ModelState::Ready { .. }), "{:?}", status.models[0].state);
    assert!(!is_there(worker));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_unloads_calls_off_the_load_that_goes_on() {
    // Longer than any test waits.
    let lab = lab(ModelSettings::default(), json!({ "load_ms": 600_000 }), |_| {}).await;
    let command =
        ModelCommand { model: MODEL.into(), fingerprint: lab.fingerprint.clone(), action: ModelAction::Load };
    let unloading = async {
        let starting = |s: &NodeStatus| s.models[0].replicas.first().map_or(0, |replica| replica.worker);
        let loading = |s: &NodeStatus| matches!(s.models[0].state, ModelState::Loading { .. });
        let status = lab.until("it loads", |s| starting(s) != 0 && loading(s)).await;
        lab.model(ModelAction::Unload).await;
        starting(&status)
    };
    let (loaded, worker) = tokio::join!(within("the load", lab.rig.link.model(&command)), unloading);
    assert_eq!(node_api::ApiError::from(loaded.unwrap_err()).code, "load_called_off");
    let status = lab.until("it left", |s| s.models[0].replicas.is_empty()).await;
    assert!(matches!(status.models[0].state, ModelState::Ready { .. }), "{:?}", status.models[0].state);
    lab.gone(worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_settings_are_adopted_by_a_hand_over() {
    let lab = lab(ModelSettings::default(), json!({}), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let settings =
        ModelSettings { context_length: Some(1024), sequences_max: Some(2), ..ModelSettings::default() };
    lab.rig.put(&lab.manifest, settings).await;
    let other = |s: &NodeStatus| {
        let replicas = &s.models[0].replicas;
        replicas.len() == 1 && (replicas[0].context_length, replicas[0].sequences_max) == (1024, 2)
    };
    let status = lab.until("a worker with other settings", other).await;
    assert_eq!(status.counters.reloads, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_engine_loses_its_models_and_gets_them_back() {
    let lab = lab(ModelSettings::default(), json!({}), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let (engine, version) = ("fault".to_owned(), None);
    lab.engines(&EngineCommand::Disable { engine: engine.clone(), version: version.clone() }).await;
    let gone = |s: &NodeStatus| {
        s.models[0].replicas.is_empty() && matches!(s.models[0].state, ModelState::Unsupported { .. })
    };
    lab.until("it left", gone).await;
    lab.engines(&EngineCommand::Enable { engine, version }).await;
    lab.until("ready again", |s| s.models[0].state.is_ready()).await;
    whole(&lab.ask("b").await, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_bring_a_new_worker() {
    let lab = lab(ModelSettings::default(), json!({}), |config| {
        config.worker_restart_after_requests = Some(2);
    })
    .await;
    whole(&lab.ask("a").await, "a");
    whole(&lab.ask("b").await, "b");
    lab.until("a new worker", |s| s.counters.reloads == 1 && s.models[0].replicas.len() == 1).await;
    whole(&lab.ask("c").await, "c");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_does_not_delay_the_nodes_end() {
    let lab = lab(ModelSettings::default(), json!({}), |_| {}).await;
    whole(&lab.ask("a").await, "a");
    let worker = lab.serving(1).await[0];
    signal("-STOP", worker);
    let started = Instant::now();
    lab.rig.end.cancel();
    within("the node ends", lab.rig.node.wait()).await.unwrap();
    assert!(!is_there(worker));
    // Five seconds for the worker; the rest is the machine's own slowness. Without them it would be the time of a drain.
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
}
