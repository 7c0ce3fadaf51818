//! `llm-router models`: register, list, show, change, remove; and what is in memory.

mod follow;
mod loaded;
mod settings;
mod source;

pub use loaded::table as loaded_table;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use admin_api::{AvailableList, Deleted, ModelDetails, ModelList, RegisterModel};
use anyhow::Result;
use model_manifest::{Format, Source};
use node_api::{ModelSettings, ModelState};

use super::Context;
use crate::arguments::{AddArguments, FormatArgument, ModelsCommand, ModelsLsArguments};
use crate::client::Client;
use crate::output;

pub async fn run(context: &Context, command: ModelsCommand) -> Result<ExitCode> {
    match command {
        ModelsCommand::Add(add) => register(context, &add).await,
        ModelsCommand::Ls(ls) => list(context, &ls).await,
        ModelsCommand::Show { id, client } => show(context, &context.client(&client)?, &id).await,
        ModelsCommand::Set(arguments) => settings::set(context, &arguments).await,
        ModelsCommand::Ps { client } => loaded::ps(context, &context.client(&client)?).await,
        ModelsCommand::Load(arguments) => loaded::place(context, &arguments, "load").await,
        ModelsCommand::Unload(arguments) => loaded::place(context, &arguments, "unload").await,
        ModelsCommand::Rm { id, client } => remove(context, &context.client(&client)?, &id).await,
    }
}

async fn register(context: &Context, add: &AddArguments) -> Result<ExitCode> {
    let client = context.client(&add.client)?;
    let mut settings = ModelSettings::default();
    settings::apply(&mut settings, &add.settings, &[]);
    let mut body = RegisterModel {
        format: add.format.map(|f| match f {
            FormatArgument::Safetensors => Format::Safetensors,
            FormatArgument::Gguf => Format::Gguf,
        }),
        revision: add.revision.clone(),
        file: add.file.clone(),
        id: add.id.clone(),
        require_engine: add.require_engine.then_some(true),
        settings: (settings != ModelSettings::default()).then_some(settings),
        ..RegisterModel::default()
    };
    source::fill(&add.source, &mut body)?;
    let registered: ModelDetails = client.post(&["api", "models"], &body).await?;
    let id = registered.model.id.clone();
    if !context.json {
        eprintln!(
            "registered {id}: {} files, {}, {}",
            registered.model.files,
            output::bytes(registered.model.total_bytes),
            pinned(&registered.model.source)
        );
    }
    let wait = add.wait || (!add.no_wait && std::io::stderr().is_terminal());
    let model = if wait { follow::until_ready(&client, &id).await? } else { registered };
    if context.json {
        output::print_json(&model)?;
    } else if wait {
        println!("{id} is {}", model.model.state.as_str());
    } else {
        println!("{id} is {}; `llm-router models show {id}` tells how far it is", model.model.state.as_str());
    }
    Ok(ExitCode::SUCCESS)
}

fn pinned(source: &Source) -> String {
    match source {
        Source::Hub { repo, revision, commit } => {
            format!("from {repo} at {revision} ({})", commit.get(..12).unwrap_or(commit))
        }
        Source::Local { path } => format!("in place at {path}"),
    }
}

