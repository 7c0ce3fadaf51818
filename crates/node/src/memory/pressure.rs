//! Which memory is nearly full: told once when it becomes so, and taken back when it has clearly ended. Pure.

use std::collections::BTreeMap;

use node_api::Alert;

use super::MemoryLimits;

/// An alert ends so many percent below the threshold: use that wavers around it is told once.
pub const CLEARS_BELOW: u8 = 3;

/// Use of one device, or of the machine's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// `ram`, `cuda:0`.
    pub subject: String,
    pub used: u64,
    pub total: u64,
}

impl Use {
    /// Above so many percent. What has no total is never full.
    fn above(&self, percent: u8) -> bool {
        self.total > 0 && u128::from(self.used) * 100 > u128::from(self.total) * u128::from(percent)
    }

    fn percent(&self) -> u64 {
        u64::try_from(u128::from(self.used) * 100 / u128::from(self.total.max(1))).unwrap_or(u64::MAX)
    }
}

/// What changed with a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crossing {
    Up(Alert),
    Down(Alert),
}

#[derive(Debug, Default)]
pub struct Pressure {
    alerts: BTreeMap<String, Alert>,
}

impl Pressure {
    pub fn alerts(&self) -> impl Iterator<Item = &Alert> {
        self.alerts.values()
    }

    /// `at`: seconds since 1970.
    pub fn look(&mut self, uses: &[Use], limits: &MemoryLimits, at: i64) -> Vec<Crossing> {
        let mut crossings = Vec::new();
        for now in uses {
            let message =
                format!("{} is {} % full: {} of {} bytes", now.subject, now.percent(), now.used, now.total);
            match self.alerts.get_mut(&now.subject) {
                None if now.above(limits.alert_percent) => {
                    let alert = Alert {
                        code: "memory_high".to_owned(),
                        subject: now.subject.clone(),
                        message,
                        since: at,
                    };
                    self.alerts.insert(now.subject.clone(), alert.clone());
                    crossings.push(Crossing::Up(alert));
                }
                Some(_) if !now.above(limits.alert_percent.saturating_sub(CLEARS_BELOW)) => {
                    crossings.extend(self.alerts.remove(&now.subject).map(Crossing::Down));
                }
                Some(alert) => alert.message = message,
                None => {}
            }
        }
        crossings
    }
}

/// Those that are so full that idle models leave.
pub fn too_full<'a>(uses: &'a [Use], limits: &'a MemoryLimits) -> impl Iterator<Item = &'a Use> {
    uses.iter().filter(|now| now.above(limits.evict_percent))
}

#[cfg(test)]
mod tests;
