//! `llm-router serve`: a router alone.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use router::Running;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::arguments::ServeArguments;
use crate::client::Client;
use crate::instance::{self, Claim, Instance};
use crate::settings::{HubSettings, JoinSettings, RouterSettings, over};
use crate::{output, shutdown};

/// For the look at who holds a port that is taken.
const PROBE_MAX: Duration = Duration::from_secs(2);

pub async fn run(context: &Context, arguments: &ServeArguments) -> Result<ExitCode> {
    let instance = match instance::claim(&context.data_dir)? {
        Claim::Ours(instance) => instance,
        Claim::Theirs(note) => {
            let place = note.map(|n| format!(" at {} (process {})", n.url, n.pid)).unwrap_or_default();
            bail!(
                "a router already runs with the data folder {}{place}\nhint: end it, or give this one another --data-dir",
                context.data_dir.display()
            );
        }
    };
    context.start_log("router")?;
    let end = shutdown::token(arguments.service.exit_with_stdin)?;
    let config = config(context, &arguments.router, &arguments.hub, &arguments.join)?;
    let running = start(config, &instance, end).await?;
    announce(context, &running)?;
    running.wait().await;
    Ok(ExitCode::SUCCESS)
}

/// What the router library is told, out of flags, environment and file.
pub fn config(
    context: &Context,
    flags: &RouterSettings,
    hub: &HubSettings,
    join: &JoinSettings,
) -> Result<router::Config> {
    let settings = over(flags, &context.file.router)?;
    let mut config = router::Config::new(&context.data_dir);
    config.hub = context.hub(hub)?;
    config.join_secret_file = Some(context.join_secret_file(join)?);
    // A tunnel can bring a node of another machine to a loopback address, and this machine's folders are not there.
    config.machine_id = Some(node::machine_id());
    set(&mut config.listen, settings.listen);
    set(&mut config.allow_cpu, settings.allow_cpu);
    set(&mut config.require_engine, settings.require_engine);
    set(&mut config.artifact_allowlist, settings.artifact_allowlist);
    config.supported_models = settings.supported_models;
    config.template_clock = settings.template_clock.as_deref().map(parse_clock).transpose()?;
    let limits = &mut config.limits;
    set(&mut limits.body_bytes_max, settings.body_bytes_max);
    set(&mut limits.queue_length, settings.queue_length);
    set(&mut limits.queue_wait, settings.queue_wait_seconds.map(Duration::from_secs));
    set(&mut limits.keep_alive, settings.keep_alive_seconds.map(Duration::from_secs));
    set(&mut limits.drain, settings.drain_seconds.map(Duration::from_secs));
    Ok(config)
}

fn set<T>(field: &mut T, chosen: Option<T>) {
    if let Some(value) = chosen {
        *field = value;
    }
}

/// A day, at its start in UTC, or a moment.
fn parse_clock(text: &str) -> Result<time::OffsetDateTime> {
    let day = time::macros::format_description!("[year]-[month]-[day]");
    if let Ok(date) = time::Date::parse(text, &day) {
        return Ok(date.midnight().assume_utc());
    }
    time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).with_context(|| {
        format!("the template clock `{text}` is no time\nhint: write 2025-01-01 or 2025-01-01T12:00:00Z")
    })
}

/// Starts the router and leaves the note where it listens.
pub async fn start(config: router::Config, instance: &Instance, end: CancellationToken) -> Result<Running> {
    let listen = config.listen;
    let running = match router::start(config, end).await {
        Ok(running) => running,
        Err(e @ router::StartError::PortBusy { .. }) => {
            return Err(anyhow::Error::new(e).context(format!(
                "port {} is taken{}\nhint: choose another with --listen; `{}` names the program that holds it",
                listen.port(),
                who_answers(&format!("http://{listen}")).await,
                port_command(listen.port()),
            )));
        }
        Err(e) => return Err(e.into()),
    };
    instance.announce(&running.url())?;
    Ok(running)
}

async fn who_answers(url: &str) -> String {
    let ask = async { Client::new(url).ok()?.get::<admin_api::Version>(&["api", "version"]).await.ok() };
    match tokio::time::timeout(PROBE_MAX, ask).await {
        Ok(Some(found)) => format!(" by another {} {}", found.name, found.version),
        Ok(None) | Err(_) => " by another program".to_owned(),
    }
}

/// What shows a port's owner on this system.
fn port_command(port: u16) -> String {
    if cfg!(windows) {
        format!("netstat -ano | findstr :{port}")
    } else if cfg!(target_os = "macos") {
        format!("lsof -nP -iTCP:{port} -sTCP:LISTEN")
    } else {
        format!("ss -ltnp sport = :{port}")
    }
}

/// The one line on stdout that says the router can be used.
pub fn announce(context: &Context, running: &Running) -> Result<()> {
    if context.json {
        return output::print_json(&json!({
            "url": running.url(),
            "pid": std::process::id(),
            "data_dir": context.data_dir,
            "already_running": false,
        }));
    }
    println!("llm-router {} listens on {}", env!("CARGO_PKG_VERSION"), running.url());
    println!("  API    {}/v1", running.url());
    println!("  data   {}", context.data_dir.display());
    println!("  logs   {}", context.log_dir.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks() {
        let day = parse_clock("2025-01-01").expect("a day");
        assert_eq!(day.unix_timestamp(), 1_735_689_600);
        assert_eq!(parse_clock("2025-01-01T12:00:00Z").expect("a moment").unix_timestamp(), 1_735_732_800);
        let error = parse_clock("soon").expect_err("no time");
        assert!(error.to_string().contains("soon") && error.to_string().contains("hint: "), "{error}");
    }
}
