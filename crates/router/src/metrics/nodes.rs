//! Figures of nodes, engines and models, made of what the nodes told last.

use std::collections::BTreeMap;

use admin_api::{Availability, Node, NodeState};
use node_api::{EngineState, ReplicaMemory, ReplicaRole, ReplicaStatus};
use prometheus::{Error, GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::Snapshot;

const NODE: [&str; 2] = ["node_id", "node"];

pub fn register(registry: &Registry, snapshot: &Snapshot) -> Result<(), Error> {
    nodes(registry, snapshot)?;
    counters(registry, &snapshot.nodes)?;
    memory(registry, &snapshot.nodes)?;
    engines(registry, &snapshot.nodes)?;
    models(registry, snapshot)?;
    replicas(registry, snapshot)
}

fn nodes(registry: &Registry, snapshot: &Snapshot) -> Result<(), Error> {
    let nodes = gauges(registry, "llm_router_nodes", "Connected nodes by state.", &["state"])?;
    // All three are there at zero as well: an alert on an absent series says nothing.
    for state in [NodeState::Joining, NodeState::Connected, NodeState::Draining] {
        let count = snapshot.nodes.iter().filter(|n| n.state == state).count();
        nodes.with_label_values(&[state_word(state)]).set(whole(count as u64));
    }
    let running = gauges(registry, "llm_router_node_requests_running", "Requests running on a node.", &NODE)?;
    let waiting = gauges(
        registry,
        "llm_router_node_requests_waiting",
        "Requests on a node without a worker yet.",
        &NODE,
    )?;
    let heard = float_gauges(
        registry,
        "llm_router_node_last_heard_seconds",
        "Since a node's last heartbeat.",
        &NODE,
    )?;
    let alerts = gauges(
        registry,
        "llm_router_alerts",
        "What an operator should look at, by code and by what it is about.",
        &["node_id", "node", "code", "subject"],
    )?;
    for node in &snapshot.nodes {
        let labels = [node.id.as_str(), &node.name];
        running.with_label_values(&labels).set(node.requests_running.into());
        waiting.with_label_values(&labels).set(node.requests_waiting.into());
        heard.with_label_values(&labels).set(node.last_heard_ms as f64 / 1000.0);
        for alert in &node.alerts {
            alerts.with_label_values(&[labels[0], labels[1], &alert.code, &alert.subject]).inc();
        }
    }
    Ok(())
}

/// What a node counts since it started.
fn counters(registry: &Registry, nodes: &[Node]) -> Result<(), Error> {
    type Read = fn(&node_api::Counters) -> u64;
    let all: [(&str, &str, Read); 14] = [
        ("worker_starts", "Workers started.", |c| c.worker_starts),
        ("worker_crashes", "Workers that ended by themselves while they had something to do.", |c| {
            c.worker_crashes
        }),
        ("worker_hangs", "Workers killed because nothing moved.", |c| c.worker_hangs),
        ("worker_overruns", "Workers killed for taking more memory than granted.", |c| c.worker_overruns),
        ("loads", "Models loaded.", |c| c.loads),
        ("load_failures", "Loads that failed.", |c| c.load_failures),
        ("reloads", "Models handed over to another worker.", |c| c.reloads),
        ("reload_failures", "Hand-overs in which the new worker failed.", |c| c.reload_failures),
        ("reload_pauses", "Hand-overs during which requests had to wait.", |c| c.reload_pauses),
        ("evictions", "Idle models that left to make room.", |c| c.evictions),
        ("expiries", "Idle models that left because their time was over.", |c| c.expiries),
        ("node_requests", "Requests that came to a node.", |c| c.requests),
        ("node_requests_cancelled", "Requests whose caller went away.", |c| c.requests_cancelled),
        ("node_requests_interrupted", "Requests on a worker at its death.", |c| c.requests_interrupted),
    ];
    for (name, help, read) in all {
        let name = format!("llm_router_{name}_total");
        let counter = IntCounterVec::new(Opts::new(name, help), &NODE)?;
        registry.register(Box::new(counter.clone()))?;
        for node in nodes {
            counter.with_label_values(&[&node.id, &node.name]).inc_by(read(&node.counters));
        }
    }
    let pause = prometheus::CounterVec::new(
        Opts::new("llm_router_reload_pause_seconds_total", "How long requests had to wait for hand-overs."),
        &NODE,
    )?;
    registry.register(Box::new(pause.clone()))?;
    for node in nodes {
        pause
            .with_label_values(&[&node.id, &node.name])
            .inc_by(node.counters.reload_pause_ms as f64 / 1000.0);
    }
    Ok(())
}

fn memory(registry: &Registry, nodes: &[Node]) -> Result<(), Error> {
    let ram = gauges(
        registry,
        "llm_router_ram_bytes",
        "The machine's memory, by kind: total, available.",
        &["node_id", "node", "kind"],
    )?;
    let device = gauges(
        registry,
        "llm_router_device_memory_bytes",
        "A device's memory, by kind: total, used, reserved (granted to loaded models, used or not).",
        &["node_id", "node", "device", "kind"],
    )?;
    for node in nodes {
        let (id, name) = (node.id.as_str(), node.name.as_str());
        for (kind, value) in [("total", node.memory.ram_total), ("available", node.memory.ram_available)] {
            ram.with_label_values(&[id, name, kind]).set(whole(value));
        }
        for told in &node.memory.devices {
            for (kind, value) in [("total", told.total), ("used", told.used), ("reserved", told.reserved)] {
                device.with_label_values(&[id, name, &told.device, kind]).set(whole(value));
            }
        }
    }
    Ok(())
}

fn engines(registry: &Registry, nodes: &[Node]) -> Result<(), Error> {
    let engines = gauges(
        registry,
        "llm_router_engines",
        "Engine plugins found on a node, by state: available, disabled, refused.",
        &["node_id", "node", "engine", "version", "state"],
    )?;
    let trials = gauges(
        registry,
        "llm_router_engine_failed_trials",
        "Models that a version of an engine was to take over, and did not.",
        &["node_id", "node", "engine", "version"],
    )?;
    for node in nodes {
        for engine in &node.engines {
            let state = match engine.state {
                EngineState::Available => "available",
                EngineState::Disabled => "disabled",
                EngineState::Refused { .. } => "refused",
            };
            let of = [node.id.as_str(), &node.name, &engine.id, &engine.version];
            engines.with_label_values(&[of[0], of[1], of[2], of[3], state]).inc();
            trials.with_label_values(&of).add(whole(engine.failed_trials.len() as u64));
        }
    }
    Ok(())
}

fn models(registry: &Registry, snapshot: &Snapshot) -> Result<(), Error> {
    let ready = gauges(
        registry,
        "llm_router_model_ready",
        "1 while requests for a model are taken.",
        &["model_name", "state"],
    )?;
    let kv = float_gauges(
        registry,
        "vllm:kv_cache_usage_perc",
        "How much of the KV cache is in use, over all workers of a model; 1: all of it.",
        &["model_name"],
    )?;
    let node_waiting = gauges(
        registry,
        "llm_router_model_node_waiting",
        "Requests of a model on a node that have no worker yet.",
        &["node_id", "node", "model_name"],
    )?;
    for model in &snapshot.models {
        ready
            .with_label_values(&[model.id.as_str(), Availability::as_str(model.state)])
            .set(model.state.is_ready().into());
        let replicas = || model.nodes.iter().flat_map(|n| &n.replicas);
        let total: u64 = replicas().map(|r| r.kv_bytes_total).sum();
        let used: u64 = replicas().map(|r| r.kv_bytes_used).sum();
        if replicas().next().is_some() {
            kv.with_label_values(&[&model.id]).set(if total == 0 { 0.0 } else { used as f64 / total as f64 });
        }
        for node in &model.nodes {
            node_waiting
                .with_label_values(&[node.node_id.as_str(), &node.node_name, &model.id])
                .set(node.requests_waiting.into());
        }
    }
    Ok(())
}

fn replicas(registry: &Registry, snapshot: &Snapshot) -> Result<(), Error> {
    let count = gauges(
        registry,
        "llm_router_replicas",
        "Workers that hold a model, by role: starting, serving, draining.",
        &["node_id", "node", "model_name", "engine", "version", "role"],
    )?;
    let memory = gauges(
        registry,
        "llm_router_model_memory_bytes",
        "What a model's workers take, by kind: estimated, granted, used, mapped.",
        &["node_id", "node", "model_name", "device", "kind"],
    )?;
    let mut estimates: BTreeMap<(&str, &str, &str), (u64, u64)> = BTreeMap::new();
    for model in &snapshot.models {
        for node in &model.nodes {
            let (id, name) = (node.node_id.as_str(), node.node_name.as_str());
            for replica in &node.replicas {
                let ReplicaStatus { engine, engine_version, role, .. } = replica;
                count
                    .with_label_values(&[id, name, &model.id, engine, engine_version, role_word(*role)])
                    .inc();
                for told in &replica.memory {
                    for (kind, bytes) in kinds(told) {
                        memory
                            .with_label_values(&[id, name, &model.id, &told.device, kind])
                            .add(whole(bytes));
                    }
                    // A worker that still loads has not taken what it will.
                    if *role != ReplicaRole::Starting && told.estimated > 0 && told.used > 0 {
                        let sums = estimates.entry((id, name, &told.device)).or_default();
                        *sums = (sums.0.saturating_add(told.estimated), sums.1.saturating_add(told.used));
                    }
                }
            }
        }
    }
    let errors = float_gauges(
        registry,
        "llm_router_estimate_error_ratio",
        "How far engines' estimates are from what their workers use: 0.1 means that they use a tenth more.",
        &["node_id", "node", "device"],
    )?;
    for ((id, name, device), (estimated, used)) in estimates {
        errors.with_label_values(&[id, name, device]).set(used as f64 / estimated as f64 - 1.0);
    }
    Ok(())
}

fn kinds(told: &ReplicaMemory) -> [(&'static str, u64); 4] {
    [("estimated", told.estimated), ("granted", told.granted), ("used", told.used), ("mapped", told.mapped)]
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
    let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(gauges.clone()))?;
    Ok(gauges)
}

fn float_gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, Error> {
    let gauges = GaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(gauges.clone()))?;
    Ok(gauges)
}

fn whole(value: u64) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Joining => "joining",
        NodeState::Connected => "connected",
        NodeState::Draining => "draining",
    }
}

fn role_word(role: ReplicaRole) -> &'static str {
    match role {
        ReplicaRole::Starting => "starting",
        ReplicaRole::Serving => "serving",
        ReplicaRole::Draining => "draining",
    }
}
