//! The kernels in plain Rust, written so that the compiler can use whatever vectors the target always has.

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, VALUES, bf16_to_f32, scale_value};

use super::{Rows, Tiles};
use crate::int8::SCALE_COLUMNS;

pub(super) struct Kernel;

const HALF: usize = BLOCK / 2;

impl Tiles for Kernel {
    const WIDE: bool = false;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [&[f32]; T]) -> [[f32; T]; R] {
        let mut out = [[0.0; T]; R];
        for (r, out) in out.iter_mut().enumerate() {
            let mut sums = [[0.0f32; HALF]; T];
            match rows.slice(r..r + 1) {
                Rows::Bf16 { bytes, .. } => bf16_row(bytes, vectors, &mut sums),
                Rows::Mxfp4 { blocks, scales, .. } => mxfp4_row(blocks, scales, vectors, &mut sums),
                Rows::Int8 { numbers, scales, .. } => int8_row(numbers, scales, vectors, &mut sums),
            }
            *out = sums.map(|lanes| lanes.iter().sum());
        }
        out
    }
}

fn bf16_row<const T: usize>(bytes: &[u8], vectors: [&[f32]; T], sums: &mut [[f32; HALF]; T]) {
    let pairs = bytes.as_chunks::<4>().0;
    let (blocks, tail) = pairs.as_chunks::<HALF>();
    let number = |low: u8, high: u8| bf16_to_f32(u16::from_le_bytes([low, high]));
    for (b, block) in blocks.iter().enumerate() {
        let even = block.map(|p| number(p[0], p[1]));
        let odd = block.map(|p| number(p[2], p[3]));
        add_block(&even, &odd, b, vectors, sums);
    }
    // What is behind the last whole block; the vectors are zero behind the last column.
    let mut even = [0.0; HALF];
    let mut odd = [0.0; HALF];
    for (i, pair) in tail.iter().enumerate() {
        even[i] = number(pair[0], pair[1]);
        odd[i] = number(pair[2], pair[3]);
    }
    if let [low, high] = bytes.as_chunks::<4>().1 {
        even[tail.len()] = number(*low, *high);
    }
    if bytes.len() > blocks.len() * 2 * BLOCK {
        add_block(&even, &odd, blocks.len(), vectors, sums);
    }
}

fn mxfp4_row<const T: usize>(
    blocks: &[u8],
    scales: &[u8],
    vectors: [&[f32]; T],
    sums: &mut [[f32; HALF]; T],
) {
    for (b, (block, &scale)) in blocks.as_chunks::<BLOCK_BYTES>().0.iter().zip(scales).enumerate() {
        let factor = scale_value(scale);
        let even = block.map(|byte| VALUES[usize::from(byte & 15)] * factor);
        let odd = block.map(|byte| VALUES[usize::from(byte >> 4)] * factor);
        add_block(&even, &odd, b, vectors, sums);
    }
}

fn int8_row<const T: usize>(
    numbers: &[u8],
    scales: &[u8],
    vectors: [&[f32]; T],
    sums: &mut [[f32; HALF]; T],
) {
    const BLOCKS: usize = SCALE_COLUMNS / BLOCK;
    let (blocks, _) = numbers.as_chunks::<BLOCK>();
    for (s, (blocks, scale)) in blocks.chunks(BLOCKS).zip(scales.as_chunks::<2>().0).enumerate() {
        let mut whole = [[0.0; HALF]; T];
        for (b, block) in blocks.iter().enumerate() {
            let (even, odd) = block.split_at(HALF);
            let number = |bytes: &[u8]| std::array::from_fn(|i| f32::from(bytes[i] as i8));
            add_block(&number(even), &number(odd), s * BLOCKS + b, vectors, &mut whole);
        }
        let scale = bf16_to_f32(u16::from_le_bytes(*scale));
        for (sum, whole) in sums.as_flattened_mut().iter_mut().zip(whole.as_flattened()) {
            *sum += whole * scale;
        }
    }
}

fn add_block<const T: usize>(
    even: &[f32; HALF],
    odd: &[f32; HALF],
    block: usize,
    vectors: [&[f32]; T],
    sums: &mut [[f32; HALF]; T],
) {
    for (sums, vector) in sums.iter_mut().zip(vectors) {
        let (x_even, x_odd) = vector[block * BLOCK..][..BLOCK].split_at(HALF);
        for lane in 0..HALF {
            sums[lane] += even[lane] * x_even[lane] + odd[lane] * x_odd[lane];
        }
    }
}
