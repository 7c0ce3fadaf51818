//! `llm-router engines ls`.

use std::process::ExitCode;

use admin_api::EngineList;
use anyhow::Result;
use node_api::EngineState;

use super::Context;
use crate::arguments::ListCommand;
use crate::output;

pub async fn run(context: &Context, ListCommand::Ls { client }: ListCommand) -> Result<ExitCode> {
    let list: EngineList = context.client(&client)?.get(&["api", "engines"]).await?;
    if context.json {
        output::print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.engines.is_empty() {
        println!("no node has found an engine; `llm-router doctor` on the node tells where it looks");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = output::table(&["engine", "version", "node", "runs", "formats", "devices", "state"]);
    for engine in &list.engines {
        let state = match &engine.state {
            EngineState::Available => "available".to_owned(),
            EngineState::Refused { reason } => format!("refused: {reason}"),
        };
        table.add_row([
            engine.id.clone(),
            engine.version.clone(),
            engine.node_name.clone(),
            engine.architectures.join(", "),
            engine.formats.join(", "),
            engine.devices.join(", "),
            state,
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}
