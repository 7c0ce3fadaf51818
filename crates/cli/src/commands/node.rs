//! `llm-router node`: a node alone, joining a router elsewhere or here.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use node::{DeviceChoice, RouterAddress, WatchdogLimits, WorkerProgram};

use super::Context;
use crate::arguments::NodeArguments;
use crate::settings::{ClientSettings, HubSettings, NodeSettings, over};
use crate::shutdown;

pub async fn run(context: &Context, arguments: &NodeArguments) -> Result<ExitCode> {
    context.start_log("node")?;
    let end = shutdown::token(arguments.service.exit_with_stdin)?;
    let url = context.router_url(&ClientSettings { url: arguments.url.clone() })?;
    let secret_file = context.join_secret_file(&arguments.join)?;
    let join_secret = read_secret(&secret_file)?;
    let mut config = config(context, &arguments.node, &arguments.hub)?;
    config.routers.push(RouterAddress::Url { url, join_secret });
    node::start(config, end).await?.wait().await?;
    Ok(ExitCode::SUCCESS)
}

fn read_secret(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| {
        format!(
            "cannot read the join secret {}\nhint: the router keeps it as join-secret in its data folder; copy that \
             file here, or name it with --join-secret-file",
            path.display()
        )
    })?;
    Ok(text.trim().to_owned())
}

/// What the node library is told, out of flags, environment and file; without routers.
pub fn config(context: &Context, flags: &NodeSettings, hub: &HubSettings) -> Result<node::Config> {
    let settings = over(flags, &context.file.node)?;
    let mut config = node::Config::new(context.data_dir.join("node"), context.hub(hub)?, worker_program()?);
    config.engine_dirs = engine_dirs(context, settings.engines_dirs.as_deref())?;
    config.devices = device_choice(&settings)?;
    config.allow_software = settings.allow_software.unwrap_or(config.allow_software);
    config.name.clone_from(&settings.name);
    config.context_length = settings.context_length;
    config.sequences_max = settings.sequences_max;
    config.threads = settings.threads.unwrap_or(config.threads);
    config.downloads_parallel = settings.downloads_parallel.unwrap_or(config.downloads_parallel);
    config.drain = settings.node_drain_seconds.map_or(config.drain, Duration::from_secs);
    host(&mut config, &settings)?;
    Ok(config)
}

/// How workers are watched, kept and replaced.
fn host(config: &mut node::Config, settings: &NodeSettings) -> Result<()> {
    let seconds = |set: Option<u64>, usual: Duration| set.map_or(usual, Duration::from_secs);
    let usual = config.watchdog;
    config.watchdog = WatchdogLimits::new(
        seconds(settings.watchdog_progress_seconds, usual.progress),
        seconds(settings.watchdog_decode_seconds, usual.decode),
        seconds(settings.watchdog_stall_seconds, usual.stall),
    );
    let memory = &mut config.memory;
    memory.alert_percent = settings.memory_alert_percent.unwrap_or(memory.alert_percent);
    memory.evict_percent = settings.memory_evict_percent.unwrap_or(memory.evict_percent);
    memory.minimum_stay = seconds(settings.minimum_stay_seconds, memory.minimum_stay);
    memory.room_wait_max = seconds(settings.room_wait_seconds, memory.room_wait_max);
    memory.overrun_margin_percent = settings.overrun_margin_percent.unwrap_or(memory.overrun_margin_percent);
    memory.overrun_margin_bytes = settings.overrun_margin_bytes.unwrap_or(memory.overrun_margin_bytes);
    config.keep_alive = settings.model_keep_alive_seconds.map(Duration::from_secs);
    config.worker_restart_after = settings
        .worker_restart_hours
        .map(|hours| Duration::from_secs(hours.saturating_mul(SECONDS_PER_HOUR)));
    config.worker_restart_after_requests = settings.worker_restart_requests;
    if let Some(devices) = &settings.simulated_devices {
        config.simulated_devices =
            devices.parse().map_err(anyhow::Error::msg).context("--simulated-devices is not understood")?;
    }
    Ok(())
}

const SECONDS_PER_HOUR: u64 = 3600;

/// This program, as it is started to hold an engine.
pub fn worker_program() -> Result<WorkerProgram> {
    let executable = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(WorkerProgram::of_product(executable))
}

pub fn device_choice(settings: &NodeSettings) -> Result<DeviceChoice> {
    match &settings.devices {
        None => Ok(DeviceChoice::Auto),
        Some(ids) => ids.join(",").parse().map_err(anyhow::Error::msg),
    }
}

/// Where engine plugins are looked for, in order.
pub fn engine_dirs(context: &Context, chosen: Option<&[PathBuf]>) -> Result<Vec<PathBuf>> {
    if let Some(dirs) = chosen {
        return dirs.iter().map(|dir| Ok(std::path::absolute(dir)?)).collect();
    }
    let executable = std::env::current_exe().context("cannot find this program's own file")?;
    let beside = executable.parent().map(|dir| dir.join("engines"));
    Ok(beside.into_iter().chain([context.data_dir.join("engines")]).collect())
}
