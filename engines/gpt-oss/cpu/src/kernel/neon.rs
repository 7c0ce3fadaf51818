//! The kernels in NEON, which every 64-bit Arm has: 4 lanes, a block of 32 weights in eight vectors.
//!
//! Bf16 and matrix instructions (`bfmmla`, `smmla`) are not used: they round activations, which a row alone never is.

use std::arch::aarch64::*;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, bf16_to_f32, scale_value};

use super::{Rows, Tiles, VALUES_HIGH, VALUES_LOW};
use crate::int8::{self, SCALE_COLUMNS};

pub(super) struct Kernel;

const HALF: usize = BLOCK / 2;
const LANES: usize = 4;
/// Vectors of a block: those of the even elements, then those of the odd ones.
const PARTS: usize = BLOCK / LANES;

// Pairs of bytes are taken for bf16 numbers as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"));

impl Tiles for Kernel {
    // 32 registers: 16 sums, a block of weights, and what a product takes.
    const WIDE: bool = true;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [&[f32]; T]) -> [[f32; T]; R] {
        match rows {
            // SAFETY: `multiply` asserts that the processor has NEON before it uses this kernel.
            Rows::Bf16 { bytes, columns } => unsafe { bf16::<R, T>(bytes, columns, vectors) },
            // SAFETY: as above.
            Rows::Mxfp4 { blocks, scales, columns } => unsafe {
                mxfp4::<R, T>(blocks, scales, columns, vectors)
            },
            // SAFETY: as above.
            Rows::Int8 { numbers, scales, columns } => unsafe {
                int8::<R, T>(numbers, scales, columns, vectors)
            },
        }
    }
}

#[target_feature(enable = "neon")]
fn bf16<const R: usize, const T: usize>(bytes: &[u8], columns: usize, vectors: [&[f32]; T]) -> [[f32; T]; R] {
    assert_eq!(bytes.len(), R * columns * 2);
    assert!(vectors.iter().all(|v| v.len() == super::split_len(columns)));
    let mut sums = [[vdupq_n_f32(0.0); T]; R];
    let upper = vdupq_n_u32(0xffff_0000);
    for b in 0..columns / BLOCK {
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = (r * columns + b * BLOCK) * 2;
            let mut weights = [vdupq_n_f32(0.0); PARTS];
            for i in 0..PARTS / 2 {
                // SAFETY: row r < R has `columns` numbers and block b of 64 bytes ends inside them.
                let pairs = unsafe { vld1q_u8(bytes.as_ptr().add(at + i * 4 * LANES)) };
                let pairs = vreinterpretq_u32_u8(pairs);
                weights[i] = vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs));
                weights[PARTS / 2 + i] = vreinterpretq_f32_u32(vandq_u32(pairs, upper));
            }
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                // SAFETY: vectors have 32 elements for every block of columns.
                *sum = vaddq_f32(*sum, unsafe { products(&weights, vector, b) });
            }
        }
    }
    let mut out = reduce(&sums);
    if !columns.is_multiple_of(BLOCK) {
        for (r, out) in out.iter_mut().enumerate() {
            super::add_bf16_tail(&bytes[r * columns * 2..][..columns * 2], columns, vectors, out);
        }
    }
    out
}

#[target_feature(enable = "neon")]
fn mxfp4<const R: usize, const T: usize>(
    blocks: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [&[f32]; T],
) -> [[f32; T]; R] {
    let count = columns / BLOCK;
    assert_eq!(columns % BLOCK, 0);
    assert_eq!(blocks.len(), R * count * BLOCK_BYTES);
    assert_eq!(scales.len(), R * count);
    assert!(vectors.iter().all(|v| v.len() == columns));
    // SAFETY: both tables have 16 bytes.
    let (high, low) = unsafe { (vld1q_u8(VALUES_HIGH.as_ptr()), vld1q_u8(VALUES_LOW.as_ptr())) };
    let mut sums = [[vdupq_n_f32(0.0); T]; R];
    for b in 0..count {
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = r * count + b;
            // SAFETY: block `at` is one of the R * count that the length was checked for.
            let bytes = unsafe { vld1q_u8(blocks.as_ptr().add(at * BLOCK_BYTES)) };
            let even = values(vandq_u8(bytes, vdupq_n_u8(15)), high, low);
            let odd = values(vshrq_n_u8::<4>(bytes), high, low);
            let weights = [even[0], even[1], even[2], even[3], odd[0], odd[1], odd[2], odd[3]];
            let scale = vdupq_n_f32(scale_value(scales[at]));
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                // SAFETY: vectors have 32 elements for every block of columns.
                *sum = vfmaq_f32(*sum, unsafe { products(&weights, vector, b) }, scale);
            }
        }
    }
    reduce(&sums)
}

