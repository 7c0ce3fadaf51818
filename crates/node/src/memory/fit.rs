//! What of a model fits in the memory there is.
//!
//! What a model needs on a device, in bytes, with `s` sequences of at most `c` tokens:
//!
//! ```text
//! need(c, s) = weights + workspace + s · (per_sequence + kv_fixed + kv_per_token · c)
//! ```
//!
//! Weights that stay pages of mapped files count on devices that pin them (every one but the CPU): on the CPU the system
//! drops such pages when others need the room. A context and a number of sequences that the operator set are taken as
//! they are, and refused if they do not fit. Otherwise the defaults start at the model's longest context with
//! [`SEQUENCES_DEFAULT`] and are halved, the context first, until a sequence's share leaves [`KV_SHARE`] of what is free
//! after the weights to others; where not even the smallest do, everything that is free may be used.

use std::time::Duration;

use engine_protocol::{DeviceBytes, DeviceNeed, Estimate};

/// Sequences at once, where nobody says and the memory allows.
pub const SEQUENCES_DEFAULT: u32 = 4;
/// Defaults go no lower with the context, in tokens: a shorter one holds no conversation.
pub const CONTEXT_DEFAULT_MIN: u32 = 2048;
/// Defaults take one part in so many of what is free after the weights; the rest is for other models and programs.
pub const KV_SHARE: u64 = 2;

/// What was set, by the model's settings or the node's; `None`: nobody said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub context_length: Option<u32>,
    pub sequences_max: Option<u32>,
}

/// How a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    pub context_length: u32,
    pub sequences_max: u32,
    /// What the worker may allocate, in the shape of the estimate.
    pub budget: Vec<DeviceBytes>,
}

/// The model does not fit: the first device it does not fit on, and both numbers in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    pub device: String,
    pub needed: u64,
    pub available: u64,
    pub context_length: u32,
    pub sequences_max: u32,
    /// It waited so long for others to leave; `None`: it would not fit if they did, or nobody was to wait.
    pub waited: Option<Duration>,
    /// Models of ours that hold memory there.
    pub holders: Vec<String>,
}

impl NoRoom {
    /// Before anything was looked at.
    pub fn nowhere() -> NoRoom {
        NoRoom {
            device: "no device".to_owned(),
            needed: 0,
            available: 0,
            context_length: 0,
            sequences_max: 0,
            waited: None,
            holders: Vec::new(),
        }
    }
}

impl Fit {
    /// It would fit, and others were first: they get the room.
    pub fn refused_for_others(&self) -> NoRoom {
        let part = self.budget.first();
        NoRoom {
            device: part.map(|part| part.device.clone()).unwrap_or_default(),
            needed: part.map_or(0, |part| part.bytes),
            context_length: self.context_length,
            sequences_max: self.sequences_max,
            ..NoRoom::nowhere()
        }
    }
}

/// Chooses what nobody set, and checks that it fits. `available` answers the free bytes of a device.
pub fn fit(estimate: &Estimate, wanted: Wanted, available: impl Fn(&str) -> u64) -> Result<Fit, NoRoom> {
    let context_max = match estimate.context_length_max {
        0 => u32::MAX,
        max => max,
    };
    let mut context = wanted.context_length.unwrap_or(context_max).min(context_max);
    let mut sequences = wanted.sequences_max.unwrap_or(SEQUENCES_DEFAULT).max(1);
    let fits_share = |context, sequences| {
        estimate.devices.iter().all(|need| {
            let left = available(&need.device).saturating_sub(fixed(need));
            running(need, context, sequences) <= left / KV_SHARE
        })
    };
    let context_floor = CONTEXT_DEFAULT_MIN.min(context);
    while !fits_share(context, sequences) {
        if wanted.context_length.is_none() && context > context_floor {
            context = (context / 2).max(context_floor);
        } else if wanted.sequences_max.is_none() && sequences > 1 {
            sequences /= 2;
        } else {
            break;
        }
    }
    let mut budget = Vec::with_capacity(estimate.devices.len());
    for need in &estimate.devices {
        let needed = fixed(need).saturating_add(running(need, context, sequences));
        let available = available(&need.device);
        if needed > available {
            let device = need.device.clone();
            return Err(NoRoom {
                device,
                needed,
                available,
                context_length: context,
                sequences_max: sequences,
                waited: None,
                holders: Vec::new(),
            });
        }
        budget.push(DeviceBytes { device: need.device.clone(), bytes: needed });
    }
    Ok(Fit { context_length: context, sequences_max: sequences, budget })
}

fn fixed(need: &DeviceNeed) -> u64 {
    let mapped = if need.device == "cpu" { 0 } else { need.weights_mapped };
    need.weights.saturating_add(mapped).saturating_add(need.workspace)
}

fn running(need: &DeviceNeed, context: u32, sequences: u32) -> u64 {
    let kv = need.kv_per_token.saturating_mul(context.into());
    need.per_sequence.saturating_add(need.kv_fixed).saturating_add(kv).saturating_mul(sequences.into())
}

#[cfg(test)]
mod tests;
