//! How much memory there is, and what of a model fits in it.
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

use engine_protocol::{DeviceBytes, DeviceNeed, Estimate};
use node_api::{DeviceMemory, MemoryStatus};
use sysinfo::System;

/// Sequences at once, where nobody says and the memory allows.
pub const SEQUENCES_DEFAULT: u32 = 4;
/// Defaults go no lower with the context, in tokens: a shorter one holds no conversation.
pub const CONTEXT_DEFAULT_MIN: u32 = 2048;
/// Defaults take one part in so many of what is free after the weights; the rest is for other models and programs.
pub const KV_SHARE: u64 = 2;
/// Left to the system on the CPU: one part in so many of the machine's memory.
const RAM_RESERVE_SHARE: u64 = 20;

/// The machine's memory, or the container's where that is less.
pub fn ram_total(system: &System) -> u64 {
    system
        .cgroup_limits()
        .map_or(system.total_memory(), |limits| limits.total_memory.min(system.total_memory()))
}

/// As sent to routers.
pub fn status(system: &mut System, devices: Vec<DeviceMemory>) -> MemoryStatus {
    system.refresh_memory();
    let limits = system.cgroup_limits();
    let available = system.available_memory();
    MemoryStatus {
        ram_total: ram_total(system),
        ram_available: limits.map_or(available, |limits| limits.free_memory.min(available)),
        devices,
    }
}

/// Bytes a worker on the CPU may be given now.
pub fn ram_budget(memory: &MemoryStatus) -> u64 {
    memory.ram_available.saturating_sub(memory.ram_total / RAM_RESERVE_SHARE)
}

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
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn estimate(kv_per_token: u64, context_length_max: u32) -> Estimate {
        let need = DeviceNeed { device: "cpu".into(), workspace: GIB, kv_per_token, ..DeviceNeed::default() };
        Estimate { devices: vec![need], context_length_max }
    }

    fn check(
        kv_per_token: u64,
        wanted: (Option<u32>, Option<u32>),
        free: u64,
    ) -> Result<(u32, u32, u64), NoRoom> {
        let wanted = Wanted { context_length: wanted.0, sequences_max: wanted.1 };
        fit(&estimate(kv_per_token, 131_072), wanted, |_| free)
            .map(|fit| (fit.context_length, fit.sequences_max, fit.budget[0].bytes))
    }

    #[test]
    fn a_small_model_gets_everything_it_can_use() {
        assert_eq!(check(1024, (None, None), 16 * GIB), Ok((131_072, 4, GIB + (512 << 20))));
    }

    #[test]
    fn the_context_is_halved_first_and_half_of_the_rest_stays_free() {
        // 64 KiB a token: four sequences of 131,072 would be 32 GiB; 7 GiB may be used.
        assert_eq!(check(64 << 10, (None, None), 15 * GIB), Ok((16_384, 4, 5 * GIB)));
    }

    #[test]
    fn sequences_go_when_the_context_cannot_shrink_further() {
        let (context, sequences, _) = check(1 << 20, (None, None), 6 * GIB).unwrap();
        assert_eq!((context, sequences), (2048, 1));
    }

    #[test]
    fn what_the_operator_set_is_taken_or_refused_with_both_numbers() {
        assert_eq!(check(64 << 10, (Some(65_536), Some(2)), 10 * GIB), Ok((65_536, 2, 9 * GIB)));
        let refused = check(64 << 10, (Some(65_536), Some(2)), 8 * GIB).unwrap_err();
        assert_eq!((refused.needed, refused.available), (9 * GIB, 8 * GIB));
        assert_eq!((refused.context_length, refused.sequences_max), (65_536, 2));
    }

    #[test]
    fn a_wish_beyond_the_model_is_the_models_own_maximum() {
        assert_eq!(check(1024, (Some(1 << 30), Some(1)), 16 * GIB).unwrap().0, 131_072);
    }

    #[test]
    fn mapped_weights_count_where_they_are_pinned_only() {
        let mut estimate = estimate(0, 4096);
        estimate.devices[0].weights_mapped = 12 * GIB;
        assert!(fit(&estimate, Wanted::default(), |_| 2 * GIB).is_ok());
        estimate.devices[0].device = "metal:0".into();
        assert_eq!(fit(&estimate, Wanted::default(), |_| 2 * GIB).unwrap_err().needed, 13 * GIB);
    }

    #[test]
    fn lying_estimates_saturate() {
        let refused = check(u64::MAX, (None, None), GIB).unwrap_err();
        assert_eq!(refused.needed, u64::MAX);
    }
}
