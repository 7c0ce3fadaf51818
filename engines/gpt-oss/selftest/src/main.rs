//! Tries the gpt-oss engine on a device of this machine: `gpt-oss-selftest adapters`, `gpt-oss-selftest run --device ID`.
//!
//! `llm-router selftest` and `doctor` start it as a process of its own, because a driver may take its process with it. Each
//! thing is a line of JSON when it begins and one when it is done, so that whoever reads knows what was at work at the end.

#![forbid(unsafe_code)]

mod cpu;
mod cuda;
mod demo;
mod portable;
mod report;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use crate::report::Report;

#[derive(Parser)]
#[command(name = "gpt-oss-selftest", about = "Tries the gpt-oss engine on a device of this machine")]
struct Arguments {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Every adapter and device that the engine sees, in the order in which they are offered
    Adapters,
    /// Kernels, the demo model and a short measurement, on one device
    Run {
        /// Such as `cpu`, `cuda:0`, `vulkan:0`. Software adapters are taken, too
        #[arg(long)]
        device: String,
    },
}

fn main() -> ExitCode {
    let mut report = Report::default();
    match run(Arguments::parse().step, &mut report) {
        Ok(()) if report.failed == 0 => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpt-oss-selftest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(step: Step, report: &mut Report) -> Result<()> {
    match step {
        Step::Adapters => {
            cuda::list(report);
            portable::list(report);
            Ok(())
        }
        Step::Run { device } => {
            let kind = device.split(':').next().unwrap_or_default();
            let is_software = match kind {
                "cpu" => {
                    cpu::kernels(report);
                    false
                }
                "cuda" => {
                    cuda::kernels(&device, report)?;
                    false
                }
                "metal" | "vulkan" | "d3d12" => portable::kernels(&device, report)?,
                _ => bail!("device {device} is not one of: cpu, cuda:N, metal:N, vulkan:N, d3d12:N"),
            };
            demo::answers(&device, is_software, report);
            match kind {
                "cpu" => cpu::speed(report),
                "cuda" => cuda::speed(&device, report)?,
                _ => portable::speed(&device, report)?,
            }
            Ok(())
        }
    }
}
