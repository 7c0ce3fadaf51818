//! Two NVIDIA GPUs in one machine, as stand-ins for the driver's libraries show them: kernels run on the processor, everything
//! else is what a GPU has.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use engine_testkit::build::{break_stand_in, engines_dir, hold_in_stand_in, stand_in_gpus};
use serde_json::{Value, json};
use system_tests::process::runs;
use system_tests::reference::MODEL;
use system_tests::{NodeSpec, Reference, System, repos, until};

const NODE: &str = "node";
const MIB: u64 = 1 << 20;
/// As the stand-in has it: what its driver takes for a context, and keeps for itself.
const CONTEXT_BYTES: u64 = 300 * MIB;
const RESERVED_BYTES: u64 = 256 * MIB;
/// The engine's guess of the first.
const GUESSED_BYTES: u64 = 512 * MIB;
/// Figures of estimates are not rounded as allocations are: each by less than a page.
const PAGES: u64 = 4 * 2 * MIB;

/// A system whose node has both GPUs, and these variables; none where there can be no stand-ins.
async fn start(variables: &[(&str, &str)]) -> Option<System> {
    let mut system = System::without_node(vec![repos::demo()]).await;
    let dir = gpus(&system);
    std::fs::create_dir_all(&dir).expect("the test's folder is writable");
    if !stand_in_gpus(&dir) {
        return None;
    }
    let path = ("LD_LIBRARY_PATH".to_owned(), dir.display().to_string());
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    system.start_node_as(&NodeSpec {
        name: NODE.to_owned(),
        devices: vec!["cuda:0".to_owned(), "cuda:1".to_owned()],
        engines_dir: engines_dir(),
        settings: variables.chain([path]).collect(),
    });
    system.until_nodes(1).await;
    Some(system)
}

/// The folder of the stand-ins.
fn gpus(system: &System) -> PathBuf {
    system.dir().join("gpus")
}

/// Registers the demo model with room for its short conversations, one at a time on a replica.
async fn add(system: &System, mut settings: Value) {
    settings["context_length"] = json!(128);
    settings["sequences_max"] = json!(1);
    let body = json!({"repo": MODEL, "format": "safetensors", "settings": settings});
    system.api.register(&body).await.ok();
    system.api.until_ready(MODEL).await;
}

/// The replicas that serve, by device.
async fn replicas(system: &System) -> BTreeMap<String, Value> {
    let model = system.api.model(MODEL).await;
    let replicas = model["nodes"].as_array().into_iter().flatten().filter_map(|n| n["replicas"].as_array());
    let serving = replicas.flatten().filter(|replica| replica["role"] == "serving");
    serving.map(|r| (r["devices"][0].as_str().unwrap_or_default().to_owned(), r.clone())).collect()
}

/// Once there is one on each GPU that runs, other than the process `gone`.
async fn one_on_each(system: &System, gone: u32) -> [Value; 2] {
    until("a replica on each GPU", || async {
        let all = replicas(system).await;
        let is_there = |r: &&Value| pid(r) != gone && runs(pid(r));
        let of = |device: &str| all.get(device).filter(is_there).cloned();
        let log = || system.nodes.get(NODE).map(system_tests::Process::log).unwrap_or_default();
        of("cuda:0").zip(of("cuda:1")).map(|(a, b)| [a, b]).ok_or_else(|| format!("{all:?}\n{}", log()))
    })
    .await
}

