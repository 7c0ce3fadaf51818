//! gpt-oss on Metal, Vulkan or Direct3D 12 as the SDK sees it: which adapters there are, what a model takes there, and how it
//! is loaded.

mod model;

use std::sync::Arc;

use engine_sdk::{
    Device, DeviceBytes, DeviceNeed, Estimate, KvGroup, KvLayout, KvMemory, ModelFiles, Progress, Settings,
    Status, StatusCode, Tokenize, log, reason,
};
use gpt_oss_model::GptOssConfig;
use gpt_oss_wgpu::plan::unsupported;
use gpt_oss_wgpu::{
    Adapter, Api, BLOCK_TOKENS, Bounds, DeviceError, KeptWeights, KvGroups, LoadError, Needs, Verdict,
    WgpuModel,
};
use serde_json::{Map, Value};

use crate::files::{self, ARTIFACTS, Opened};
use crate::limits::{self, Defaults, invalid};

pub(crate) use model::WgpuGptOss;

/// Of 512 tokens each of 32 experts meets 64, two tiles.
const DEFAULTS: Defaults = Defaults { sequences: 8, batch_tokens: 512 };
/// Context when nobody asks for one: the systems do not tell how much memory is free, so what is taken is little.
const CONTEXT_DEFAULT: u32 = 8_192;
const ALLOW_SOFTWARE: &str = "allow_software";

/// The adapters that are hardware and have what the kernels need. Says in the log what keeps others out.
pub(crate) fn devices() -> Vec<Device> {
    let mut devices = Vec::new();
    for adapter in Adapter::all() {
        let Adapter { id, api, name, driver, verdict, buffer_max, binding_max, form, .. } = &adapter;
        log::info(format_args!(
            "adapter {id}: {name}, driver {driver}, buffers of {buffer_max} bytes, bindings of {binding_max}, kernels {}: {verdict}",
            form.as_str()
        ));
        if adapter.verdict == Verdict::Usable {
            devices.push(Device {
                id: id.clone(),
                kind: api.as_str().to_owned(),
                name: name.clone(),
                // wgpu does not tell.
                memory_total: 0,
                memory_free: 0,
            });
        }
    }
    devices
}

/// Whether this is the id of such a device: `vulkan:0`, or `vulkan` alone for the first.
pub(crate) fn is_one(device: &str) -> bool {
    let (kind, number) = device.split_once(':').unwrap_or((device, "0"));
    Api::ALL.iter().any(|api| api.as_str() == kind) && number.parse::<u32>().is_ok()
}

/// What was asked for, checked.
struct Asked {
    context: u32,
    sequences: u32,
    batch: u32,
}

impl Asked {
    fn of(config: &GptOssConfig, settings: &Settings) -> Result<Asked, Status> {
        if let Some(why) = unsupported(config) {
            return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, why));
        }
        let context =
            limits::context(config, settings)?.unwrap_or(CONTEXT_DEFAULT.min(config.context_length_max));
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

    /// Blocks for all sequences, and the fewest with which one can get to its end.
    fn blocks(&self, layout: &KvLayout) -> (u64, u64) {
        let (one, step) = (layout.blocks_per_sequence(self.context), layout.blocks_per_step(self.batch));
        (one * u64::from(self.sequences) + step, one + step)
    }
}

/// Finds the adapter, a software one with leave of the option `allow_software`. The other option is read with the files.
fn find(settings: &Settings, id: &str) -> Result<Adapter, Status> {
    let mut allow_software = false;
    if !settings.options_json.is_empty() {
        let object: Map<String, Value> = serde_json::from_str(&settings.options_json)
            .map_err(|error| invalid("options_json", format!("options are not a JSON object: {error}")))?;
        for (key, value) in object {
            if key == ARTIFACTS {
                continue;
            }
            if key != ALLOW_SOFTWARE {
                let message = format!(
                    "option {key} is not known to the device {id}, which has {ALLOW_SOFTWARE} and {ARTIFACTS}"
                );
                return Err(Status::unsupported(reason::UNKNOWN_OPTION, message).with_param(key));
            }
            let Some(flag) = value.as_bool() else {
                return Err(invalid(
                    ALLOW_SOFTWARE,
                    format!("{ALLOW_SOFTWARE} is {value}, not true or false"),
                ));
            };
            allow_software = flag;
        }
    }
    Adapter::find(id, allow_software).map_err(|error| status(&error))
}

/// The blocks as the scheduler sees them.
fn layout(config: &GptOssConfig, blocks: u64) -> KvLayout {
    let groups = KvGroups::of(config);
    KvLayout {
        block_tokens: BLOCK_TOKENS as u32,
        block_bytes: groups.block_bytes(config),
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        groups: groups.windows.iter().map(|w| KvGroup { window: w.map(|w| w as u32) }).collect(),
        memory: KvMemory::Vram,
    }
}

pub(crate) fn estimate(files: &ModelFiles, settings: &Settings, id: &str) -> Result<Estimate, Status> {
    let adapter = find(settings, id)?;
    let store = files::open(files, settings)?.store;
    let config = store.config();
    let asked = Asked::of(config, settings)?;
    let needs = Needs::of(config, asked.bounds(0));
    let layout = layout(config, 0);
    let full = layout.groups.iter().filter(|g| g.window.is_none()).count() as u64;
    let per_token = full * layout.block_bytes / BLOCK_TOKENS as u64;
    let all = layout.blocks_per_sequence(asked.context) * layout.block_bytes;
    let need = DeviceNeed {
        device: adapter.id,
        weights: needs.weights,
        weights_mapped: 0,
        workspace: needs.workspace + layout.blocks_per_step(asked.batch) * layout.block_bytes,
        per_sequence: 0,
        kv_per_token: per_token,
        kv_fixed: all.saturating_sub(per_token * u64::from(asked.context)),
    };
    let context_length_max = context_max(config, asked.batch, adapter.buffer_max.min(adapter.binding_max));
    Ok(Estimate { devices: vec![need], context_length_max })
}