async fn list(context: &Context, ls: &ModelsLsArguments) -> Result<ExitCode> {
    let client = context.client(&ls.client)?;
    if ls.available {
        return list_available(context, &client).await;
    }
    let list: ModelList = client.get(&["api", "models"]).await?;
    if context.json {
        output::print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.models.is_empty() {
        println!("no models are registered; `llm-router models ls --available` shows models known to work");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        output::table(&["model", "format", "architecture", "size", "state", "context", "why not ready"]);
    for model in &list.models {
        table.add_row([
            model.id.clone(),
            model.format.to_string(),
            model.architecture.clone(),
            output::bytes(model.total_bytes),
            model.state.as_str().to_owned(),
            context_shown(model),
            model.reason.clone().unwrap_or_default(),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

/// What a worker serves with, when one has the model; else what was set.
fn context_shown(model: &admin_api::Model) -> String {
    let loaded = model.nodes.iter().find_map(|n| match &n.state {
        ModelState::Loaded { context_length, sequences_max, .. } => {
            Some(format!("{context_length} x {sequences_max}"))
        }
        _ => None,
    });
    loaded
        .or_else(|| model.settings.context_length.map(|c| c.to_string()))
        .unwrap_or_else(|| "fits memory".to_owned())
}

async fn list_available(context: &Context, client: &Client) -> Result<ExitCode> {
    let list: AvailableList = client.get(&["api", "available"]).await?;
    if context.json {
        output::print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        output::table(&["model", "repository", "format", "download", "memory", "runtimes", "registered"]);
    for model in &list.models {
        table.add_row([
            model.id.clone(),
            model.repo.clone(),
            model.format.to_string(),
            output::bytes(model.size),
            output::bytes(model.memory),
            model.runtimes.join(", "),
            if model.registered { "yes" } else { "" }.to_owned(),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

async fn show(context: &Context, client: &Client, id: &str) -> Result<ExitCode> {
    let details: ModelDetails = client.get(&["api", "models", id]).await?;
    if context.json {
        output::print_json(&details)?;
        return Ok(ExitCode::SUCCESS);
    }
    let model = &details.model;
    println!("{}", model.id);
    println!("  source        {}", pinned(&model.source));
    println!("  format        {}, {} files, {}", model.format, model.files, output::bytes(model.total_bytes));
    println!("  architecture  {}; runs in {}", model.architecture, or_none(&model.runtimes.join(", ")));
    if let Some(context) = model.context_length_max {
        println!("  made for      {context} tokens of context");
    }
    println!("  context       {}", context_shown(model));
    println!("  settings      {}", settings::words(&model.settings));
    println!("  fingerprint   {}", model.fingerprint);
    println!("  state         {}", model.state.as_str());
    if let Some(reason) = &model.reason {
        println!("  why           {reason}");
    }
    for note in &model.notes {
        println!("  note          {}", note.replace('\n', "\n                "));
    }
    let mut nodes = output::table(&["node", "state", "details"]);
    for node in &model.nodes {
        nodes.add_row([
            node.node_name.clone(),
            state_word(&node.state).to_owned(),
            state_details(&node.state),
        ]);
    }
    println!("\n{nodes}");
    for node in &model.nodes {
        for note in &node.notes {
            println!("{}: {note}", node.node_name);
        }
    }
    if let Some(candidates) = candidates(&model.nodes) {
        println!("\n{candidates}");
    }
    let mut files = output::table(&["file", "size", "sha256", "optional"]);
    for file in &details.manifest.files {
        files.add_row([
            file.name.as_str(),
            &output::bytes(file.size),
            file.sha256.get(..16).unwrap_or(&file.sha256),
            if file.optional { "yes" } else { "" },
        ]);
    }
    println!("\n{files}");
    Ok(ExitCode::SUCCESS)
}

/// Engines that could run it, in the order in which each node would choose them; nothing where there is no choice.
fn candidates(nodes: &[admin_api::ModelOnNode]) -> Option<comfy_table::Table> {
    let mut table =
        output::table(&["node", "could run in", "device", "tokens/s", "first token", "memory", "place"]);
    for node in nodes {
        for candidate in &node.candidates {
            let score =
                |f: fn(&node_api::Score) -> String| candidate.score.as_ref().map(f).unwrap_or_default();
            table.add_row([
                node.node_name.clone(),
                format!("{} {}", candidate.engine, candidate.engine_version),
                candidate.device.clone(),
                score(|s| format!("{:.1}", s.tokens_per_second)),
                score(|s| format!("{:.0} ms", s.first_token_ms)),
                score(|s| output::bytes(s.memory)),
                candidate.reason.clone(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "no engine that is known" } else { text }
}

fn state_word(state: &ModelState) -> &'static str {
    admin_api::Availability::of(state).as_str()
}

fn state_details(state: &ModelState) -> String {
    match state {
        ModelState::Waiting => String::new(),
        ModelState::Downloading { bytes_done, bytes_total, files } => {
            format!("{} of {}: {}", output::bytes(*bytes_done), output::bytes(*bytes_total), files.join(", "))
        }
        ModelState::Verifying { bytes_done, bytes_total } => {
            format!("{} of {}", output::bytes(*bytes_done), output::bytes(*bytes_total))
        }
        ModelState::Ready { engine, engine_version, device } => {
            format!("{engine} {engine_version} on {device}")
        }
        ModelState::Loading { engine, device, progress, .. } => {
            format!("{engine} on {device}, {:.0} %", progress * 100.0)
        }
        ModelState::Loaded { engine, engine_version, device, context_length, sequences_max, worker } => {
            format!(
                "{engine} {engine_version} on {device}, {sequences_max} sequences of {context_length} tokens, worker {worker}"
            )
        }
        ModelState::Unsupported { reason } => reason.clone(),
        ModelState::Failed { reason, retrying } => {
            format!("{reason}{}", if *retrying { " (trying again)" } else { "" })
        }
    }
}

async fn remove(context: &Context, client: &Client, id: &str) -> Result<ExitCode> {
    let deleted: Deleted = client.delete(&["api", "models", id]).await?;
    if context.json {
        output::print_json(&deleted)?;
    } else {
        println!(
            "removed {}; nodes take it out of memory, and of its files in the shared cache at most those that they brought",
            deleted.id
        );
    }
    Ok(ExitCode::SUCCESS)
}
