//! Memory that is taken and never given back: real on the CPU, a claim on simulated devices.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
struct Held {
    /// Touched, so that the system has to give the pages.
    blocks: Vec<Vec<u8>>,
    /// Bytes by device.
    claimed: BTreeMap<String, u64>,
}

static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// Takes so many bytes of each of these devices, for as long as the process lives.
pub fn take(bytes: u64, devices: &[String]) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let held = held.get_or_insert_default();
    for device in devices {
        *held.claimed.entry(device.clone()).or_default() += bytes;
        if is_real(device) {
            held.blocks.push(touched(bytes));
        }
    }
}

/// What was taken of a device.
pub fn taken(device: &str) -> u64 {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.as_ref().and_then(|held| held.claimed.get(device)).copied().unwrap_or(0)
}

/// Of the machine's memory and not of a simulated device.
pub fn is_real(device: &str) -> bool {
    device == "cpu"
}

/// Bytes that are there, and not only promised: none of them is 0, which the system could give for nothing.
pub fn touched(bytes: u64) -> Vec<u8> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    vec![0xA5; bytes]
}
