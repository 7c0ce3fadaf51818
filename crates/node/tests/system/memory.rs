//! Memory, with real workers on a simulated device: who is refused, who leaves, who is ended.

use std::time::Duration;

use node::MemoryLimits;
use node_api::{
    ApiError, DesiredModel, DesiredModels, GenerateEvent, GenerateRequest, ModelSettings, ModelState,
    ModelStatus, NodeStatus, Sampling,
};
use serde_json::{Value, json};

use crate::fault::fault_model;
use crate::support::{Reply, Rig, collect, request, rig_with, serving, within};

const GIB: u64 = 1 << 30;
/// Tests do not wait the whole ten seconds.
const STAY: Duration = Duration::from_millis(500);

/// A node with a simulated device of 8 GiB, nothing of it kept back, and these models of the engine that misbehaves.
struct World {
    rig: Rig,
    fingerprints: Vec<(String, String)>,
}

impl World {
    async fn new(limits: MemoryLimits, models: &[(&str, Value)]) -> World {
        World::on("sim:0=8GiB", "sim:0", limits, models, 1).await
    }

    /// With other devices, and so many replicas of each model.
    async fn on(
        devices: &'static str,
        used: &'static str,
        limits: MemoryLimits,
        models: &[(&str, Value)],
        replicas: u32,
    ) -> World {
        let engines = tempfile::tempdir().unwrap();
        engine_testkit::build::install_engine("fault", "0.1.0", engines.path()).unwrap();
        let folder = engines.path().to_owned();
        let rig = rig_with(move |config| {
            config.engine_dirs = vec![folder];
            config.devices = used.parse().unwrap();
            config.simulated_devices = devices.parse().unwrap();
            config.memory = limits;
            config.sequences_max = Some(4);
        })
        .await;
        // Kept for as long as the node runs: the test's process is short.
        let _ = engines.keep();
        let mut wanted = Vec::new();
        let mut fingerprints = Vec::new();
        for (id, fault) in models {
            let manifest = fault_model(&rig, id);
            let fingerprint = manifest.fingerprint();
            fingerprints.push(((*id).to_owned(), fingerprint.clone()));
            let options = fault.as_object().unwrap().clone();
            let settings = ModelSettings { options, replicas: Some(replicas), ..ModelSettings::default() };
            wanted.push(DesiredModel { fingerprint, manifest, settings });
        }
        rig.link.put_models(&DesiredModels { models: wanted }).await.unwrap();
        let world = World { rig, fingerprints };
        world
            .rig
            .until("all ready", |s| {
                s.models.len() == models.len() && s.models.iter().all(|m| m.state.is_ready())
            })
            .await;
        world
    }

    fn ask(&self, id: &str, text: &str) -> GenerateRequest {
        let (_, fingerprint) = self.fingerprints.iter().find(|(known, _)| known == id).unwrap();
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        GenerateRequest { model: id.into(), sampling, ..request(fingerprint, text) }
    }

    async fn generate(&self, id: &str, text: &str) -> Reply {
        collect(within("the stream", self.rig.link.generate(&self.ask(id, text))).await.unwrap()).await
    }

    async fn serves(&self, id: &str) {
        let reply = self.generate(id, "hello").await;
        assert_eq!(reply.text, "hello", "{id}: {reply:?}");
    }

    async fn refused(&self, id: &str) -> ApiError {
        let reply = self.generate(id, "hello").await;
        reply.failed.unwrap_or_else(|| panic!("{id} was served: {}", reply.text))
    }

    /// Waits until exactly these models are in workers.
    async fn loaded(&self, ids: &[&str]) -> NodeStatus {
        self.rig
            .until(&format!("only {ids:?} loaded"), |s| {
                s.models.iter().all(|m| is_loaded(m) == ids.contains(&m.id.as_str()))
            })
            .await
    }
}

fn is_loaded(model: &ModelStatus) -> bool {
    !model.replicas.is_empty() && matches!(model.state, ModelState::Loaded { .. })
}

fn limits() -> MemoryLimits {
    MemoryLimits { evict_percent: 100, alert_percent: 100, minimum_stay: STAY, ..MemoryLimits::default() }
}

