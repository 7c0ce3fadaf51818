//! What a device can do at most, to hold everything else against.

use crate::arguments::arguments;
use crate::device::{Address, Device};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Failure};

const THREADS: usize = 256;
/// Bytes that are read: many times what any cache holds.
const READ_BYTES: usize = 4 << 30;
/// Blocks for each processor.
const BLOCKS: usize = 8;
/// Products of 16x8x16 of a warp in a round.
const PRODUCTS: usize = 8;
const ROUNDS: usize = 4096;

arguments! {
    pub struct PeakReadArgs {
        pub from: Address,
        pub out: Address,
        pub quads: u64,
    }
}

arguments! {
    pub struct PeakMmaArgs {
        pub out: Address,
        pub rounds: u32,
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let (blocks, bytes) = size.of([(1, 16), (2, 1 << 16), (3, 16 * 1001), (2, 16 * 600)]);
    let numbers = bed.bytes(bytes);
    let out = bed.room(4 * blocks * THREADS)?;
    let arguments = PeakReadArgs { from: bed.put(&numbers)?, out, quads: bytes as u64 / 16 };
    device.launch(&launch("peak_read", [blocks, 1, 1], THREADS as u32, &arguments))?;
    let mut want = vec![0u32; blocks * THREADS];
    for (quad, bytes) in numbers.chunks_exact(16).enumerate() {
        for word in bytes.as_chunks::<4>().0 {
            want[quad % (blocks * THREADS)] ^= u32::from_le_bytes(*word);
        }
    }
    if bed.get_u32(out, want.len())? != want {
        return Err(Failure::Other("what was read is not what was written".to_owned()));
    }
    let arguments = PeakMmaArgs { out, rounds: 3 };
    device.launch(&launch("peak_mma", [blocks, 1, 1], THREADS as u32, &arguments))?;
    // Products of numbers just around 1, which the sums are near to.
    let near = (4 * PRODUCTS * 3 * 16) as f32;
    let is_near = |sum: &f32| (sum - near).abs() < near * 0.02;
    match bed.get_f32(out, want.len())?.into_iter().find(|sum| !is_near(sum)) {
        None => Ok(()),
        Some(sum) => Err(Failure::Other(format!("a sum is {sum}, far from {near}"))),
    }
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let blocks = device.info()?.processors as usize * BLOCKS;
    let out = bed.room(4 * blocks * THREADS)?;
    // One token: reading. Many: multiplying.
    if tokens == 1 {
        let arguments = PeakReadArgs { from: bed.room(READ_BYTES)?, out, quads: READ_BYTES as u64 / 16 };
        let launches = vec![launch("peak_read", [blocks, 1, 1], THREADS as u32, &arguments)];
        return Ok(Some(Bench { launches, bytes: READ_BYTES as u64, operations: 0 }));
    }
    let arguments = PeakMmaArgs { out, rounds: ROUNDS as u32 };
    let launches = vec![launch("peak_mma", [blocks, 1, 1], THREADS as u32, &arguments)];
    let operations = (blocks * THREADS / 32 * PRODUCTS * ROUNDS * 2 * 16 * 8 * 16) as u64;
    Ok(Some(Bench { launches, bytes: 0, operations }))
}
