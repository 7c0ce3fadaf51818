//! The same with NEON: a block of 32 weights is two vectors of 16 signed bytes, MXFP4 as twice its value.
//!
//! Three forms, by what the processor has. `smull` on all of them; `sdot` (dotprod, cores since about 2018), which does the
//! same sums in a third of the instructions, to the same bits; `smmla` (i8mm, cores since about 2021) for two rows and two
//! vectors at once, whose sums need no adding across lanes and have another order.
//!
//! Intrinsics for the latter two are unstable, so they are written out. Seen under emulation alone: which one is faster is
//! by count of instructions, for a block of two rows and two vectors 7 with `smmla` and 20 with `sdot`.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, bf16_to_f32, scale_value};

use super::{DOUBLED, NUMBERS, OFFSET, Tiles, Vector};
use crate::int8::{SCALE_COLUMNS, numbers_bytes};
use crate::kernel::Rows;

/// Twice the value of each code.
const SIGNED: [i8; 16] = {
    let mut signed = [0; 16];
    let mut code = 0;
    while code < 16 {
        signed[code] = DOUBLED[code] as i8 - OFFSET;
        code += 1;
    }
    signed
};

/// What products are multiplied with in the end: values of MXFP4 were doubled.
const MXFP4_FACTOR: f32 = 0.5;

pub(super) fn has_dot() -> bool {
    is_aarch64_feature_detected!("dotprod")
}

/// A vector or a row alone takes the dot product.
pub(super) fn has_pairs() -> bool {
    has_dot() && is_aarch64_feature_detected!("i8mm")
}

/// `smull`.
pub(super) struct Plain;
/// `sdot`.
pub(super) struct Dot;
/// `smmla` for two and more, otherwise `sdot`.
pub(super) struct Pairs;

impl Tiles for Plain {
    // 32 registers: 16 sums, and two vectors of each of four rows.
    const WIDE: bool = true;
    const THREE: bool = true;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
        let rows = Blocks::of::<R>(rows);
        // SAFETY: `quantized::multiply` asserts that the processor has NEON.
        unsafe { plain(rows, vectors) }
    }
}

impl Tiles for Dot {
    const WIDE: bool = true;
    const THREE: bool = true;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
        assert!(has_dot(), "this processor has no dot products");
        let rows = Blocks::of::<R>(rows);
        // SAFETY: as asserted.
        unsafe { dot(rows, vectors) }
    }
}

impl Tiles for Pairs {
    const WIDE: bool = true;
    const THREE: bool = false;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
        assert!(has_pairs(), "this processor has no products of pairs");
        let rows = Blocks::of::<R>(rows);
        // SAFETY: as asserted.
        unsafe { if R % 2 == 0 && T % 2 == 0 { pairs(rows, vectors) } else { dot(rows, vectors) } }
    }
}

/// Rows of either kind by their blocks.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    bytes: &'a [u8],
    scales: &'a [u8],
    is_mxfp4: bool,
    /// Blocks of a row.
    count: usize,
}

