//! `llm-router doctor`: looks at this machine and says what is well, what is not, and what to do about it.

mod engines;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::selftest::{self, AdapterLine};
use super::{Context, node as node_command};
use crate::arguments::DoctorArguments;
use crate::{instance, output};

/// Less free memory than this runs only toys.
const RAM_COMFORT_BYTES: u64 = 4 << 30;
/// A 20b model in its published form.
const DISK_COMFORT_BYTES: u64 = 14 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub about: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do; nothing when all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    pub fn ok(about: &'static str, found: impl Into<String>) -> Self {
        Finding { about, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    pub fn warn(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { about, verdict: Verdict::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn fail(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { about, verdict: Verdict::Fail, found: found.into(), advice: Some(advice.into()) }
    }
}

pub async fn run(context: &Context, arguments: &DoctorArguments) -> Result<ExitCode> {
    let mut findings = vec![system()];
    findings.extend(devices().await);
    findings.extend(adapters(selftest::adapters().await));
    findings.push(memory());
    let dirs = node_command::engine_dirs(
        context,
        arguments.engines_dirs.as_deref().or(context.file.node.engines_dirs.as_deref()),
    )?;
    findings.extend(engines::findings(&dirs, &node_command::worker_program()?).await?);
    findings.push(settings_file(context));
    findings.push(writable("data folder", &context.data_dir));
    findings.push(writable("log folder", &context.log_dir));
    findings.extend(hub(context, arguments)?);
    let listen = arguments.listen.or(context.file.router.listen).unwrap_or(router::DEFAULT_LISTEN);
    findings.push(port(context, listen));

    let worst = findings.iter().map(|f| f.verdict).max().unwrap_or(Verdict::Ok);
    if context.json {
        output::print_json(&serde_json::json!({"verdict": worst, "findings": findings}))?;
    } else {
        print(&findings);
    }
    Ok(if worst == Verdict::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(findings: &[Finding]) {
    let mut table = output::table(&["", "about", "found"]);
    for finding in findings {
        let word = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        let advice = finding.advice.as_ref().map(|a| format!("\nhint: {a}")).unwrap_or_default();
        table.add_row([word, finding.about, &format!("{}{advice}", finding.found)]);
    }
    println!("{table}");
}

pub fn system() -> Finding {
    let name = sysinfo::System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    Finding::ok(
        "system",
        format!(
            "{name}, {}, {cores} cores, llm-router {}",
            std::env::consts::ARCH,
            env!("CARGO_PKG_VERSION")
        ),
    )
}

/// GPUs with driver and memory; what could not be looked at, and why.
async fn devices() -> Vec<Finding> {
    let looked = tokio::task::spawn_blocking(|| (node::devices::detect(), node::devices::cpu())).await;
    let Ok((detected, cpu)) = looked else {
        return vec![Finding::fail("devices", "the look at the devices failed", "the log has the reason")];
    };
    let mut findings: Vec<Finding> = detected
        .gpus
        .iter()
        .map(|gpu| {
            let driver = gpu.driver.as_deref().unwrap_or("no driver version known");
            Finding::ok(
                "device",
                format!("{}: {}, {}, {driver}", gpu.id, gpu.name, output::bytes(gpu.memory_total)),
            )
        })
        .collect();
    if detected.gpus.is_empty() {
        findings.push(Finding::warn(
            "device",
            "no GPU was found",
            "install the vendor's driver if there is one; for a try, `llm-router up --device cpu` serves with the CPU",
        ));
    }
    let advice = "without the driver this kind of device is not used; other devices are";
    findings.extend(detected.notes.iter().map(|note| Finding::warn("driver", note, advice)));
    findings.push(Finding::ok(
        "device",
        format!("{}: {}, {}; only by name", cpu.id, cpu.name, output::bytes(cpu.memory_total)),
    ));
    findings
}

/// What the gpt-oss engine sees, told by a program of its own: no driver is loaded into this one.
fn adapters(seen: Option<Result<Vec<AdapterLine>, String>>) -> Vec<Finding> {
    match seen {
        None => vec![Finding::warn(
            "adapter",
            "not looked at: gpt-oss-selftest is not beside this program",
            "it comes with the product; from sources `cargo xtask build` makes it",
        )],
        Some(Err(why)) => vec![Finding::fail(
            "adapter",
            format!("the engine cannot list its adapters: {why}"),
            "a driver may be broken; `llm-router selftest --device cpu` tries the rest",
        )],
        Some(Ok(adapters)) => adapters.iter().map(adapter).collect(),
    }
}

fn adapter(adapter: &AdapterLine) -> Finding {
    let AdapterLine { id, name, driver, verdict, limits, .. } = adapter;
    let found = format!("{id}: {name}, driver {driver}, {}: {verdict}", selftest::limits(limits));
    match (adapter.usable, adapter.software) {
        (true, _) => Finding::ok("adapter", found),
        (false, true) => Finding::ok("adapter", format!("{found}; only by name, with --allow-software")),
        (false, false) => Finding::warn("adapter", found, "a newer driver may have what it lacks"),
    }
}

pub fn memory() -> Finding {
    let mut system = match sysinfo::System::new() {
        Ok(system) => system,
        Err(e) => {
            return Finding::warn(
                "memory",
                format!("not known: {e}"),
                "the node refuses what it cannot measure",
            );
        }
    };
    system.refresh_memory();
    let (total, free) = (system.total_memory(), system.available_memory());
    let found = format!("{} of {} are free", output::bytes(free), output::bytes(total));
    if free < RAM_COMFORT_BYTES {
        return Finding::warn("memory", found, "end other programs before you load a larger model");
    }
    Finding::ok("memory", found)
}

fn settings_file(context: &Context) -> Finding {
    // An unreadable or wrong one has ended the command before this.
    let path = context.config_file.display();
    if context.config_file.exists() {
        Finding::ok("settings", path.to_string())
    } else {
        Finding::ok("settings", format!("{path} does not exist; every setting has its default"))
    }
}

fn writable(about: &'static str, dir: &Path) -> Finding {
    let probe = dir.join(format!(".doctor-{}", std::process::id()));
    let tried = std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&probe, b""))
        .and_then(|()| std::fs::remove_file(&probe));
    match tried {
        Ok(()) => Finding::ok(about, dir.display().to_string()),
        Err(e) => Finding::fail(
            about,
            format!("cannot write in {}: {e}", dir.display()),
            "give this user the right to write there, or name another folder (--data-dir, --log-dir)",
        ),
    }
}

fn hub(context: &Context, arguments: &DoctorArguments) -> Result<Vec<Finding>> {
    let config = context.hub(&arguments.hub)?;
    let token = if config.token.is_some() { "with a token" } else { "without a token" };
    let mut findings = vec![Finding::ok("hub", format!("{}, {token}", config.endpoint))];
    findings.push(writable("model cache", &config.cache_dir));
    findings.push(disk(&config.cache_dir));
    Ok(findings)
}

/// The disk that the folder is on.
fn disk(dir: &Path) -> Finding {
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let disks = match sysinfo::Disks::new_with_refreshed_list() {
        Ok(disks) => disks,
        Err(e) => {
            return Finding::warn(
                "disk",
                format!("not known: {e}"),
                "look for room yourself before a download",
            );
        }
    };
    let on = disks.iter().filter(|d| dir.starts_with(d.mount_point()));
    let Some(disk) = on.max_by_key(|d| d.mount_point().as_os_str().len()) else {
        return Finding::warn(
            "disk",
            format!("no disk is known for {}", dir.display()),
            "look for room yourself before a download",
        );
    };
    let found =
        format!("{} are free on {}", output::bytes(disk.available_space()), disk.mount_point().display());
    if disk.available_space() < DISK_COMFORT_BYTES {
        return Finding::warn(
            "disk",
            found,
            "a 20b model takes 14 GB; move the cache with HF_HUB_CACHE, or make room",
        );
    }
    Finding::ok("disk", found)
}

fn port(context: &Context, listen: SocketAddr) -> Finding {
    if let Some(note) = instance::running(&context.data_dir) {
        return Finding::ok("router", format!("runs at {} (process {})", note.url, note.pid));
    }
    match TcpListener::bind(listen) {
        Ok(_) => Finding::ok("router", format!("not running; {listen} is free")),
        Err(e) => Finding::fail(
            "router",
            format!("not running, and {listen} cannot be used: {e}"),
            "choose another address with --listen, or end the program that holds it",
        ),
    }
}
