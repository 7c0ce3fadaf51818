//! What a device can do at most, to hold everything else against.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, word};
use crate::testing::{Bed, Expected, Failure, compare};

/// Threads of a workgroup.
pub(crate) const THREADS: usize = 256;
/// Multiplications and additions of a thread in a round of `peak_multiply`.
pub(crate) const OPERATIONS: usize = 32;

/// `peak_read`, of the whole 16 bytes of `memory`; `out` has a word for each thread.
pub(crate) fn read(memory: Slice, out: Slice, quads: usize, groups: usize) -> Launch {
    Launch {
        kernel: "peak_read",
        grid: [word(groups), 1, 1],
        bindings: vec![memory, out],
        arguments: vec![word(quads), word(groups * THREADS)],
    }
}

/// `peak_multiply`; `out` has a number for each thread.
pub(crate) fn multiply(out: Slice, rounds: usize, groups: usize) -> Launch {
    Launch {
        kernel: "peak_multiply",
        grid: [word(groups), 1, 1],
        bindings: vec![out],
        arguments: vec![word(rounds)],
    }
}

pub(super) fn check(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(gpu, seed);
    let (groups, quads, rounds) =
        (size.of([1, 2, 3, 2]), size.of([1, 4096, 1001, 600]), size.of([1, 40, 7, 3]));
    let words: Vec<u32> = (0..4 * quads).map(|_| bed.bits() as u32).collect();
    let (memory, out) = (bed.put(&words)?, bed.room(groups * THREADS)?);
    bed.run(&[read(memory.whole(), out.whole(), quads, groups)])?;
    let mut want = vec![0; groups * THREADS];
    for (n, quad) in words.chunks_exact(4).enumerate() {
        want[n % (groups * THREADS)] ^= quad.iter().fold(0, |mixed, word| mixed ^ word);
    }
    if bed.get(out, want.len())? != want {
        return Err(Failure::Other("what was read is not what was written".to_owned()));
    }
    let numbers = bed.floats(groups * THREADS, 1.0);
    let out = bed.put_f32(&numbers)?;
    bed.run(&[multiply(out.whole(), rounds, groups)])?;
    let want: Vec<Expected> = numbers
        .iter()
        .map(|&start| {
            let start = f64::from(start);
            let one = |begin: f64| (0..rounds).fold(begin, |sum, _| sum * 0.5 + start);
            let value = 4.0 * (0..4).map(|i| one(start + f64::from(i))).sum::<f64>();
            // Sums of up to 40 in size, each rounded.
            Expected { value, bound: 1e-4 }
        })
        .collect();
    compare("out", &bed.get_f32(out, want.len())?, &want)
}