fn of_gib(gib: u64) -> Value {
    json!({ "weights_bytes": gib * GIB })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_larger_than_the_device_is_refused_with_both_numbers_and_nobody_leaves_for_it() {
    let world = World::new(limits(), &[("org/small", of_gib(2)), ("org/large", of_gib(9))]).await;
    world.serves("org/small").await;
    let error = world.refused("org/large").await;
    assert_eq!((error.status, error.code.as_str()), (507, "out_of_vram"), "{error:?}");
    let (needed, available) = error.numbers.unwrap();
    assert!(needed > 9 * GIB && available == 8 * GIB, "{error:?}");
    assert!(
        error.message.contains(&needed.to_string()) && error.message.contains(&available.to_string()),
        "{error}"
    );
    world.loaded(&["org/small"]).await;
}

/// One worker for each GPU and replica: a second one on the first device would not fit.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_take_a_device_each() {
    let models = [("org/a", of_gib(5))];
    let world = World::on("sim:0=8GiB,sim:1=8GiB", "sim:0,sim:1", limits(), &models, 2).await;
    world.serves("org/a").await;
    let status = world.rig.until("two replicas that serve", |s| serving(s).len() == 2).await;
    let replicas = &status.models[0].replicas;
    let mut devices: Vec<&str> = replicas
        .iter()
        .flat_map(|r| &r.memory)
        .filter(|m| m.granted >= 5 * GIB)
        .map(|m| &*m.device)
        .collect();
    devices.sort_unstable();
    assert_eq!(devices, ["sim:0", "sim:1"], "{replicas:?}");
    assert_ne!(replicas[0].worker, replicas[1].worker);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_models_leave_for_a_load_the_least_recently_used_first() {
    let models = ["org/a", "org/b", "org/c"].map(|id| (id, of_gib(3)));
    let world = World::new(limits(), &models).await;
    world.serves("org/a").await;
    world.serves("org/b").await;
    world.serves("org/a").await;
    world.serves("org/c").await;
    let status = world.loaded(&["org/a", "org/c"]).await;
    assert!(status.counters.evictions >= 1, "{:?}", status.counters);
    let a = status.models.iter().find(|m| m.id == "org/a").unwrap();
    let memory = a.replicas[0].memory.iter().find(|m| m.device == "sim:0").unwrap();
    assert!(memory.granted >= 3 * GIB && memory.estimated == memory.granted, "{memory:?}");
    assert_eq!(status.memory.devices[0].device, "sim:0");
    // What it takes is what its worker says.
    world
        .rig
        .until("what workers take", |s| {
            s.memory.devices[0].used >= 6 * GIB && s.memory.devices[0].reserved >= 6 * GIB
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_model_stays_until_it_has_finished_and_its_answer_is_whole() {
    let slow = json!({ "weights_bytes": 5 * GIB, "tokens_per_second": 20.0, "repeat": 12 });
    let world = World::new(limits(), &[("org/busy", slow), ("org/next", of_gib(5))]).await;
    let mut busy = world.rig.link.generate(&world.ask("org/busy", "hello")).await.unwrap();
    let mut begun = String::new();
    while begun.is_empty() {
        if let GenerateEvent::Token(token) = within("a token", busy.next()).await.unwrap().unwrap() {
            begun = String::from_utf8(token.bytes.to_vec()).unwrap();
        }
    }
    let (rest, next) = tokio::join!(collect(busy), world.generate("org/next", "hello"));
    assert!(rest.failed.is_none(), "{rest:?}");
    assert_eq!(begun + &rest.text, "hello".repeat(12));
    assert_eq!(next.text, "hello", "{next:?}");
    world.loaded(&["org/next"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_models_that_do_not_fit_together_are_both_served_without_thrashing() {
    let world = World::new(limits(), &[("org/a", of_gib(5)), ("org/b", of_gib(5))]).await;
    let started = std::time::Instant::now();
    for _ in 0..3 {
        // Both at once, several times: requests for one wait while the other is in the device.
        let (a, b, c, d) = tokio::join!(
            world.generate("org/a", "one"),
            world.generate("org/b", "two"),
            world.generate("org/a", "three"),
            world.generate("org/b", "four"),
        );
        assert_eq!([a.text, b.text, c.text, d.text], ["one", "two", "three", "four"]);
    }
    let status = world.rig.until("a status", |_| true).await;
    let most = started.elapsed().as_millis() / STAY.as_millis() + 1;
    let loads = status.counters.loads;
    assert!(loads >= 2 && u128::from(loads) <= most, "{loads} loads in {:?}", started.elapsed());
    assert_eq!(status.counters.load_failures, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overrun_ends_the_worker_is_told_and_leaves_room_for_the_next() {
    let greedy = json!({
        "weights_bytes": GIB,
        "faults": [{ "at": "submit", "do": { "take": { "bytes": 4 * GIB } }, "prompt": "greedy" }],
    });
    let world = World::new(limits(), &[("org/greedy", greedy), ("org/next", of_gib(7))]).await;
    world.serves("org/greedy").await;
    let _ = world.generate("org/greedy", "greedy").await;
    let status = world.rig.until("the overrun is counted", |s| s.counters.worker_overruns > 0).await;
    assert_eq!(status.counters.worker_overruns, 1);
    world.rig.until("its memory is back", |s| s.memory.devices[0].reserved == 0 || s.alerts.is_empty()).await;
    world.serves("org/next").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_that_lies_is_believed_and_the_overrun_is_caught() {
    let liar = json!({
        "weights_bytes": 4 * GIB,
        "faults": [{ "at": "estimate", "do": { "scale": { "factor": 0.25 } } }],
    });
    let world = World::new(limits(), &[("org/liar", liar)]).await;
    let _ = world.generate("org/liar", "hello").await;
    world.rig.until("the overrun is counted", |s| s.counters.worker_overruns > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_fails_gives_everything_back() {
    let failing = json!({
        "weights_bytes": 6 * GIB,
        "faults": [{ "at": "loaded", "do": { "fail": { "code": 9, "reason": "no_luck", "message": "it fails" } } }],
    });
    let world = World::new(limits(), &[("org/failing", failing), ("org/next", of_gib(7))]).await;
    let error = world.refused("org/failing").await;
    assert_eq!((error.status, error.code.as_str()), (503, "no_luck"), "{error:?}");
    world.rig.until("nothing is granted", |s| s.memory.devices[0].reserved == 0).await;
    world.serves("org/next").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_nearly_full_is_an_alert_that_ends_with_its_cause() {
    let limits = MemoryLimits { alert_percent: 60, ..limits() };
    let world = World::new(limits, &[("org/a", of_gib(6)), ("org/b", of_gib(4))]).await;
    world.serves("org/a").await;
    let high = |s: &NodeStatus| s.alerts.iter().any(|a| a.code == "memory_high" && a.subject == "sim:0");
    world.rig.until("the alert", high).await;
    world.serves("org/b").await;
    world.rig.until("its end", |s| !high(s)).await;
}