impl<'a> Blocks<'a> {
    fn of<const R: usize>(rows: Rows<'a>) -> Blocks<'a> {
        match rows {
            Rows::Bf16 { .. } => panic!("rows of bf16 meet activations that are not quantized"),
            Rows::Mxfp4 { blocks, scales, columns } => {
                let count = columns / BLOCK;
                assert_eq!((columns % BLOCK, scales.len()), (0, R * count));
                assert_eq!(blocks.len(), R * count * BLOCK_BYTES);
                Blocks { bytes: blocks, scales, is_mxfp4: true, count }
            }
            Rows::Int8 { numbers, scales, columns } => {
                let count = numbers_bytes(columns) / BLOCK;
                assert_eq!(numbers.len(), R * count * BLOCK);
                assert_eq!(scales.len(), 2 * R * columns.div_ceil(SCALE_COLUMNS));
                Blocks { bytes: numbers, scales, is_mxfp4: false, count }
            }
        }
    }

    fn scale(&self, row: usize, block: usize) -> f32 {
        if self.is_mxfp4 {
            return MXFP4_FACTOR * scale_value(self.scales[row * self.count + block]);
        }
        const SHARE: usize = SCALE_COLUMNS / BLOCK;
        let at = 2 * (row * self.count.div_ceil(SHARE) + block / SHARE);
        bf16_to_f32(u16::from_le_bytes([self.scales[at], self.scales[at + 1]]))
    }

    /// The numbers of even and of odd columns.
    ///
    /// # Safety
    /// There is such a row, and such a block in it.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn numbers(&self, row: usize, block: usize) -> [int8x16_t; 2] {
        let at = row * self.count + block;
        // SAFETY: the caller's promise; a table of 16 bytes.
        unsafe {
            if self.is_mxfp4 {
                let codes = vld1q_u8(self.bytes.as_ptr().add(at * BLOCK_BYTES));
                let table = vld1q_s8(SIGNED.as_ptr());
                [
                    vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(15))),
                    vqtbl1q_s8(table, vshrq_n_u8::<4>(codes)),
                ]
            } else {
                let start = self.bytes.as_ptr().add(at * BLOCK).cast();
                [vld1q_s8(start), vld1q_s8(start.add(BLOCK / 2))]
            }
        }
    }
}

/// The numbers of a block of a vector, of even and of odd columns.
///
/// # Safety
/// There is such a block.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn numbers(vector: &Vector<'_>, block: usize) -> [int8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let start = vector.numbers.as_ptr().add(block * NUMBERS).cast();
        [vld1q_s8(start), vld1q_s8(start.add(BLOCK / 2))]
    }
}

fn assert_as_long(rows: Blocks<'_>, vectors: &[Vector<'_>]) {
    assert!(vectors.iter().all(|v| v.scales.len() >= rows.count && v.numbers.len() >= rows.count * NUMBERS));
}

