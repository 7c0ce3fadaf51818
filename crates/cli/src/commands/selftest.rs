//! `llm-router selftest`: tries the engine on this machine's devices and prints one report, fit for a bug report.
//!
//! What is tried is in a program of its own beside this one, started anew for each device: a driver that crashes or hangs ends
//! that program, and is a line of the report.

mod program;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Context, doctor};
use crate::arguments::SelftestArguments;
use crate::output;

use program::{Program, SILENCE_MAX};
pub use program::{adapters, limits};

/// A device or adapter as the engine sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterLine {
    pub id: String,
    pub name: String,
    pub driver: String,
    /// In words.
    pub verdict: String,
    pub usable: bool,
    /// It computes on the processor.
    pub software: bool,
    /// Numbers of the interface's own.
    #[serde(default)]
    pub limits: Value,
}

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub check: String,
    /// `ok` or `fail`.
    pub verdict: String,
    pub found: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub figures: Value,
}

impl Check {
    pub fn failed(check: impl Into<String>, found: impl Into<String>) -> Check {
        Check { check: check.into(), verdict: FAIL.to_owned(), found: found.into(), figures: Value::Null }
    }

    fn is_failed(&self) -> bool {
        self.verdict != OK
    }
}

const OK: &str = "ok";
const FAIL: &str = "fail";

#[derive(Debug, Serialize)]
struct DeviceReport {
    device: String,
    checks: Vec<Check>,
}

pub async fn run(context: &Context, arguments: &SelftestArguments) -> Result<ExitCode> {
    let silence_max = arguments.silence_seconds.map_or(SILENCE_MAX, Duration::from_secs);
    let program = Program::find(arguments.program.as_deref(), silence_max)?;
    let adapters = program.adapters().await;
    let devices = match &arguments.devices {
        Some(devices) => devices.clone(),
        None => usual(adapters.as_deref().unwrap_or_default()),
    };
    let mut reports = Vec::new();
    for device in devices {
        if !context.json {
            eprintln!("trying {device} …");
        }
        let checks = program.run(&device).await;
        reports.push(DeviceReport { device, checks });
    }
    let failed = adapters.is_err() || reports.iter().flat_map(|r| &r.checks).any(Check::is_failed);
    let machine = [doctor::system(), doctor::memory()];
    if context.json {
        let adapters = match &adapters {
            Ok(adapters) => serde_json::json!(adapters),
            Err(why) => serde_json::json!({ "error": why }),
        };
        output::print_json(&serde_json::json!({
            "verdict": if failed { FAIL } else { OK },
            "machine": machine,
            "adapters": adapters,
            "devices": reports,
        }))?;
    } else {
        println!("{}", text(&machine, &adapters, &reports));
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Every device that would be served with, and the processor.
fn usual(adapters: &[AdapterLine]) -> Vec<String> {
    let usable = adapters.iter().filter(|adapter| adapter.usable).map(|adapter| adapter.id.clone());
    usable.chain(["cpu".to_owned()]).collect()
}

fn text(
    machine: &[doctor::Finding],
    adapters: &Result<Vec<AdapterLine>, String>,
    reports: &[DeviceReport],
) -> String {
    let mut lines: Vec<String> = machine.iter().map(|f| format!("{}: {}", f.about, f.found)).collect();
    match adapters {
        Err(why) => lines.push(format!("FAIL  the engine cannot list its devices: {why}")),
        Ok(adapters) if adapters.is_empty() => lines.push("adapters: none but the processor".to_owned()),
        Ok(adapters) => lines.extend(adapters.iter().map(|a| {
            format!(
                "adapter {}: {}, driver {}, {}: {}",
                a.id,
                a.name,
                if a.driver.is_empty() { "unknown" } else { &a.driver },
                limits(&a.limits),
                a.verdict
            )
        })),
    }
    for DeviceReport { device, checks } in reports {
        lines.push(format!("\n{device}"));
        for check in checks {
            let word = if check.is_failed() { "FAIL" } else { "ok  " };
            lines.push(format!("  {word}  {}: {}", check.check, check.found));
            let kernels = check.figures["kernels"].as_array().map(Vec::as_slice).unwrap_or_default();
            lines.extend(kernels.iter().map(kernel));
        }
    }
    lines.join("\n")
}

fn kernel(row: &Value) -> String {
    format!(
        "          {} of {} tokens: {:.1} µs, {:.1} GB/s, {:.0} % of what the device gives",
        row["kernel"].as_str().unwrap_or("?"),
        row["tokens"],
        row["microseconds"].as_f64().unwrap_or(f64::NAN),
        row["gigabytes_a_second"].as_f64().unwrap_or(f64::NAN),
        row["share"].as_f64().unwrap_or(f64::NAN) * 100.0
    )
}

/// The devices named twice or not at all are a mistake in the words.
pub fn device_name(text: &str) -> Result<String> {
    let (kind, number) = text.split_once(':').unwrap_or((text, "0"));
    if !["cpu", "cuda", "metal", "vulkan", "d3d12"].contains(&kind) || number.parse::<u16>().is_err() {
        bail!("`{text}` is no device; write cpu, or an id such as cuda:0 or vulkan:0");
    }
    Ok(if kind == "cpu" { kind.to_owned() } else { format!("{kind}:{number}") })
}

#[cfg(test)]
mod tests;