fn pid(replica: &Value) -> u32 {
    replica["worker"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process id")
}

/// Asks what was recorded, and gets what was recorded.
async fn ask(system: &System, name: &str) {
    let reference = Reference::read();
    let prompt = reference.prompt(name);
    let reply = system.api.chat(&prompt.request()).await.ok();
    assert_eq!(reply["choices"][0]["message"]["content"].as_str(), prompt.content.as_deref(), "{name}");
}

async fn used(system: &System, device: &str) -> u64 {
    let nodes = system.api.get("/api/nodes").await.ok();
    let devices = nodes["nodes"][0]["memory"]["devices"].as_array().cloned().unwrap_or_default();
    devices.iter().find(|d| d["device"] == device).and_then(|d| d["used"].as_u64()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_each_has_a_gpu_and_one_outlives_the_other() {
    let Some(system) = start(&[]).await else { return };
    add(&system, json!({"replicas": 2})).await;
    system.api.post(&format!("/api/models/{MODEL}/load"), &json!({})).await.ok();
    let both = one_on_each(&system, 0).await;
    assert_ne!(pid(&both[0]), pid(&both[1]), "a worker for each GPU");

    // Of a replica's memory the driver tells what it holds: what was planned, and what the driver took itself.
    for (replica, device) in both.iter().zip(["cuda:0", "cuda:1"]) {
        until("figures of the driver", || async {
            let all = replicas(&system).await;
            let memory = all.get(device).and_then(|r| r["memory"].as_array().cloned()).unwrap_or_default();
            let bytes = |name: &str| {
                memory.iter().find(|m| m["device"] == device).and_then(|m| m[name].as_u64()).unwrap_or(0)
            };
            let (estimated, granted, taken) = (bytes("estimated"), bytes("granted"), bytes("used"));
            let planned = taken.saturating_sub(CONTEXT_BYTES);
            let is_exact = planned > 0
                && taken <= granted
                && (estimated - GUESSED_BYTES).abs_diff(planned) <= PAGES
                && used(&system, device).await == taken + RESERVED_BYTES;
            if is_exact { Ok(()) } else { Err(format!("{replica}: {memory:?}")) }
        })
        .await;
    }

    // One conversation fills a replica, so that two need both.
    futures_util::join!(ask(&system, "capital_low"), ask(&system, "hello"));
    let answered = one_on_each(&system, 0).await;
    for replica in &answered {
        assert!(replica["requests_total"].as_u64().is_some_and(|n| n >= 1), "{replica}");
    }
    let mut ps = system.command();
    ps.args(["models", "ps", "--url", &system.url]);
    let ps = tokio::task::spawn_blocking(move || ps.output()).await.expect("it ends").expect("it starts");
    let table = String::from_utf8_lossy(&ps.stdout).into_owned();
    assert!(table.contains("cuda:0") && table.contains("cuda:1"), "{table}");

    let [dead, other] = both.map(|replica| pid(&replica));
    let status = Command::new("kill").args(["-9", &dead.to_string()]).status().expect("kill is there");
    assert!(status.success());
    ask(&system, "capital_low").await;
    assert!(runs(other) && !runs(dead));
    // Its memory is free again, so that a new one has its place.
    let [new, still] = one_on_each(&system, dead).await;
    assert_eq!(pid(&still), other);
    assert_ne!(pid(&new), dead);
    ask(&system, "capital_low").await;
}

/// The driver's first GPU is the second on the bus, which is hidden; the one that is left keeps its number.
#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_gpu_is_refused_by_name_and_the_other_keeps_its_number() {
    let Some(system) = start(&[("CUDA_VISIBLE_DEVICES", "1")]).await else { return };
    add(&system, json!({"devices": ["cuda:1"]})).await;
    let request = Reference::read().prompt("capital_low").request();
    let refused = system.api.chat(&request).await;
    let words = refused.body.to_string();
    assert!(refused.status >= 400 && words.contains("cuda:1"), "{refused:?}");
    assert!(words.contains("CUDA_VISIBLE_DEVICES is \\\"1\\\", which hides it"), "{words}");

    // Left to the node it goes to the one that is shown, though more is free on the other.
    let settings = json!({"settings": {"context_length": 128, "sequences_max": 1}});
    let patched = system.api.http().patch(format!("{}/api/models/{MODEL}", system.url)).json(&settings);
    assert!(patched.send().await.expect("the router answers").status().is_success());
    ask(&system, "capital_low").await;
    assert_eq!(replicas(&system).await.into_keys().collect::<Vec<_>>(), ["cuda:0"]);
    assert!(used(&system, "cuda:0").await > CONTEXT_BYTES && used(&system, "cuda:1").await == RESERVED_BYTES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_others_fill_is_refused_with_both_numbers() {
    let Some(system) = start(&[]).await else { return };
    for gpu in 0..2 {
        hold_in_stand_in(
            &gpus(&system),
            gpu,
            std::process::id(),
            (4 + 4 * u64::from(gpu)) * 1024 * MIB - 64 * MIB,
        );
    }
    add(&system, json!({})).await;
    let refused = system.api.chat(&Reference::read().prompt("capital_low").request()).await;
    assert_eq!(refused.status, 507, "{refused:?}");
    for device in ["cuda:0", "cuda:1"] {
        assert_eq!(replicas(&system).await.len(), 0);
        assert!(used(&system, device).await > 3 * 1024 * MIB, "what others hold is seen");
    }
    // They leave.
    hold_in_stand_in(&gpus(&system), 1, std::process::id(), 0);
    ask(&system, "capital_low").await;
    assert_eq!(replicas(&system).await.into_keys().collect::<Vec<_>>(), ["cuda:1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_fails_ends_its_worker_with_the_cause_and_nobody_else() {
    let Some(system) = start(&[]).await else { return };
    add(&system, json!({"devices": ["cuda:0"]})).await;
    ask(&system, "capital_low").await;
    let worker = system.worker().await;
    break_stand_in(&gpus(&system), 0, true);
    let failed = system.api.chat(&Reference::read().prompt("hello").request()).await;
    assert!(failed.status >= 500 && failed.body.to_string().contains("as the stand-in has it"), "{failed:?}");
    until("the end of the worker", || async {
        if runs(worker) { Err("it runs") } else { Ok(()) }.map_err(str::to_owned)
    })
    .await;
    break_stand_in(&gpus(&system), 0, false);
    // The node is the same, and tries again after a pause.
    until("an answer", || async {
        let reply = system.api.chat(&Reference::read().prompt("capital_low").request()).await;
        if reply.status == 200 { Ok(()) } else { Err(reply.body.to_string()) }
    })
    .await;
    assert_ne!(system.worker().await, worker);
    let log = system.nodes[NODE].log();
    assert!(log.contains("as the stand-in has it"), "the log has the cause:\n{log}");
}
