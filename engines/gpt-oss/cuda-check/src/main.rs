//! What is to be seen on a machine with an NVIDIA GPU, step by step: `gpt-oss-cuda-check STEP`. Each step prints one line of
//! JSON for everything it has seen, as soon as it has.

#![forbid(unsafe_code)]

mod demo;
mod kernels;
mod measure;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use gpt_oss_cpu::Mapped;
use gpt_oss_cuda::Device;
use gpt_oss_cuda::compile::{compile, program_of};
use gpt_oss_cuda::cuda::{Cuda, find, gpus, images};
use gpt_oss_cuda::ops::{OPERATORS, Size};
use gpt_oss_model::Store;
use serde_json::json;

use crate::report::Report;

#[derive(Parser)]
#[command(name = "gpt-oss-cuda-check", about = "What is to be seen on a machine with an NVIDIA GPU")]
struct Arguments {
    #[command(subcommand)]
    step: Step,
}

#[derive(Args, Clone)]
struct Place {
    /// Number of the GPU
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// The emulated device instead, to try this program where there is no GPU
    #[arg(long)]
    emulated: bool,
    /// Compile the kernels of this folder, by NVRTC, and use them instead of those of this build
    #[arg(long)]
    kernels: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Step {
    /// The GPUs that there are, and whether the kernels load
    Smoke(Place),
    /// Every operator against plain Rust
    Devices {
        #[command(flatten)]
        place: Place,
        /// One operator alone
        #[arg(long)]
        only: Option<String>,
    },
    /// The demo model's recorded answers, token for token
    Demo {
        #[command(flatten)]
        place: Place,
        /// Folder of the demo model
        #[arg(long)]
        model: PathBuf,
        /// One prompt alone
        #[arg(long)]
        only: Option<String>,
    },
    /// A whole model: time of a load, memory, decode and prefill
    Model {
        #[command(flatten)]
        place: Place,
        /// Folder of the checkpoint
        #[arg(long)]
        model: PathBuf,
    },
    /// What the device can do at most, and each kernel's share of it
    Roofline(Place),
    /// Compile the kernels for every target and check what they use. Needs NVRTC, no GPU
    Compile {
        /// Folder for the images
        #[arg(long)]
        out: PathBuf,
        /// Folder of the kernels, with the table of registers
        #[arg(long)]
        kernels: PathBuf,
    },
}

fn main() -> ExitCode {
    let mut report = Report::default();
    match run(Arguments::parse().step, &mut report) {
        Ok(()) if report.failed == 0 => ExitCode::SUCCESS,
        Ok(()) => {
            eprintln!("{} of {} failed", report.failed, report.rows);
            ExitCode::FAILURE
        }
        Err(error) => {
            report.failed("end", json!({ "error": format!("{error:#}") }));
            eprintln!("failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(step: Step, report: &mut Report) -> Result<()> {
    match step {
        Step::Smoke(place) => smoke(&place, report),
        Step::Devices { place, only } => devices(&place, only.as_deref(), report),
        Step::Demo { place, model, only } => demo::run(&place, &model, only.as_deref(), report),
        Step::Model { place, model } => measure::model(&place, &model, report),
        Step::Roofline(place) => measure::roofline(&place, report),
        Step::Compile { out, kernels } => kernels::run(&out, &kernels, report),
    }
}

/// The device that was asked for.
fn open(place: &Place) -> Result<Box<dyn Device>> {
    if place.emulated {
        return emulated();
    }
    let Some(folder) = &place.kernels else { return Ok(Box::new(Cuda::open(place.device, None)?)) };
    let program = program_of(folder).map_err(anyhow::Error::msg)?;
    let (major, minor) = find(place.device)?.capability;
    let compiled = compile(&program, &format!("sm_{major}{minor}"))?;
    Ok(Box::new(Cuda::open(place.device, Some(&compiled.image))?))
}

fn emulated() -> Result<Box<dyn Device>> {
    gpt_oss_cuda::emulated_device(0)
        .context("this build has no emulated device: it needs Linux on x86-64 and g++")
}

fn checkpoint(folder: &Path) -> Result<Store<Mapped>> {
    let read = |name: &str| std::fs::read(folder.join(name));
    let store = Store::open("model.safetensors.index.json", read, |name| Mapped::open(&folder.join(name)));
    store.with_context(|| format!("cannot open the checkpoint in {}", folder.display()))
}

fn smoke(place: &Place, report: &mut Report) -> Result<()> {
    report.seen("build", json!({ "images": images().collect::<Vec<_>>() }));
    if !place.emulated {
        for gpu in gpus()? {
            let (major, minor) = gpu.capability;
            report.seen(
                "gpu",
                json!({
                    "number": gpu.number,
                    "name": gpu.name,
                    "capability": format!("{major}.{minor}"),
                    "processors": gpu.processors,
                    "memory_total": gpu.memory_total,
                    "has_kernels": gpu.has_kernels(),
                }),
            );
        }
    }
    let device = open(place)?;
    let info = device.info()?;
    let at = device.allocate(4)?;
    device.upload(at, &[1, 2, 3, 4])?;
    let mut back = [0; 4];
    device.download(at, &mut back)?;
    let row = json!({ "name": info.name, "memory_free": info.memory_free, "driver_bytes": info.driver_bytes,
        "copied_back": back == [1, 2, 3, 4] });
    if back == [1, 2, 3, 4] {
        report.seen("device", row)
    } else {
        report.failed("device", row)
    }
    Ok(())
}

fn devices(place: &Place, only: Option<&str>, report: &mut Report) -> Result<()> {
    for operator in OPERATORS.iter().filter(|o| only.is_none_or(|name| name == o.name)) {
        for size in Size::ALL {
            // A device of its own: its memory is free again afterwards, and a failed one spoils no other.
            let device = open(place)?;
            let row = json!({ "operator": operator.name, "size": format!("{size:?}") });
            match (operator.check)(&*device, size, 1) {
                Ok(()) => report.seen("operator", row),
                Err(failure) => {
                    let mut row = row;
                    row["error"] = failure.to_string().into();
                    report.failed("operator", row);
                }
            }
        }
    }
    Ok(())
}
