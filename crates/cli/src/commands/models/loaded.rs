//! `llm-router models ps`, `load` and `unload`.

use std::process::ExitCode;

use admin_api::{LoadedList, LoadedModel, ModelAnswers, ModelPlace};
use anyhow::Result;
use node_api::{ReplicaMemory, ReplicaRole};

use super::{Context, state_details, state_word};
use crate::arguments::PlaceArguments;
use crate::client::Client;
use crate::output;

pub async fn ps(context: &Context, client: &Client) -> Result<ExitCode> {
    let list: LoadedList = client.get(&["api", "ps"]).await?;
    if context.json {
        output::print_json(&list)?;
    } else if list.models.is_empty() {
        println!("no model is in memory; its first request or `llm-router models load` brings one there");
    } else {
        println!("{}", table(&list.models));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn table(models: &[LoadedModel]) -> comfy_table::Table {
    let now = output::now();
    let mut table = output::table(&[
        "model", "node", "engine", "library", "devices", "memory", "context", "requests", "last use",
        "leaves", "state",
    ]);
    for loaded in models {
        let replica = &loaded.replica;
        let memory: Vec<_> = replica.memory.iter().map(memory).collect();
        table.add_row([
            loaded.model.clone(),
            loaded.node_name.clone(),
            format!("{} {}", replica.engine, replica.engine_version),
            replica.library_sha256.chars().take(12).collect(),
            replica.devices.join(", "),
            memory.join("\n"),
            format!("{} x {}", replica.context_length, replica.sequences_max),
            format!("{} running, {} in all", replica.requests_running, replica.requests_total),
            match replica.last_used {
                0 => "never".to_owned(),
                at => format!("{} ago", output::ago(at, now)),
            },
            leaves(loaded.keep_alive_seconds),
            match replica.role {
                ReplicaRole::Starting => "starting",
                ReplicaRole::Serving => "serving",
                ReplicaRole::Draining => "draining",
            }
            .to_owned(),
        ]);
    }
    table
}

fn memory(told: &ReplicaMemory) -> String {
    let granted = output::bytes(told.granted);
    let estimated = output::bytes(told.estimated);
    format!("{}: {} of {granted} granted, {estimated} estimated", told.device, output::bytes(told.used))
}

/// When it leaves memory by itself.
fn leaves(keep_alive_seconds: Option<i64>) -> String {
    match keep_alive_seconds {
        None => "as the node is set".to_owned(),
        Some(seconds) if seconds < 0 => "never".to_owned(),
        Some(0) => "at once".to_owned(),
        Some(seconds) => format!("after {} idle", output::ago(0, seconds)),
    }
}

pub async fn place(context: &Context, arguments: &PlaceArguments, verb: &str) -> Result<ExitCode> {
    let client = context.patient_client(&arguments.client)?;
    let body = ModelPlace { node: arguments.node.clone() };
    let answers: ModelAnswers = client.command(&["api", "models", &arguments.id, verb], &body).await?;
    let failed = answers.nodes.iter().any(|n| n.error.is_some());
    if context.json {
        output::print_json(&answers)?;
    } else if answers.nodes.is_empty() {
        println!("{} is in no node's memory", answers.id);
    }
    for node in answers.nodes.iter().filter(|_| !context.json) {
        if let Some(error) = &node.error {
            println!("{}: failed: {}", node.node_name, error.message);
        }
        if let Some(model) = &node.model {
            println!("{}: {}; {}", node.node_name, state_word(&model.state), state_details(&model.state));
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::leaves;

    #[test]
    fn when_a_model_leaves_is_said_in_words() {
        let cases = [
            (None, "as the node is set"),
            (Some(-1), "never"),
            (Some(0), "at once"),
            (Some(90), "after 90 s idle"),
            (Some(600), "after 10 min idle"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(leaves(seconds), expected);
        }
    }
}
