//! `llm-router nodes ls`.

use std::process::ExitCode;

use admin_api::{Node, NodeList, NodeState};
use anyhow::Result;
use node_api::DeviceMemory;

use super::Context;
use crate::arguments::ListCommand;
use crate::output;

pub async fn run(context: &Context, ListCommand::Ls { client }: ListCommand) -> Result<ExitCode> {
    let list: NodeList = context.client(&client)?.get(&["api", "nodes"]).await?;
    if context.json {
        output::print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.nodes.is_empty() {
        println!("no nodes are connected; `llm-router node` joins one");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        output::table(&["node", "state", "devices", "memory", "engines", "models", "requests", "workers"]);
    for node in &list.nodes {
        let engines: Vec<_> = node.engines.iter().map(|e| format!("{} {}", e.id, e.version)).collect();
        let state = match node.state {
            NodeState::Joining => "joining",
            NodeState::Connected => "connected",
            NodeState::Draining => "draining",
        };
        table.add_row([
            node.name.clone(),
            format!("{state}{}", if node.cpu_only { ", CPU only" } else { "" }),
            devices(node),
            memory(node),
            engines.join("\n"),
            node.models_ready.to_string(),
            format!("{} running, {} waiting", node.requests_running, node.requests_waiting),
            workers(node),
        ]);
    }
    println!("{table}");
    let now = output::now();
    for node in &list.nodes {
        for alert in &node.alerts {
            let since = output::ago(alert.since, now);
            println!("alert: {}, {}: {} (for {since})", node.name, alert.subject, alert.message);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn devices(node: &Node) -> String {
    let one = |d: &node_api::DeviceInfo| format!("{} ({}, {})", d.id, d.name, output::bytes(d.memory_total));
    node.devices.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// The machine's first, then each device's.
fn memory(node: &Node) -> String {
    let ram = format!(
        "RAM: {} of {} free",
        output::bytes(node.memory.ram_available),
        output::bytes(node.memory.ram_total)
    );
    let device = |DeviceMemory { device, total, used, reserved }: &DeviceMemory| {
        let free = total.saturating_sub(*used);
        format!(
            "{device}: {} of {} free, {} granted",
            output::bytes(free),
            output::bytes(*total),
            output::bytes(*reserved)
        )
    };
    [ram].into_iter().chain(node.memory.devices.iter().map(device)).collect::<Vec<_>>().join("\n")
}

/// How its workers fared since it started; only what happened.
fn workers(node: &Node) -> String {
    let c = &node.counters;
    let all = [
        (c.worker_starts, "started"),
        (c.worker_crashes, "crashed"),
        (c.worker_hangs, "hung"),
        (c.worker_overruns, "took too much memory"),
        (c.reloads, "handed over"),
        (c.evictions, "evicted"),
    ];
    let happened = all.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    happened.collect::<Vec<_>>().join(", ")
}
