//! Any order of submit, cancel, step and failure, in any small layout of blocks: nothing is lost, shared wrongly or starved.

#![no_main]

use std::time::Duration;

use engine_sdk::kv::{KvGroup, KvLayout, KvMemory};
use engine_sdk::scheduler::{
    Limits,
    simulated::{Action, Simulation},
};
use libfuzzer_sys::fuzz_target;

/// Actions of one course at most: more find nothing that fewer do not, and take longer.
const ACTIONS_MAX: usize = 200;

/// Bytes one after the other; 0 when there are no more.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Below `end`.
    fn below(&mut self, end: u8) -> u8 {
        self.next() % end
    }
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let groups = (0..=bytes.below(3))
        .map(|_| KvGroup { window: (bytes.below(2) == 1).then(|| u32::from(bytes.below(40)) + 1) })
        .collect();
    let kv = (bytes.below(8) > 0).then(|| KvLayout {
        block_tokens: u32::from(bytes.below(16)) + 1,
        block_bytes: 1,
        // Enough for two tokens of every group, whatever its window.
        blocks: u32::from(bytes.next()) + 12,
        groups,
        memory: KvMemory::Ram,
    });
    let sequences_max = u32::from(bytes.below(8)) + 1;
    let mut simulation = Simulation::new(Limits {
        context_length: 80,
        sequences_max,
        batch_tokens_max: sequences_max + u32::from(bytes.next()),
        prefill_gap: Duration::from_millis(50),
        reserve_tokens: u32::from(bytes.below(80)),
        kv,
    });
    for _ in 0..ACTIONS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        let action = match bytes.below(16) {
            0..5 => Action::Submit {
                text: bytes.below(3),
                shared: u16::from(bytes.below(64)),
                own: u16::from(bytes.below(32)),
                answer_max: u16::from(bytes.below(64)),
                salt: bytes.below(2),
            },
            5 | 6 => Action::Cancel(u16::from(bytes.next())),
            7 => Action::FailAll,
            _ => {
                // Few rows stop or fail.
                let (a, b) = (u64::from(bytes.next()), u64::from(bytes.next()));
                Action::Step { stop: a & b, fail: a & !b & (a >> 3), took_ms: u16::from(bytes.next()) }
            }
        };
        simulation.act(&action);
    }
    simulation.finish();
});
