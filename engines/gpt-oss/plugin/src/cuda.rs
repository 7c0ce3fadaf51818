//! gpt-oss on an NVIDIA GPU as the SDK sees it: which there are, what a model takes there, and how it is loaded.

mod model;

use engine_sdk::{
    Device, DeviceBytes, DeviceNeed, Estimate, KvGroup, KvLayout, KvMemory, ModelFiles, Progress, Settings,
    Status, StatusCode, log, reason,
};
use gpt_oss_cuda::cuda::{self, Cuda, Gpu, gpus};
use gpt_oss_cuda::plan::{BLOCK_TOKENS, KvGroups, unsupported};
use gpt_oss_cuda::weights::LoadError;
use gpt_oss_cuda::{Bounds, CudaModel, DeviceError, Needs};
use gpt_oss_model::GptOssConfig;
use serde_json::{Map, Value};

use crate::files;
use crate::limits::{self, Defaults, invalid};

pub(crate) use model::{CudaGptOss, Place};

const KIND: &str = "cuda";
/// Of 2,048 tokens each of 32 experts meets 256.
const DEFAULTS: Defaults = Defaults { sequences: 32, batch_tokens: 2_048 };
/// What a driver takes for itself where work is done, its context and the kernels, as far as an estimate knows: a context is not made
/// for an estimate, which reads metadata only. Not seen on hardware. A load goes by what was taken, where the driver tells.
const DRIVER_BYTES: u64 = 512 << 20;

/// The GPUs that this build has kernels for; none where there is no driver. Says in the log what keeps others out.
pub(crate) fn devices() -> Vec<Device> {
    let found = match gpus() {
        Ok(found) => found,
        Err(DeviceError::NoDriver { .. }) => return Vec::new(),
        Err(error) => {
            log::warn(format_args!("no GPU can be used: {error}"));
            return Vec::new();
        }
    };
    let (with, without): (Vec<Gpu>, Vec<Gpu>) = found.into_iter().partition(Gpu::has_kernels);
    for gpu in without {
        log::warn(format_args!("{} is not used: this build has no kernels for it", gpu.name));
    }
    let device = |gpu: Gpu| Device {
        id: format!("{KIND}:{}", gpu.number),
        kind: KIND.to_owned(),
        name: gpu.name,
        memory_total: gpu.memory_total,
        // The driver tells it only to those who take some; the node asks NVML.
        memory_free: 0,
    };
    with.into_iter().map(device).collect()
}

/// The number of a GPU in the id of a device.
pub(crate) fn number(device: &str) -> Option<u32> {
    device.strip_prefix(KIND)?.strip_prefix(':')?.parse().ok()
}

/// `UNSUPPORTED`: the GPU is not there, in the driver's words.
fn find(number: u32) -> Result<Gpu, Status> {
    let refused = |why: String| {
        Status::unsupported(reason::UNKNOWN_DEVICE, format!("device {KIND}:{number}: {why}"))
            .with_param("devices")
    };
    let gpu = cuda::find(number).map_err(|error| refused(error.to_string()))?;
    if !gpu.has_kernels() {
        return Err(refused(format!("this build has no kernels for {}", gpu.name)));
    }
    Ok(gpu)
}

/// What was asked for, checked.
struct Asked {
    context: u32,
    sequences: u32,
    batch: u32,
}

impl Asked {
    fn of(config: &GptOssConfig, settings: &Settings) -> Result<Asked, Status> {
        check_options(settings)?;
        if let Some(why) = unsupported(config) {
            return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, format!("the model has {why}")));
        }
        let context = limits::context(config, settings)?.unwrap_or(config.context_length_max);
        let (sequences, batch) = limits::sequences_and_batch(settings, DEFAULTS)?;
        Ok(Asked { context, sequences, batch })
    }

    fn bounds(&self, blocks: u64) -> Bounds {
        Bounds {
            context_length: self.context as usize,
            sequences_max: self.sequences as usize,
            batch_tokens_max: self.batch as usize,
            blocks: usize::try_from(blocks).unwrap_or(usize::MAX),
        }
    }
}

/// There are no options yet.
fn check_options(settings: &Settings) -> Result<(), Status> {
    if settings.options_json.is_empty() {
        return Ok(());
    }
    let object: Map<String, Value> = serde_json::from_str(&settings.options_json)
        .map_err(|error| invalid("options_json", format!("options are not a JSON object: {error}")))?;
    match object.keys().next() {
        None => Ok(()),
        Some(key) => {
            let message = format!("option {key} is not known to the device {KIND}, which has none");
            Err(Status::unsupported(reason::UNKNOWN_OPTION, message).with_param(key.clone()))
        }
    }
}

/// The blocks as the scheduler sees them.
pub(crate) fn layout(config: &GptOssConfig, blocks: u64) -> KvLayout {
    let groups = KvGroups::of(config);
    KvLayout {
        block_tokens: BLOCK_TOKENS as u32,
        block_bytes: groups.block_bytes(config),
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        groups: groups.windows.iter().map(|w| KvGroup { window: w.map(|w| w as u32) }).collect(),
        memory: KvMemory::Vram,
    }
}

