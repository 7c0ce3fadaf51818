//! Loads a model: how long it takes, what it takes, and within which budget.

use std::sync::Arc;
use std::time::Duration;

use engine_sdk::{
    DeviceBytes, DeviceNeed, Estimate, ModelSpec, Progress, Settings, Status, StatusCode, reason,
};

use crate::act::wait_alive;
use crate::config::Config;
use crate::memory;
use crate::model::FaultModel;
use crate::plan::{Plan, Point};
use crate::tokens::{END, VOCABULARY};

const SEQUENCES_DEFAULT: u32 = 4;
const SEQUENCES_MAX: u32 = 256;
const BATCH_TOKENS_DEFAULT: u32 = 512;
/// A load tells so often how far it is.
const LOAD_PARTS: u64 = 50;

pub fn estimate(config: &Config, plan: &Plan) -> Estimate {
    let behaviour = &config.behaviour;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a lie need not be exact")]
    let said = |bytes: u64| (config.part(bytes) as f64 * plan.factor()) as u64;
    let need = |device: &String| DeviceNeed {
        device: device.clone(),
        weights: said(behaviour.weights_bytes),
        workspace: said(behaviour.workspace_bytes),
        per_sequence: said(behaviour.per_sequence_bytes),
        kv_per_token: said(behaviour.kv_bytes_per_token),
        ..DeviceNeed::default()
    };
    Estimate {
        devices: config.devices.iter().map(need).collect(),
        context_length_max: config.context_length_max,
    }
}

pub fn load(
    config: Config,
    plan: Arc<Plan>,
    settings: &Settings,
    budget: &[DeviceBytes],
    progress: &mut Progress<'_>,
) -> Result<FaultModel, Status> {
    let (context_length, sequences_max) = fit(&config, &plan, settings, budget)?;
    let fixed = config.part(config.behaviour.weights_bytes) + config.part(config.behaviour.workspace_bytes);
    let real = config.devices.iter().filter(|device| memory::is_real(device)).count();
    let part_time = Duration::from_millis(config.behaviour.load_ms) / LOAD_PARTS as u32;
    let mut held = Vec::new();
    for part in 0..LOAD_PARTS {
        wait_alive(part_time, progress, part, LOAD_PARTS)?;
        // The first part has what does not divide.
        let bytes = fixed / LOAD_PARTS + if part == 0 { fixed % LOAD_PARTS } else { 0 };
        held.extend((0..real).map(|_| memory::touched(bytes)));
    }
    progress.report(LOAD_PARTS, LOAD_PARTS)?;
    plan.strike(Point::Loaded, &[], Some(progress))?;
    let batch = settings.batch_tokens_max.unwrap_or(BATCH_TOKENS_DEFAULT).max(sequences_max);
    let spec = ModelSpec {
        vocabulary_size: VOCABULARY,
        context_length,
        sequences_max,
        batch_tokens_max: batch,
        end_tokens: vec![END],
    };
    Ok(FaultModel::new(spec, plan, config.behaviour, held, fixed))
}

/// Context and sequences as asked for; what is left open is as large as the tightest device holds. An estimate that lies
/// was believed by whoever gave the budget: then the budget is not looked at either.
fn fit(
    config: &Config,
    plan: &Plan,
    settings: &Settings,
    budget: &[DeviceBytes],
) -> Result<(u32, u32), Status> {
    let longest = config.context_length_max;
    let asked_context = settings.context_length.map(|asked| asked.min(longest));
    let asked_sequences = settings.sequences_max.map(|asked| asked.clamp(1, SEQUENCES_MAX));
    let granted = config.devices.iter().filter_map(|id| budget.iter().find(|b| b.device == *id));
    let tightest = granted.min_by_key(|b| b.bytes);
    let Some(granted) = tightest.filter(|_| plan.factor() >= 1.0) else {
        return Ok((asked_context.unwrap_or(longest), asked_sequences.unwrap_or(SEQUENCES_DEFAULT)));
    };
    let behaviour = &config.behaviour;
    let fixed = config.part(behaviour.weights_bytes) + config.part(behaviour.workspace_bytes);
    let sequence = config.part(behaviour.per_sequence_bytes);
    let token = config.part(behaviour.kv_bytes_per_token);
    let need = |sequences: u32, context: u32| {
        fixed.saturating_add(
            u64::from(sequences).saturating_mul(sequence + token.saturating_mul(u64::from(context))),
        )
    };
    // One token of prompt and one of answer.
    let (fewest, shortest) = (asked_sequences.unwrap_or(1), asked_context.unwrap_or(2));
    let needed = need(fewest, shortest);
    if needed > granted.bytes {
        let message = format!(
            "{fewest} sequences of {shortest} tokens need {needed} bytes on {}, and {} are granted",
            granted.device, granted.bytes
        );
        let code = if memory::is_real(&granted.device) { StatusCode::OomRam } else { StatusCode::OomVram };
        return Err(Status::new(code, reason::BUDGET_EXCEEDED, message).with_numbers(needed, granted.bytes));
    }
    let fits = |sequences: u32, context: u32| need(sequences, context) <= granted.bytes;
    let wanted = asked_context.unwrap_or(longest);
    let sequences = asked_sequences
        .unwrap_or_else(|| (1..=SEQUENCES_DEFAULT).rev().find(|n| fits(*n, wanted)).unwrap_or(1));
    if fits(sequences, wanted) {
        return Ok((wanted, sequences));
    }
    let per_sequence = (granted.bytes - fixed) / u64::from(sequences);
    let context = per_sequence.saturating_sub(sequence).checked_div(token).unwrap_or(u64::from(wanted));
    Ok((u32::try_from(context).map_or(wanted, |context| context.min(wanted)), sequences))
}