/// A function of rows times vectors, `$products` giving four sums of a block.
macro_rules! tile {
    ($name:ident, $features:literal, $products:ident) => {
        #[target_feature(enable = $features)]
        fn $name<const R: usize, const T: usize>(
            rows: Blocks<'_>,
            vectors: [Vector<'_>; T],
        ) -> [[f32; T]; R] {
            assert_as_long(rows, &vectors);
            let mut sums = [[vdupq_n_f32(0.0); T]; R];
            for b in 0..rows.count {
                let mut weights = [[vdupq_n_s8(0); 2]; R];
                let mut scales = [0.0; R];
                for r in 0..R {
                    // SAFETY: there are R rows of `count` blocks.
                    weights[r] = unsafe { rows.numbers(r, b) };
                    scales[r] = rows.scale(r, b);
                }
                for t in 0..T {
                    // SAFETY: as asserted.
                    let x = unsafe { numbers(&vectors[t], b) };
                    let scale = f32::from_bits(vectors[t].scales[b]);
                    for r in 0..R {
                        let products = vcvtq_f32_s32($products(weights[r], x));
                        sums[r][t] = vfmaq_n_f32(sums[r][t], products, scale * scales[r]);
                    }
                }
            }
            let mut out = [[0.0; T]; R];
            for r in 0..R {
                for t in 0..T {
                    out[r][t] = vaddvq_f32(sums[r][t]);
                }
            }
            out
        }
    };
}

tile!(plain, "neon", plain_products);
tile!(dot, "neon,dotprod", dot_products);

/// Sums of four neighbours, even columns' and odd ones', in the lanes in which `sdot` has them. Two products of numbers of
/// eight bits, 128 * 127 at most, fit sixteen.
#[inline]
#[target_feature(enable = "neon")]
fn plain_products(weights: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(weights[0]), vget_low_s8(x[0]));
    let low = vmlal_s8(low, vget_low_s8(weights[1]), vget_low_s8(x[1]));
    let high = vmlal_high_s8(vmull_high_s8(weights[0], x[0]), weights[1], x[1]);
    vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_products(weights: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
    let mut sums = vdupq_n_s32(0);
    // SAFETY: the processor has the instruction, as this function asks of its callers; no memory.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {even:v}.16b, {x_even:v}.16b",
            "sdot {sums:v}.4s, {odd:v}.16b, {x_odd:v}.16b",
            sums = inout(vreg) sums,
            even = in(vreg) weights[0],
            odd = in(vreg) weights[1],
            x_even = in(vreg) x[0],
            x_odd = in(vreg) x[1],
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Eight numbers of one and eight of another in each of four vectors: what `smmla` multiplies.
type Paired = [int8x16_t; 4];

#[inline]
#[target_feature(enable = "neon")]
fn paired(first: [int8x16_t; 2], second: [int8x16_t; 2]) -> Paired {
    let mut out = [vdupq_n_s8(0); 4];
    for i in 0..2 {
        let (first, second) = (vreinterpretq_s64_s8(first[i]), vreinterpretq_s64_s8(second[i]));
        out[2 * i] = vreinterpretq_s8_s64(vtrn1q_s64(first, second));
        out[2 * i + 1] = vreinterpretq_s8_s64(vtrn2q_s64(first, second));
    }
    out
}

/// Lanes: the first row with both vectors, then the second row.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn pair_products(weights: Paired, x: Paired) -> int32x4_t {
    let mut sums = vdupq_n_s32(0);
    // SAFETY: the processor has the instruction, as this function asks of its callers; no memory.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {w0:v}.16b, {x0:v}.16b",
            "smmla {sums:v}.4s, {w1:v}.16b, {x1:v}.16b",
            "smmla {sums:v}.4s, {w2:v}.16b, {x2:v}.16b",
            "smmla {sums:v}.4s, {w3:v}.16b, {x3:v}.16b",
            sums = inout(vreg) sums,
            w0 = in(vreg) weights[0],
            w1 = in(vreg) weights[1],
            w2 = in(vreg) weights[2],
            w3 = in(vreg) weights[3],
            x0 = in(vreg) x[0],
            x1 = in(vreg) x[1],
            x2 = in(vreg) x[2],
            x3 = in(vreg) x[3],
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// `R` and `T` are even.
#[target_feature(enable = "neon,i8mm")]
fn pairs<const R: usize, const T: usize>(rows: Blocks<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
    assert_as_long(rows, &vectors);
    // Of pairs of rows and pairs of vectors: of each four only one is used.
    let mut sums = [[vdupq_n_f32(0.0); T]; R];
    for b in 0..rows.count {
        let mut weights = [[vdupq_n_s8(0); 4]; R];
        let mut scales = [vdupq_n_f32(0.0); R];
        for r in (0..R).step_by(2) {
            // SAFETY: there are R rows of `count` blocks.
            weights[r] = unsafe { paired(rows.numbers(r, b), rows.numbers(r + 1, b)) };
            scales[r] = vcombine_f32(vdup_n_f32(rows.scale(r, b)), vdup_n_f32(rows.scale(r + 1, b)));
        }
        for t in (0..T).step_by(2) {
            // SAFETY: as asserted.
            let x = unsafe { paired(numbers(&vectors[t], b), numbers(&vectors[t + 1], b)) };
            let both = [vectors[t].scales[b], vectors[t + 1].scales[b]].map(f32::from_bits);
            // SAFETY: two floats.
            let both = unsafe { vld1_f32(both.as_ptr()) };
            let both = vcombine_f32(both, both);
            for r in (0..R).step_by(2) {
                let products = vcvtq_f32_s32(pair_products(weights[r], x));
                sums[r][t] = vfmaq_f32(sums[r][t], products, vmulq_f32(both, scales[r]));
            }
        }
    }
    let mut out = [[0.0; T]; R];
    for r in (0..R).step_by(2) {
        for t in (0..T).step_by(2) {
            let mut lanes = [0.0; 4];
            // SAFETY: four floats.
            unsafe { vst1q_f32(lanes.as_mut_ptr(), sums[r][t]) };
            (out[r][t], out[r][t + 1], out[r + 1][t], out[r + 1][t + 1]) =
                (lanes[0], lanes[1], lanes[2], lanes[3]);
        }
    }
    out
}
