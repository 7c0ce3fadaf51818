//! `llm-router up`: router and node in one process, with no wire between them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use node::{DeviceChoice, RouterAddress};
use serde_json::json;
use tokio::time::Instant;

use super::{Context, node as node_command, serve};
use crate::arguments::UpArguments;
use crate::instance::{self, Claim, Instance};
use crate::{output, shutdown};

/// Between the first one's lock and its note lies the opening of its database.
const NOTE_WAIT_MAX: Duration = Duration::from_secs(20);
const NOTE_POLL: Duration = Duration::from_millis(50);

pub async fn run(context: &Context, arguments: &UpArguments) -> Result<ExitCode> {
    let Some(instance) = first(context).await? else { return Ok(ExitCode::SUCCESS) };
    context.start_log("up")?;
    let end = shutdown::token(arguments.service.exit_with_stdin)?;

    let mut node_config = node_command::config(context, &arguments.node, &arguments.hub)?;
    let mut router_config = serve::config(context, &arguments.router, &arguments.hub, &arguments.join)?;
    let asks_for_cpu =
        matches!(&node_config.devices, DeviceChoice::Only(ids) if ids.iter().any(|id| id == "cpu"));
    let decided = arguments.router.allow_cpu.or(context.file.router.allow_cpu).is_some();
    if asks_for_cpu && !decided {
        // Whoever names the CPU for a node of this very process wants its router to take it.
        router_config.allow_cpu = true;
    }
    let router = serve::start(router_config, &instance, end.clone()).await?;
    node_config.routers = vec![RouterAddress::Local(router.local())];
    let node = match node::start(node_config, end.clone()).await {
        Ok(node) => node,
        Err(e) => {
            end.cancel();
            router.wait().await;
            return Err(e.into());
        }
    };
    serve::announce(context, &router)?;
    let ended = node.wait().await;
    // A node that ends by itself leaves nothing to route to; say why and take the router down too.
    end.cancel();
    router.wait().await;
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Claims the data folder, or shows the router that already has it.
async fn first(context: &Context) -> Result<Option<Instance>> {
    let deadline = Instant::now() + NOTE_WAIT_MAX;
    let mut ticks = tokio::time::interval(NOTE_POLL);
    loop {
        ticks.tick().await;
        match instance::claim(&context.data_dir)? {
            Claim::Ours(instance) => return Ok(Some(instance)),
            Claim::Theirs(Some(note)) => {
                if context.json {
                    output::print_json(&json!({
                        "url": note.url, "pid": note.pid, "data_dir": context.data_dir, "already_running": true,
                    }))?;
                } else {
                    println!(
                        "llm-router {} already runs at {} (process {})",
                        note.version, note.url, note.pid
                    );
                }
                return Ok(None);
            }
            Claim::Theirs(None) if Instant::now() < deadline => {}
            Claim::Theirs(None) => bail!(
                "another process holds the data folder {} and does not say where it listens\n\
                 hint: end it, or give this one another --data-dir",
                context.data_dir.display()
            ),
        }
    }
}
