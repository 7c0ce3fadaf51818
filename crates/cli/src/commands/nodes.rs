//! `llm-router nodes ls`.

use std::process::ExitCode;

use admin_api::{NodeList, NodeState};
use anyhow::Result;

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
        output::table(&["node", "state", "devices", "memory free", "engines", "models", "requests"]);
    for node in &list.nodes {
        let devices: Vec<_> = node
            .devices
            .iter()
            .map(|d| format!("{} ({}, {})", d.id, d.name, output::bytes(d.memory_total)))
            .collect();
        let engines: Vec<_> = node.engines.iter().map(|e| format!("{} {}", e.id, e.version)).collect();
        let state = match node.state {
            NodeState::Joining => "joining",
            NodeState::Connected => "connected",
            NodeState::Draining => "draining",
        };
        table.add_row([
            node.name.clone(),
            format!("{state}{}", if node.cpu_only { ", CPU only" } else { "" }),
            devices.join("\n"),
            output::bytes(node.memory.ram_available),
            engines.join("\n"),
            node.models_ready.to_string(),
            format!("{} running, {} waiting", node.requests_running, node.requests_waiting),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}