pub(crate) fn estimate(files: &ModelFiles, settings: &Settings, number: u32) -> Result<Estimate, Status> {
    let gpu = find(number)?;
    let store = files::open(files, settings)?.store;
    let config = store.config();
    let asked = Asked::of(config, settings)?;
    let needs = Needs::of(config, asked.bounds(0), gpu.processors);
    let layout = layout(config, 0);
    let full = layout.groups.iter().filter(|g| g.window.is_none()).count() as u64;
    let per_token = full * layout.block_bytes / BLOCK_TOKENS as u64;
    let all = layout.blocks_per_sequence(asked.context) * layout.block_bytes;
    let need = DeviceNeed {
        device: format!("{KIND}:{number}"),
        weights: needs.weights,
        weights_mapped: 0,
        workspace: needs.workspace + layout.blocks_per_step(asked.batch) * layout.block_bytes + DRIVER_BYTES,
        per_sequence: 0,
        kv_per_token: per_token,
        kv_fixed: all.saturating_sub(per_token * u64::from(asked.context)),
    };
    Ok(Estimate { devices: vec![need], context_length_max: config.context_length_max })
}

pub(crate) fn load(
    files: &ModelFiles,
    settings: &Settings,
    budget: &[DeviceBytes],
    number: u32,
    progress: &mut Progress<'_>,
) -> Result<CudaGptOss, Status> {
    let gpu = find(number)?;
    let store = files::open(files, settings)?.store;
    let config = store.config();
    let asked = Asked::of(config, settings)?;
    let tokenizer = files::tokenizer(files)?;
    let total = store.checkpoint().tensor_bytes();
    progress.report(0, total)?;
    let device = Cuda::open(number, None).map_err(|error| status(&error))?;
    let info = gpt_oss_cuda::Device::info(&device).map_err(|error| status(&error))?;
    let driver_bytes = info.driver_bytes.unwrap_or(DRIVER_BYTES);
    let id = format!("{KIND}:{number}");
    let granted = budget.iter().find(|b| b.device == id).map_or(info.memory_free, |b| {
        // The context is there by now: of what it took beyond the estimate the blocks of KV make up.
        b.bytes.saturating_sub(driver_bytes).min(info.memory_free)
    });
    let bounds = fit(config, &asked, gpu.processors, granted)?;
    let known: Vec<bool> = {
        use engine_sdk::Tokenize as _;
        (0..config.vocabulary as u32).map(|id| tokenizer.piece(id).is_some()).collect()
    };
    let loaded = CudaModel::load(Box::new(device), config, &store, bounds, &known, |done| {
        progress.report(done.min(total), total)
    });
    let model = loaded.map_err(|error| match error {
        LoadError::Device(error) => status(&error),
        LoadError::Stopped(status) => status,
    })?;
    log::info(format_args!(
        "{}: {}, context {}, {} sequences, {} blocks of KV, {} bytes in all, {driver_bytes} of the driver's own beside them",
        files.id,
        gpu.name,
        bounds.context_length,
        bounds.sequences_max,
        bounds.blocks,
        model.needs().total()
    ));
    progress.report(total, total)?;
    Ok(CudaGptOss::new(model, tokenizer, store.end_tokens().to_vec(), Place { device: id, driver_bytes }))
}

/// As many blocks as all sequences can want, or as there is room for, but enough for one.
fn fit(config: &GptOssConfig, asked: &Asked, processors: u32, granted: u64) -> Result<Bounds, Status> {
    let one = layout(config, 0);
    let step = one.blocks_per_step(asked.batch);
    let least = one.blocks_per_sequence(asked.context) + step;
    let most = one.blocks_per_sequence(asked.context) * u64::from(asked.sequences) + step;
    let without = Needs::of(config, asked.bounds(0), processors).total();
    let room = granted.saturating_sub(without) / one.block_bytes;
    // Whole pages of the driver: one block less may be what fits.
    let mut blocks = room.min(most);
    while blocks >= least && Needs::of(config, asked.bounds(blocks), processors).total() > granted {
        blocks -= 1;
    }
    if blocks < least {
        let needed = Needs::of(config, asked.bounds(least), processors).total();
        let message = format!(
            "weights, workspace and the KV of one sequence of {} tokens need {needed} bytes, and {granted} are granted; \
             ask for a shorter context_length or a smaller batch_tokens_max",
            asked.context
        );
        return Err(Status::oom_vram(message, needed, granted));
    }
    Ok(asked.bounds(blocks))
}

/// What a device said, as the host wants it. After all but a lack of memory the process is of no more use.
pub(crate) fn status(error: &DeviceError) -> Status {
    match error {
        DeviceError::OutOfMemory { wanted, free } => Status::oom_vram(error.to_string(), *wanted, *free),
        DeviceError::NoDriver { .. } | DeviceError::NoDevice { .. } | DeviceError::NoKernels { .. } => {
            Status::unsupported(reason::UNKNOWN_DEVICE, error.to_string()).with_param("devices")
        }
        DeviceError::Failed { .. } => {
            Status::new(StatusCode::Internal, reason::DEVICE_FAILED, error.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