/// The longest context of the model whose keys and values fit a buffer of the device, beside those of a step: the host asks for
/// as long a one as there is memory for. Where none fits, the model's own: a load then says what is too little.
fn context_max(config: &GptOssConfig, batch: u32, buffer_max: u64) -> u32 {
    let layout = layout(config, 0);
    let most = KvGroups::of(config).blocks_max(config, buffer_max);
    let fits = |context: &u32| layout.blocks_per_sequence(*context) + layout.blocks_per_step(batch) <= most;
    let own = config.context_length_max;
    let shorter = (1..=own / BLOCK_TOKENS as u32).rev().map(|blocks| blocks * BLOCK_TOKENS as u32);
    [own].into_iter().chain(shorter).find(fits).unwrap_or(own)
}

pub(crate) fn load(
    files: &ModelFiles,
    settings: &Settings,
    budget: &[DeviceBytes],
    id: &str,
    progress: &mut Progress<'_>,
) -> Result<WgpuGptOss, Status> {
    let mut adapter = find(settings, id)?;
    let (id, name) = (adapter.id.clone(), adapter.name.clone());
    let Opened { store, runs } = files::open(files, settings)?;
    let store = Arc::new(store);
    let config = store.config();
    let asked = Asked::of(config, settings)?;
    let tokenizer = files::tokenizer(files)?;
    let (mapped, converted) = store.tensor_bytes();
    let total = mapped + converted;
    progress.report(0, total)?;
    let most = most(budget, &id, adapter.memory_max);
    adapter.memory_max = Some(most);
    let bounds = fit(config, &asked, adapter.buffer_max.min(adapter.binding_max), most)?;
    let weights: KeptWeights = Arc::clone(&store) as KeptWeights;
    let loaded = WgpuModel::load(adapter, config, &weights, bounds, &known(&tokenizer, config), |done| {
        progress.report(done.min(total), total)
    });
    let model = loaded.map_err(ended)?;
    log::info(format_args!(
        "{}: {runs}; {id} ({name}), context {}, {} sequences, {} blocks of KV, {} bytes in all",
        files.id,
        bounds.context_length,
        bounds.sequences_max,
        bounds.blocks,
        model.gpu().used()
    ));
    progress.report(total, total)?;
    Ok(WgpuGptOss::new(model, tokenizer, store.end_tokens().to_vec(), runs))
}

/// Of each token of the vocabulary, whether the tokenizer has it.
fn known(tokenizer: &impl Tokenize, config: &GptOssConfig) -> Vec<bool> {
    (0..config.vocabulary as u32).map(|id| tokenizer.piece(id).is_some()).collect()
}

/// Bytes that may be taken of a device: what the host grants, and never more than the system recommends. Without either nobody
/// knows what is free, and the device says when it has no more.
fn most(budget: &[DeviceBytes], id: &str, recommended: Option<u64>) -> u64 {
    let granted = budget.iter().find(|b| b.device == id).map(|b| b.bytes);
    granted.into_iter().chain(recommended).min().unwrap_or(u64::MAX)
}

/// As many blocks as all sequences can want, or as there is room for, but enough for one.
fn fit(config: &GptOssConfig, asked: &Asked, buffer_max: u64, most: u64) -> Result<Bounds, Status> {
    let one = layout(config, 0);
    let (all, least) = asked.blocks(&one);
    let without = Needs::of(config, asked.bounds(0)).total();
    let room = most.saturating_sub(without) / one.block_bytes;
    let blocks = all.min(room).min(KvGroups::of(config).blocks_max(config, buffer_max));
    if blocks >= least {
        return Ok(asked.bounds(blocks));
    }
    if room >= least {
        let needed = KvGroups::of(config).block_bytes(config) * least;
        let message = format!(
            "the KV of one sequence of {} tokens needs {least} blocks, {needed} bytes, and {blocks} fit a buffer of this \
             device, which has {buffer_max} bytes; ask for a shorter context_length or a smaller batch_tokens_max",
            asked.context
        );
        return Err(Status::oom_vram(message, needed, buffer_max));
    }
    let needed = Needs::of(config, asked.bounds(least)).total();
    let message = format!(
        "weights, workspace and the KV of one sequence of {} tokens need {needed} bytes, and {most} may be taken; \
         ask for a shorter context_length or a smaller batch_tokens_max",
        asked.context
    );
    Err(Status::oom_vram(message, needed, most))
}

fn ended(error: LoadError<Status>) -> Status {
    match error {
        LoadError::Device(error) => status(&error),
        LoadError::Stopped(status) => status,
    }
}

/// What a device said, as the host wants it. After a loss the process is of no more use.
fn status(error: &DeviceError) -> Status {
    let message = error.to_string();
    match error {
        DeviceError::NoAdapter { .. } | DeviceError::Unusable { .. } | DeviceError::Software { .. } => {
            Status::unsupported(reason::UNKNOWN_DEVICE, message).with_param("devices")
        }
        DeviceError::TooLarge { wanted, limit, .. } => Status::oom_vram(message, *wanted, *limit),
        // So much was wanted in all, and so much was had.
        DeviceError::OutOfMemory { wanted, used, .. } => Status::oom_vram(message, used + wanted, *used),
        DeviceError::Lost { .. } | DeviceError::Failed { .. } => {
            Status::new(StatusCode::Internal, reason::DEVICE_FAILED, message)
        }
    }
}

#[cfg(test)]
mod tests;
