//! Whether a worker takes more than it was granted, and when that is too much. Pure.

use std::collections::BTreeMap;

use super::{CPU, MemoryLimits};

/// Of the machine's memory, for a worker whose engine stated no need of it: runtimes of GPUs keep host memory for contexts,
/// staging and compiled kernels.
pub const UNSTATED_RAM_MAX: u64 = 4 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    pub device: String,
    pub granted: u64,
    pub taken: u64,
    /// Past the margin: the worker is ended.
    pub ends: bool,
}

impl Excess {
    pub fn message(&self, model: &str) -> String {
        let Excess { device, granted, taken, .. } = self;
        format!("the worker of {model} takes {taken} bytes on {device}, it was granted {granted}")
    }
}

/// By device, the worst first.
pub fn excesses(
    granted: &BTreeMap<String, u64>,
    taken: &BTreeMap<String, u64>,
    limits: &MemoryLimits,
) -> Vec<Excess> {
    let mut excesses: Vec<Excess> = taken
        .iter()
        .filter_map(|(device, &taken)| {
            let unstated = if device == CPU { UNSTATED_RAM_MAX } else { 0 };
            let granted = granted.get(device).copied().unwrap_or(unstated);
            (taken > granted).then(|| Excess {
                device: device.clone(),
                granted,
                taken,
                ends: taken > granted.saturating_add(margin(granted, limits)),
            })
        })
        .collect();
    excesses.sort_by_key(|excess| std::cmp::Reverse(excess.taken - excess.granted));
    excesses
}

fn margin(granted: u64, limits: &MemoryLimits) -> u64 {
    let share = u128::from(granted) * u128::from(limits.overrun_margin_percent) / 100;
    u64::try_from(share).unwrap_or(u64::MAX).saturating_add(limits.overrun_margin_bytes)
}

#[cfg(test)]
mod tests;
