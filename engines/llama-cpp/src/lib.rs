//! The llama-cpp engine as a plugin: GGUF models through llama.cpp, with the SDK's scheduler, sampler and stop strings.
//!
//! llama.cpp turns batches into logits and text into tokens; everything that decides which tokens come is the SDK's, so
//! that the same parameters mean the same as in every other engine.
//!
//! **Invariant:** unsafe code is in `native` alone.

// Without a device there is nothing to build; Cargo.toml says why.
#![cfg(feature = "cpu")]
#![deny(unsafe_code)]

mod attention;
mod embedding;
mod header;
mod limits;
mod model;
#[expect(unsafe_code, reason = "llama.cpp is C++ behind C functions")]
mod native;
mod needs;
mod options;
mod sequences;
mod tokenizer;

use std::sync::Arc;

use engine_sdk::{
    Device, DeviceBytes, Engine, EngineInfo, Estimate, ModelFiles, Progress, Settings, Status, log, reason,
};

use crate::header::Header;
use crate::limits::Limits;
use crate::model::LlamaModel;
use crate::native::{Context, ContextParameters, LoadParameters, LoadedModel};
use crate::options::Options;
use crate::tokenizer::LlamaTokenizer;

/// The device that is always there.
pub(crate) const CPU: &str = "cpu";

#[derive(Debug)]
pub struct LlamaCpp;

engine_sdk::export_engine!(LlamaCpp);

impl Engine for LlamaCpp {
    type Model = LlamaModel;

    fn info() -> EngineInfo {
        EngineInfo { id: "llama-cpp", version: env!("CARGO_PKG_VERSION") }
    }

    fn devices() -> Result<Vec<Device>, Status> {
        let mut devices = native::accelerators()?;
        devices.push(cpu()?);
        Ok(devices)
    }

    fn estimate(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status> {
        let devices = chosen(settings)?;
        let options = Options::of(settings)?;
        let mut header = Header::read(files)?;
        header.keeps_scores = attention::choose(&header, &options, &devices)?;
        let needs = limits::estimate(&header, settings, &options, &devices)?;
        Ok(Estimate { devices: needs.devices, context_length_max: limits::longest(&header) })
    }

    fn load(
        files: &ModelFiles,
        settings: &Settings,
        budget: &[DeviceBytes],
        progress: &mut Progress<'_>,
    ) -> Result<LlamaModel, Status> {
        let devices = chosen(settings)?;
        let options = Options::of(settings)?;
        let mut header = Header::read(files)?;
        header.keeps_scores = attention::choose(&header, &options, &devices)?;
        let total = header.file_bytes;
        progress.report(0, total)?;
        let limits = Limits::choose(&header, settings, &options, &devices, &granted(&devices, budget)?)?;
        let threads = settings.threads.map_or_else(physical_cores, |threads| threads as usize);
        let parameters = LoadParameters {
            devices: devices.iter().map(|device| device.id.clone()).filter(|id| id != CPU).collect(),
            mmap: options.mmap,
            repack: options.repack,
        };
        let model = Arc::new(LoadedModel::load(&files.id, &header.paths, &parameters, total, progress)?);
        if model.has_encoder() {
            let message = format!(
                "{}: {} has an encoder, which this engine does not run",
                files.id, header.architecture
            );
            return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, message));
        }
        let tokenizer = LlamaTokenizer::new(Arc::clone(&model), &header.control_tokens)?;
        let tokenizer = if header.embedding.is_some() { tokenizer.with_around()? } else { tokenizer };
        let context = Context::new(
            &files.id,
            Arc::clone(&model),
            &ContextParameters {
                cells: limits.cells(),
                sequences: limits.sequences_max,
                batch_tokens: limits.batch_tokens_max,
                kv_format: options.kv_format,
                shared_cells: header.shares_cells(&options),
                keeps_scores: header.keeps_scores,
                embedding: header.embedding,
                threads,
            },
        )?;
        log::info(format_args!(
            "{}: {} in {}, {threads} threads on {}, context {}, {} sequences, {} bytes of {} KV",
            files.id,
            header.architecture,
            header.primary,
            devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>().join(", "),
            limits.context_length,
            limits.sequences_max,
            limits.kv_bytes,
            options.kv_format.as_str(),
        ));
        progress.report(total, total)?;
        Ok(LlamaModel::new(context, tokenizer, limits, &header, options, devices))
    }
}

fn cpu() -> Result<Device, Status> {
    let mut system = sysinfo::System::new().map_err(|error| {
        Status::internal(reason::INTERNAL, format!("the system does not tell its memory: {error}"))
    })?;
    system.refresh_memory();
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let brand = system.cpus().first().map_or("", |cpu| cpu.brand().trim());
    Ok(Device {
        id: CPU.to_owned(),
        kind: CPU.to_owned(),
        name: if brand.is_empty() { std::env::consts::ARCH } else { brand }.to_owned(),
        memory_total: system.total_memory(),
        memory_free: system.available_memory(),
    })
}

/// The devices that the settings name, or the first there is.
fn chosen(settings: &Settings) -> Result<Vec<Device>, Status> {
    let there = LlamaCpp::devices()?;
    if settings.devices.is_empty() {
        return Ok(there.into_iter().take(1).collect());
    }
    let find = |id: &String| {
        there.iter().find(|device| device.id == *id).cloned().ok_or_else(|| {
            let known = there.iter().map(|device| device.id.as_str()).collect::<Vec<_>>().join(", ");
            Status::unsupported(reason::UNKNOWN_DEVICE, format!("device {id} is not one of: {known}"))
                .with_param("devices")
        })
    };
    settings.devices.iter().map(find).collect()
}

/// What the host grants on each device, or what is free where it does not say.
fn granted(devices: &[Device], budget: &[DeviceBytes]) -> Result<Vec<DeviceBytes>, Status> {
    let bytes = |device: &Device| {
        let granted = budget.iter().find(|granted| granted.device == device.id);
        let free = if device.memory_free == 0 { u64::MAX } else { device.memory_free };
        DeviceBytes { device: device.id.clone(), bytes: granted.map_or(free, |granted| granted.bytes) }
    };
    Ok(devices.iter().map(bytes).collect())
}

/// Two threads of one core share its vector units: more threads than cores only wait for each other.
fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    sysinfo::System::physical_core_count().map_or(available, |cores| cores.clamp(1, available))
}
