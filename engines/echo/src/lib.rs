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
//!
//! An embedding has eight numbers: how often each remainder of a division by eight is among the ids of the tokens.
//!
//! One option, `{"step_us": 10000}`: steps begin at whole multiples of so many microseconds, see [`pace`].

mod config;
mod model;
mod pace;
mod tokens;

use engine_sdk::{
    Device, DeviceBytes, DeviceNeed, Engine, EngineInfo, Estimate, ModelFiles, Progress, Settings, Status,
    StatusCode, VersionStamp, reason,
};

use crate::config::Config;
use crate::model::EchoModel;
use crate::pace::Pace;

const SEQUENCES_DEFAULT: u32 = 4;
const SEQUENCES_MAX: u32 = 256;
const BATCH_TOKENS_DEFAULT: u32 = 512;
/// The history of a sequence is its "KV": four bytes a token.
const KV_BYTES_PER_TOKEN: u64 = size_of::<u32>() as u64;

/// The processor, unless the settings name a simulated device of a node under test.
const CPU: &str = "cpu";
/// Tests have this engine in other versions.
static VERSION: VersionStamp = VersionStamp::new(env!("CARGO_PKG_VERSION"));

pub struct Echo;

engine_sdk::export_engine!(Echo);

impl Engine for Echo {
    type Model = EchoModel;

    fn info() -> EngineInfo {
        EngineInfo { id: "echo", version: VERSION.version() }
    }

    fn devices() -> Result<Vec<Device>, Status> {
        Ok(vec![Device {
            id: CPU.to_owned(),
            kind: CPU.to_owned(),
            name: "the processor".to_owned(),
            memory_total: 0,
            memory_free: 0,
        }])
    }

    fn estimate(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status> {
        check(settings)?;
        let config = Config::read(files)?;
        let need = DeviceNeed {
            device: device(settings).to_owned(),
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
        let pace = check(settings)?;
        progress.report(0, 1)?;
        let config = Config::read(files)?;
        let device = device(settings);
        let granted = budget.iter().find(|b| b.device == device).map_or(u64::MAX, |b| b.bytes);
        let (context, sequences) = fit(settings, config.context_length_max, granted)?;
        let batch = settings.batch_tokens_max.unwrap_or(BATCH_TOKENS_DEFAULT).max(sequences);
        progress.report(1, 1)?;
        Ok(EchoModel::new(device, context, sequences, batch, pace))
    }
}

/// Context and sequences as asked for; what is left open is as large as `granted` bytes hold.
fn fit(settings: &Settings, longest: u32, granted: u64) -> Result<(u32, u32), Status> {
    let asked_context = settings.context_length.map(|asked| asked.min(longest));
    let asked_sequences = settings.sequences_max.map(|asked| asked.clamp(1, SEQUENCES_MAX));
    // One token of prompt and one of answer.
    let shortest = asked_context.unwrap_or(2);
    let fewest = asked_sequences.unwrap_or(1);
    let needed = u64::from(fewest) * u64::from(shortest) * KV_BYTES_PER_TOKEN;
    if needed > granted {
        let message = format!(
            "{fewest} sequences of {shortest} tokens need {needed} bytes on {}, and {granted} are granted",
            device(settings)
        );
        let code = if device(settings) == CPU { StatusCode::OomRam } else { StatusCode::OomVram };
        return Err(Status::new(code, reason::BUDGET_EXCEEDED, message).with_numbers(needed, granted));
    }
    let tokens = granted / KV_BYTES_PER_TOKEN;
    let at_most = |bound: u64, wanted: u32| u32::try_from(bound).map_or(wanted, |bound| bound.min(wanted));
    let wanted = asked_context.unwrap_or(longest);
    let sequences =
        asked_sequences.unwrap_or_else(|| at_most(tokens / u64::from(wanted), SEQUENCES_DEFAULT).max(1));
    Ok((at_most(tokens / u64::from(sequences), wanted), sequences))
}

/// The one it computes on: the first of those asked for.
fn device(settings: &Settings) -> &str {
    settings.devices.first().map_or(CPU, String::as_str)
}

/// What of the settings is not about memory; the pace that they ask for.
fn check(settings: &Settings) -> Result<Pace, Status> {
    let known = |id: &str| id == CPU || id.strip_prefix("sim:").is_some_and(|n| n.parse::<u16>().is_ok());
    if let Some(device) = settings.devices.iter().find(|d| !known(d)) {
        let message = format!("device {device} is not one of: cpu, sim:0, sim:1, ...");
        return Err(Status::unsupported(reason::UNKNOWN_DEVICE, message).with_param("devices"));
    }
    Pace::from_options(&settings.options_json)
}
