//! The gpt-oss engine as a plugin: settings and memory on one side, a device's forward pass on the other.

mod cuda;
mod either;
mod files;
mod limits;
mod model;
mod options;
mod portable;
mod tables;

use engine_sdk::{
    Device, DeviceBytes, DeviceNeed, Engine, EngineInfo, Estimate, ModelFiles, Progress, Settings, Status,
    log, reason,
};
use gpt_oss_cpu::{CpuModel, Pool};

pub use crate::either::Either;
use crate::files::Opened;
use crate::limits::{Fixed, Limits};
use crate::model::GptOssModel;
use crate::options::{DenseWeights, Options};

/// The device that is always there.
pub(crate) const CPU: &str = "cpu";

#[derive(Debug)]
pub struct GptOss;

engine_sdk::export_engine!(GptOss);

impl Engine for GptOss {
    type Model = Either;

    fn info() -> EngineInfo {
        EngineInfo { id: "gpt-oss", version: env!("CARGO_PKG_VERSION") }
    }

    fn devices() -> Result<Vec<Device>, Status> {
        let mut devices = cuda::devices();
        devices.extend(portable::devices());
        devices.push(cpu()?);
        Ok(devices)
    }

    fn estimate(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status> {
        match place(settings)? {
            Place::Cpu => estimate_cpu(files, settings),
            Place::Cuda(number) => cuda::estimate(files, settings, number),
            Place::Portable(id) => portable::estimate(files, settings, &id),
        }
    }

    fn load(
        files: &ModelFiles,
        settings: &Settings,
        budget: &[DeviceBytes],
        progress: &mut Progress<'_>,
    ) -> Result<Either, Status> {
        match place(settings)? {
            Place::Cpu => Ok(Either::Cpu(Box::new(load_cpu(files, settings, budget, progress)?))),
            Place::Cuda(number) => {
                let model = cuda::load(files, settings, budget, number, progress)?;
                Ok(Either::Cuda(Box::new(model)))
            }
            Place::Portable(id) => {
                let model = portable::load(files, settings, budget, &id, progress)?;
                Ok(Either::Portable(Box::new(model)))
            }
        }
    }
}

/// Where a model is to be: one worker has one device.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Cpu,
    Cuda(u32),
    /// Such as `vulkan:0`.
    Portable(String),
}

fn place(settings: &Settings) -> Result<Place, Status> {
    let first = match settings.devices.first() {
        Some(first) => first.clone(),
        None => GptOss::devices()?.into_iter().next().map_or_else(|| CPU.to_owned(), |d| d.id),
    };
    let refused =
        |message: String| Err(Status::unsupported(reason::UNKNOWN_DEVICE, message).with_param("devices"));
    if let Some(other) = settings.devices.iter().find(|d| **d != first) {
        return refused(format!("devices {first} and {other}: a model of this engine is on one device"));
    }
    match cuda::number(&first) {
        _ if first == CPU => Ok(Place::Cpu),
        Some(number) => Ok(Place::Cuda(number)),
        None if portable::is_one(&first) => Ok(Place::Portable(first)),
        None => refused(format!("device {first} is not one of: {CPU}, cuda:N, metal:N, vulkan:N, d3d12:N")),
    }
}

fn cpu() -> Result<Device, Status> {
    let mut system = sysinfo::System::new().map_err(|error| {
        Status::internal(reason::INTERNAL, format!("the system does not tell its memory: {error}"))
    })?;
    system.refresh_memory();
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let brand = system.cpus().first().map_or("", |cpu| cpu.brand().trim());
    let isa = gpt_oss_cpu::Isa::detect().as_str();
    let brand = if brand.is_empty() { std::env::consts::ARCH } else { brand };
    Ok(Device {
        id: CPU.to_owned(),
        kind: CPU.to_owned(),
        name: format!("{brand} ({isa})"),
        memory_total: system.total_memory(),
        memory_free: system.available_memory(),
    })
}

fn estimate_cpu(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status> {
    let options = Options::of(settings)?;
    let store = files::open(files, settings)?.store;
    let (sequences, batch) = limits::sequences_and_batch(settings, limits::ON_CPU)?;
    let needs = limits::needs(store.config(), batch, sequences, options.kv());
    let copy = options.copy_bytes(store.config());
    let (mapped, converted) = store.tensor_bytes();
    let need = DeviceNeed {
        device: CPU.to_owned(),
        weights: copy.copy + converted,
        weights_mapped: mapped.saturating_sub(copy.replaced),
        workspace: needs.workspace + needs.kv_shared + files::tokenizer_bytes(files)?,
        per_sequence: 0,
        kv_per_token: needs.kv_per_token,
        kv_fixed: needs.kv_fixed,
    };
    Ok(Estimate { devices: vec![need], context_length_max: store.config().context_length_max })
}

fn load_cpu(
    files: &ModelFiles,
    settings: &Settings,
    budget: &[DeviceBytes],
    progress: &mut Progress<'_>,
) -> Result<GptOssModel, Status> {
    gpt_oss_cpu::keep_freed();
    let options = Options::of(settings)?;
    let Opened { store, runs } = files::open(files, settings)?;
    let total: u64 = store.shards().iter().map(|s| s.as_ref().len() as u64).sum();
    progress.report(0, total)?;
    let copy = options.copy_bytes(store.config()).copy + store.tensor_bytes().1;
    let fixed = Fixed { tokenizer: files::tokenizer_bytes(files)?, copy };
    let limits = Limits::choose(store.config(), settings, options.kv(), fixed, granted(budget)?)?;
    let tokenizer = files::tokenizer(files)?;
    let threads = settings.threads.map_or_else(physical_cores, |threads| threads as usize);
    let pool = if options.pin { Pool::pinned(threads) } else { Pool::new(threads) }.map_err(|error| {
        Status::load_failed("threads_unavailable", format!("cannot start {threads} threads: {error}"))
    })?;
    let mut model = CpuModel::new(store, pool, options.isa)
        .with_activations(options.activations)
        .with_kv_format(options.kv_format);
    if options.deterministic {
        model = model.deterministic();
    }
    let read = match options.dense_weights {
        DenseWeights::Bf16 => 0,
        DenseWeights::Int8 => files::prepare_int8(&mut model, total, progress)?,
    };
    if options.touch {
        files::touch(&model, read, total, progress)?;
    }
    if let Some(why) = gpt_oss_cpu::Isa::amx_refused() {
        log::warn(format_args!("AMX is not used: {why}"));
    }
    log::info(format_args!(
        "{}: {runs}; {} threads, {}, {} activations, {} attention and output{}, context {}, {} sequences, {} bytes of {} KV",
        files.id,
        model.threads(),
        model.isa().as_str(),
        model.activations().as_str(),
        options.dense_weights.as_str(),
        if options.deterministic { ", deterministic" } else { "" },
        limits.context_length,
        limits.sequences_max,
        limits.kv_bytes,
        options.kv_format.as_str()
    ));
    progress.report(total, total)?;
    Ok(GptOssModel::new(model, tokenizer, limits, options, runs))
}

/// What the host grants on the cpu, or what is free when it does not say.
fn granted(budget: &[DeviceBytes]) -> Result<u64, Status> {
    match budget.iter().find(|b| b.device == CPU) {
        Some(granted) => Ok(granted.bytes),
        None => {
            let free = cpu()?.memory_free;
            Ok(if free == 0 { u64::MAX } else { free })
        }
    }
}

/// Two threads of one core share its vector units: more threads than cores only wait for each other.
fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    sysinfo::System::physical_core_count().map_or(available, |cores| cores.clamp(1, available))
}