/// The numbers of 16 codes.
#[inline]
#[target_feature(enable = "neon")]
fn values(codes: uint8x16_t, high: uint8x16_t, low: uint8x16_t) -> [float32x4_t; 4] {
    let (high, low) = (vqtbl1q_u8(high, codes), vqtbl1q_u8(low, codes));
    // Low byte first: 16 bf16 numbers, which are the upper halves of f32.
    let first = vreinterpretq_u16_u8(vzip1q_u8(low, high));
    let second = vreinterpretq_u16_u8(vzip2q_u8(low, high));
    [
        vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(first))),
        vreinterpretq_f32_u32(vshll_high_n_u16::<16>(first)),
        vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(second))),
        vreinterpretq_f32_u32(vshll_high_n_u16::<16>(second)),
    ]
}

#[target_feature(enable = "neon")]
fn int8<const R: usize, const T: usize>(
    numbers: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [&[f32]; T],
) -> [[f32; T]; R] {
    /// Of a group of [`SCALE_COLUMNS`].
    const BLOCKS: usize = SCALE_COLUMNS / BLOCK;
    let length = int8::numbers_bytes(columns);
    let count = columns.div_ceil(SCALE_COLUMNS);
    assert_eq!(numbers.len(), R * length);
    assert_eq!(scales.len(), R * count * 2);
    assert!(vectors.iter().all(|v| v.len() == length));
    let mut sums = [[vdupq_n_f32(0.0); T]; R];
    for b in 0..length / BLOCK {
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: row r < R has `length` bytes, and block b of 32 ends inside them.
            let weights = unsafe {
                let start = numbers.as_ptr().add(r * length + b * BLOCK);
                let (even, odd) = (widen(start), widen(start.add(HALF)));
                [even[0], even[1], even[2], even[3], odd[0], odd[1], odd[2], odd[3]]
            };
            let at = 2 * (r * count + b / BLOCKS);
            let scale = vdupq_n_f32(bf16_to_f32(u16::from_le_bytes([scales[at], scales[at + 1]])));
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                // SAFETY: vectors are as long as rows have bytes.
                *sum = vfmaq_f32(*sum, unsafe { products(&weights, vector, b) }, scale);
            }
        }
    }
    reduce(&sums)
}

/// Sixteen signed bytes as floats.
///
/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn widen(bytes: *const u8) -> [float32x4_t; 4] {
    // SAFETY: the caller's promise.
    let bytes = unsafe { vld1q_s8(bytes.cast()) };
    let (first, second) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(first))),
        vcvtq_f32_s32(vmovl_high_s16(first)),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(second))),
        vcvtq_f32_s32(vmovl_high_s16(second)),
    ]
}

/// A block of weights times the elements it meets, in four lanes. The same order for every vector, however many others
/// there are; in two chains, and apart from the sum of a row, so that no product waits for the block before.
///
/// # Safety
/// `vector` has at least `32 * (block + 1)` elements.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn products(weights: &[float32x4_t; PARTS], vector: &[f32], block: usize) -> float32x4_t {
    debug_assert!(vector.len() >= (block + 1) * BLOCK);
    // SAFETY: the caller's promise.
    unsafe {
        let start = vector.as_ptr().add(block * BLOCK);
        let mut even = vmulq_f32(weights[0], vld1q_f32(start));
        let mut odd = vmulq_f32(weights[PARTS / 2], vld1q_f32(start.add(HALF)));
        for i in 1..PARTS / 2 {
            even = vfmaq_f32(even, weights[i], vld1q_f32(start.add(i * LANES)));
            odd = vfmaq_f32(odd, weights[PARTS / 2 + i], vld1q_f32(start.add(HALF + i * LANES)));
        }
        vaddq_f32(even, odd)
    }
}

/// The sum of each accumulator's lanes. No closures: they would not be inlined, for want of the target's features.
#[inline]
#[target_feature(enable = "neon")]
fn reduce<const R: usize, const T: usize>(sums: &[[float32x4_t; T]; R]) -> [[f32; T]; R] {
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            out[r][t] = vaddvq_f32(sums[r][t]);
        }
    }
    out
}
