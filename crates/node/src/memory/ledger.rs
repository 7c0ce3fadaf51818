//! What was granted to whom, and what is left. Pure: what is seen of the machine is an argument.
//!
//! Free on a device is what the machine shows as free, less what was granted and is not taken yet:
//!
//! ```text
//! free = total − used − spare − Σ max(0, granted − taken)
//! ```
//!
//! Where nobody shows a device's use (Metal, D3D12, simulated devices), `used` is what our workers say they take, and what
//! the engine that asks says others take.

use std::collections::BTreeMap;

use engine_protocol::DeviceBytes;
use tokio::time::Instant;

use super::CPU;

/// Number of a grant, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(pub u64);

/// What was seen of the machine, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sight {
    pub ram_total: u64,
    pub ram_available: u64,
    /// The GPUs the node serves with.
    pub devices: BTreeMap<String, DeviceSight>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceSight {
    pub total: u64,
    /// `None`: nobody shows it.
    pub used: Option<u64>,
    /// Its memory is the machine's.
    pub shares_ram: bool,
}

/// One model's share.
#[derive(Debug, Clone)]
pub struct Grant {
    pub model: String,
    /// As the engine said before the load, by device.
    pub estimated: BTreeMap<String, u64>,
    pub granted: BTreeMap<String, u64>,
    /// Bytes of files that the engine said it maps, on the CPU.
    pub maps: u64,
    /// Its own, by device, as last seen.
    pub taken: BTreeMap<String, u64>,
    pub loaded_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    grants: BTreeMap<GrantId, Grant>,
    /// When room was last given back on a device: drivers free later than processes end.
    released: BTreeMap<String, Instant>,
}

impl Ledger {
    pub fn grant(&mut self, model: &str, budget: &[DeviceBytes], maps: u64) -> GrantId {
        let id = GrantId(self.next);
        self.next += 1;
        let mut granted = BTreeMap::new();
        for part in budget {
            let sum: &mut u64 = granted.entry(part.device.clone()).or_default();
            *sum = sum.saturating_add(part.bytes);
        }
        self.grants.insert(
            id,
            Grant {
                model: model.to_owned(),
                estimated: granted.clone(),
                granted,
                maps,
                taken: BTreeMap::new(),
                loaded_at: None,
            },
        );
        id
    }

    pub fn release(&mut self, id: GrantId, now: Instant) {
        if let Some(grant) = self.grants.remove(&id) {
            self.released.extend(grant.granted.into_keys().map(|device| (device, now)));
        }
    }

    pub fn get(&self, id: GrantId) -> Option<&Grant> {
        self.grants.get(&id)
    }

    pub fn get_mut(&mut self, id: GrantId) -> Option<&mut Grant> {
        self.grants.get_mut(&id)
    }

    pub fn released_at(&self, device: &str) -> Option<Instant> {
        self.released.get(device).copied()
    }

    /// Those with a share of a device.
    pub fn holders(&self, device: &str) -> impl Iterator<Item = (GrantId, &Grant)> {
        let device = device.to_owned();
        let holds = move |grant: &Grant| {
            grant.granted.get(&device).is_some_and(|bytes| *bytes > 0)
                || grant.taken.get(&device).is_some_and(|bytes| *bytes > 0)
        };
        self.grants.iter().filter(move |(_, grant)| holds(grant)).map(|(id, grant)| (*id, grant))
    }

    /// Bytes granted on a device.
    pub fn granted(&self, device: &str) -> u64 {
        self.sum(|grant| grant.granted.get(device).copied().unwrap_or(0))
    }

    /// Bytes in use on a GPU: seen, or as our workers say.
    pub fn device_used(&self, sight: &Sight, device: &str) -> u64 {
        let taken = || self.sum(|grant| grant.taken.get(device).copied().unwrap_or(0));
        sight.devices.get(device).and_then(|seen| seen.used).unwrap_or_else(taken)
    }

    /// Bytes that can be granted on a device.
    pub fn free(&self, sight: &Sight, device: &str, spare_percent: u8) -> u64 {
        self.free_without(sight, device, spare_percent, &[], 0)
    }

    /// The same, once these have left. `foreign`: taken by programs that are not ours, where only the engine can tell.
    pub fn free_without(
        &self,
        sight: &Sight,
        device: &str,
        spare_percent: u8,
        gone: &[GrantId],
        foreign: u64,
    ) -> u64 {
        let seen = sight.devices.get(device);
        let (total, mut left) = match seen {
            None if device == CPU => (sight.ram_total, sight.ram_available),
            None => return 0,
            Some(seen) => {
                let used = match seen.used {
                    Some(used) => used,
                    None => self.device_used(sight, device).saturating_add(foreign),
                };
                (seen.total, seen.total.saturating_sub(used))
            }
        };
        let same = |held: &str| held == device || (device == CPU && shares_ram(sight, held));
        for (id, grant) in &self.grants {
            let taken = sum_of(&grant.taken, same);
            if gone.contains(id) {
                left = left.saturating_add(taken);
                continue;
            }
            // By device: what one takes too much of a device is not saved on another.
            let open =
                grant.granted.iter().filter(|(held, _)| same(held)).map(|(held, granted)| {
                    granted.saturating_sub(grant.taken.get(held).copied().unwrap_or(0))
                });
            left = left.saturating_sub(open.fold(0, u64::saturating_add));
        }
        // In this order: a total that is 0 (nobody knows it) has no share to spare.
        let left = left.min(total).saturating_sub(total / 100 * u64::from(spare_percent));
        match seen {
            Some(seen) if seen.shares_ram => {
                left.min(self.free_without(sight, CPU, spare_percent, gone, foreign))
            }
            _ => left,
        }
    }

    fn sum(&self, bytes: impl Fn(&Grant) -> u64) -> u64 {
        self.grants.values().map(bytes).fold(0, u64::saturating_add)
    }
}

fn shares_ram(sight: &Sight, device: &str) -> bool {
    sight.devices.get(device).is_some_and(|seen| seen.shares_ram)
}

fn sum_of(bytes: &BTreeMap<String, u64>, of: impl Fn(&str) -> bool) -> u64 {
    bytes.iter().filter(|(device, _)| of(device)).map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests;
