//! Memory and descriptors of the services, as the system counts them.

use crate::process::Usage;

/// What all services of the scene hold together, without their workers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Held {
    pub router: Usage,
    /// The sum of all nodes.
    pub nodes: Usage,
    pub workers: usize,
}

/// Growth that is no leak: pools and caches fill once.
const DESCRIPTORS_GROWTH_MAX: u64 = 24;
const MEMORY_GROWTH_MAX: u64 = 48 << 20;

impl Held {
    pub fn descriptors(&self) -> u64 {
        self.router.descriptors + self.nodes.descriptors
    }

    pub fn memory(&self) -> u64 {
        self.router.memory + self.nodes.memory
    }

    /// What grew from `before` beyond what may.
    pub fn growth(&self, before: &Held) -> Vec<String> {
        let mut grown = Vec::new();
        for (who, now, then) in [("router", self.router, before.router), ("nodes", self.nodes, before.nodes)]
        {
            if now.descriptors > then.descriptors + DESCRIPTORS_GROWTH_MAX {
                grown.push(format!("descriptors of {who}: {} -> {}", then.descriptors, now.descriptors));
            }
            if now.memory > then.memory + MEMORY_GROWTH_MAX {
                grown.push(format!("memory of {who}: {} -> {} bytes", then.memory, now.memory));
            }
        }
        grown
    }
}
