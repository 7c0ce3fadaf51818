//! The smallest engine: it answers with the prompt itself, token by token, and then ends.
//!
//! A model of it is a folder with a `config.json`:
//!
//! ```json
//! { "model_type": "echo", "max_position_embeddings": 4096 }
//! ```
//!
//! Tokens 0 to 255 are the bytes of UTF-8 text; three control tokens follow, of which `<|end|>` ends an answer (also when
//! it comes from the prompt). What the engine has is logits: 20 for the token to echo, 10 for a space, 0 for all others.
//! So sampling, penalties, biases and logprobs mean what they mean for any other engine, and greedy decoding is the
//! plain echo. Before `tokens_min` tokens, where an end is not allowed, the next best token is the space.

mod config;
mod model;
mod tokens;

use engine_sdk::{
    Device, DeviceBytes, DeviceNeed, Engine, EngineInfo, Estimate, ModelFiles, Progress, Settings, Status,
    StatusCode, reason,
};

use crate::config::Config;
use crate::model::EchoModel;

const SEQUENCES_DEFAULT: u32 = 4;
const SEQUENCES_MAX: u32 = 256;
const BATCH_TOKENS_DEFAULT: u32 = 512;
/// The history of a sequence is its "KV": four bytes a token.
const KV_BYTES_PER_TOKEN: u64 = size_of::<u32>() as u64;

pub struct Echo;

engine_sdk::export_engine!(Echo);

impl Engine for Echo {
    type Model = EchoModel;

    fn info() -> EngineInfo {
        EngineInfo { id: "echo", version: env!("CARGO_PKG_VERSION") }
    }

    fn devices() -> Result<Vec<Device>, Status> {
        Ok(vec![Device {
            id: "cpu".to_owned(),
            kind: "cpu".to_owned(),
            name: "the processor".to_owned(),
            memory_total: 0,
            memory_free: 0,
        }])
    }

    fn estimate(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status> {
        check(settings)?;
        let config = Config::read(files)?;
        let need = DeviceNeed {
            device: "cpu".to_owned(),
            kv_per_token: KV_BYTES_PER_TOKEN,
            ..DeviceNeed::default()
        };
        Ok(Estimate { devices: vec![need], context_length_max: config.context_length_max })
    }

    fn load(
        files: &ModelFiles,
        settings: &Settings,
        budget: &[DeviceBytes],
        progress: &mut Progress<'_>,
    ) -> Result<EchoModel, Status> {
        check(settings)?;
        progress.report(0, 1)?;
        let config = Config::read(files)?;
        let mut context = config.context_length_max;
        context = settings.context_length.map_or(context, |asked| asked.min(context));
        let mut sequences = settings.sequences_max.unwrap_or(SEQUENCES_DEFAULT).clamp(1, SEQUENCES_MAX);
        for granted in budget.iter().filter(|b| b.device == "cpu") {
            (context, sequences) = fit(context, sequences, granted.bytes)?;
        }
        let batch = settings.batch_tokens_max.unwrap_or(BATCH_TOKENS_DEFAULT).max(sequences);
        progress.report(1, 1)?;
        Ok(EchoModel::new(context, sequences, batch))
    }
}

/// The most sequences, then the longest context, that `granted` bytes hold.
fn fit(context: u32, sequences: u32, granted: u64) -> Result<(u32, u32), Status> {
    // One token of prompt and one of answer.
    let least = 2 * KV_BYTES_PER_TOKEN;
    if granted < least {
        let message = format!("the shortest sequence needs {least} bytes on cpu, and {granted} are granted");
        return Err(
            Status::new(StatusCode::OomRam, reason::BUDGET_EXCEEDED, message).with_numbers(least, granted)
        );
    }
    let of_one = u64::from(context) * KV_BYTES_PER_TOKEN;
    if of_one > granted {
        let context = u32::try_from(granted / KV_BYTES_PER_TOKEN).unwrap_or(u32::MAX);
        return Ok((context, 1));
    }
    Ok((context, u32::try_from(granted / of_one).unwrap_or(u32::MAX).min(sequences)))
}

fn check(settings: &Settings) -> Result<(), Status> {
    if let Some(device) = settings.devices.iter().find(|d| *d != "cpu") {
        let message = format!("device {device} is not one of: cpu");
        return Err(Status::unsupported(reason::UNKNOWN_DEVICE, message));
    }
    if settings.options_json.is_empty() {
        return Ok(());
    }
    let options: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&settings.options_json)
        .map_err(|error| {
            Status::unsupported(reason::INVALID_SETTINGS, format!("options are not a JSON object: {error}"))
        })?;
    match options.keys().next() {
        None => Ok(()),
        Some(key) => Err(Status::unsupported(
            reason::UNKNOWN_OPTION,
            format!("option {key}: this engine has no options"),
        )),
    }
}
