//! `llm-router engines`: list, show, reload, disable, enable.

use std::process::ExitCode;

use admin_api::{EngineAnswers, EngineDetails, EngineList, EngineOnNode, ReloadEngines, SwitchEngine};
use anyhow::Result;
use node_api::{EngineState, Handover};

use super::Context;
use crate::arguments::{EnginesCommand, SwitchArguments};
use crate::output;

/// Of a sha256, enough to tell two libraries apart.
const HASH_CHARS: usize = 12;

pub async fn run(context: &Context, command: EnginesCommand) -> Result<ExitCode> {
    match command {
        EnginesCommand::Ls { client } => {
            list(context, &context.client(&client)?.get(&["api", "engines"]).await?)
        }
        EnginesCommand::Show { id, client } => {
            show(context, &context.client(&client)?.get(&["api", "engines", &id]).await?)
        }
        EnginesCommand::Reload { id, node, client } => {
            let body = ReloadEngines { engine: id, node };
            let client = context.patient_client(&client)?;
            answers(context, &client.command(&["api", "engines", "reload"], &body).await?, "looked again")
        }
        EnginesCommand::Disable(switch) => turn(context, switch, "disable", "disabled").await,
        EnginesCommand::Enable(switch) => turn(context, switch, "enable", "enabled").await,
    }
}

async fn turn(context: &Context, switch: SwitchArguments, verb: &str, done: &str) -> Result<ExitCode> {
    let (id, version) = match switch.engine.split_once('@') {
        Some((id, version)) => (id, Some(version.to_owned())),
        None => (switch.engine.as_str(), None),
    };
    let body = SwitchEngine { version, node: switch.node };
    let client = context.patient_client(&switch.client)?;
    answers(context, &client.command(&["api", "engines", id, verb], &body).await?, done)
}

fn list(context: &Context, list: &EngineList) -> Result<ExitCode> {
    if context.json {
        output::print_json(list)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.engines.is_empty() {
        println!("no node has found an engine; `llm-router doctor` on the node tells where it looks");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}", table(&list.engines));
    Ok(ExitCode::SUCCESS)
}

fn table(engines: &[EngineOnNode]) -> comfy_table::Table {
    let mut table =
        output::table(&["engine", "version", "node", "runs", "formats", "devices", "library", "state"]);
    for on_node in engines {
        let engine = &on_node.engine;
        table.add_row([
            engine.id.clone(),
            engine.version.clone(),
            on_node.node_name.clone(),
            engine.architectures.join(", "),
            engine.formats.join(", "),
            engine.devices.join(", "),
            engine.sha256.chars().take(HASH_CHARS).collect(),
            state(on_node),
        ]);
    }
    table
}

/// With what an operator has to know beside the word.
fn state(on_node: &EngineOnNode) -> String {
    let engine = &on_node.engine;
    let mut text = match &engine.state {
        EngineState::Available => "available".to_owned(),
        EngineState::Disabled => "disabled".to_owned(),
        EngineState::Refused { reason } => format!("refused: {reason}"),
    };
    for trial in &engine.failed_trials {
        text.push_str(&format!("\nfailed with {}: {}", trial.model, trial.reason));
    }
    text
}

fn show(context: &Context, details: &EngineDetails) -> Result<ExitCode> {
    if context.json {
        output::print_json(details)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}", details.id);
    if let Some(any) = details.engines.first() {
        println!("  ABI           {}", any.engine.abi_version);
        println!("  runtimes      {}", any.engine.runtimes.join(", "));
        println!("  capabilities  {}", any.engine.capabilities.join(", "));
    }
    println!("\n{}", table(&details.engines));
    if details.loaded.is_empty() {
        println!("\nno model is in a worker of it");
    } else {
        println!("\n{}", super::models::loaded_table(&details.loaded));
    }
    Ok(ExitCode::SUCCESS)
}

/// What each node did. The command failed when one of them could not, or a hand-over was not done.
fn answers(context: &Context, answers: &EngineAnswers, done: &str) -> Result<ExitCode> {
    let handovers = || answers.nodes.iter().filter_map(|n| n.reply.as_ref()).flat_map(|r| &r.handovers);
    let well = answers.nodes.iter().all(|n| n.error.is_none()) && handovers().all(|h| h.done);
    let code = if well { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if context.json {
        output::print_json(answers)?;
        return Ok(code);
    }
    for node in &answers.nodes {
        match (&node.reply, &node.error) {
            (_, Some(error)) => {
                println!("{}: failed: {}", node.node_name, error.message);
                if let Some(hint) = &error.hint {
                    println!("hint: {hint}");
                }
            }
            (Some(reply), None) => {
                println!("{}: {done}; {} engines", node.node_name, reply.engines.len());
                reply.handovers.iter().for_each(|handover| println!("  {}", words(handover)));
            }
            (None, None) => println!("{}: {done}", node.node_name),
        }
    }
    Ok(code)
}

fn words(handover: &Handover) -> String {
    let Handover { model, from, to, done, reason, pause_ms } = handover;
    let pause = match pause_ms {
        0 => "no request waited".to_owned(),
        ms => format!("requests waited up to {ms} ms"),
    };
    if *done {
        return format!("{model}: {from} handed over to {to}; {pause}");
    }
    let reason = reason.as_deref().unwrap_or("no reason was told");
    format!("{model}: {from} stays, {to} does not serve: {reason}; {pause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handover_says_what_serves_now_and_how_long_anybody_waited() {
        let mut handover = Handover {
            model: "m".into(),
            from: "echo 0.1.0".into(),
            to: "echo 0.2.0".into(),
            done: true,
            reason: None,
            pause_ms: 0,
        };
        assert_eq!(words(&handover), "m: echo 0.1.0 handed over to echo 0.2.0; no request waited");
        handover = Handover { done: false, reason: Some("no token".into()), pause_ms: 40, ..handover };
        assert_eq!(
            words(&handover),
            "m: echo 0.1.0 stays, echo 0.2.0 does not serve: no token; requests waited up to 40 ms"
        );
    }
}
