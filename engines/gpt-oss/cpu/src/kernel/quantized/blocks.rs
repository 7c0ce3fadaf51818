//! MXFP4 with AVX-512 and `vpdpbusd` where a few vectors meet the same rows: a lane is a block.
//!
//! Sixteen blocks of a row are four vectors of weights. They are turned, so that vector k has the k-th four bytes of each
//! block, which costs eight shuffles; quantized rows have the numbers that these bytes meet as lines of the same order
//! ([`super::TURNED_LINES`]). A dot product of a block is then one lane: a conversion, a multiplication by both scales and an
//! addition are done once for 16 blocks, where [`super::avx512vnni`] does them for four. For each further vector that is 10
//! instructions of the units that multiply instead of 16, eight of them `vpdpbusd`.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES};

use super::avx512vnni::{Codes, LINE, powers};
use super::{LANES, TURNED_LINES, Tiles, Vector, tile};
use crate::kernel::Rows;

/// Words of a block's codes, which are two numbers in each byte.
const WORDS: usize = BLOCK_BYTES / 4;
/// Rows of a tile: their codes and sums, with those of four vectors, leave registers for what is computed.
const ROWS: usize = 2;
/// Vectors of a tile at most.
const VECTORS: usize = 4;

/// How many tiles ahead rows are fetched. From memory, one thread, 64 bytes with two vectors took 5.5, 5.0 and 4.4 ns with one,
/// two and three, with four vectors 7.4, 6.3 and 5.8; four and six are as three.
const AHEAD: usize = 4;

/// `C` is how codes become numbers.
pub(super) struct Kernel<C>(PhantomData<C>);

impl<C: Codes> Tiles for Kernel<C> {
    const WIDE: bool = true;
    const THREE: bool = true;

    fn rows_together(rows: Rows<'_>, vectors: &[Vector<'_>], out: &mut [f32]) {
        let count = rows.count();
        for row in (0..count).step_by(ROWS) {
            let mut done = 0;
            while done < vectors.len() {
                // As even as can be: five are three and two.
                let tiles = (vectors.len() - done).div_ceil(VECTORS);
                let width = (vectors.len() - done).div_ceil(tiles);
                done += match (count - row, width) {
                    (1, 1) => tile::<Self, 1, 1>(rows, row, vectors, done, out),
                    (1, 2) => tile::<Self, 1, 2>(rows, row, vectors, done, out),
                    (1, 3) => tile::<Self, 1, 3>(rows, row, vectors, done, out),
                    (1, _) => tile::<Self, 1, VECTORS>(rows, row, vectors, done, out),
                    (_, 1) => tile::<Self, ROWS, 1>(rows, row, vectors, done, out),
                    (_, 2) => tile::<Self, ROWS, 2>(rows, row, vectors, done, out),
                    (_, 3) => tile::<Self, ROWS, 3>(rows, row, vectors, done, out),
                    _ => tile::<Self, ROWS, VECTORS>(rows, row, vectors, done, out),
                };
            }
        }
    }

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
        let Rows::Mxfp4 { blocks, scales, columns } = rows else {
            panic!("rows of other weights than MXFP4 meet the kernel for their blocks")
        };
        // SAFETY: `multiply` takes this kernel only where `is_available` or `permutes` says so.
        unsafe { C::blocks::<R, T>(blocks, scales, columns, vectors) }
    }
}

/// # Safety
/// The processor has what `C` uses.
#[inline(always)]
pub(super) unsafe fn product<C: Codes, const R: usize, const T: usize>(
    blocks: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [Vector<'_>; T],
) -> [[f32; T]; R] {
    let count = columns / BLOCK;
    assert_eq!(columns % BLOCK, 0);
    assert_eq!(blocks.len(), R * count * BLOCK_BYTES);
    assert_eq!(scales.len(), R * count);
    let groups = count.div_ceil(LANES);
    assert!(vectors.iter().all(|v| v.turned.len() >= groups * TURNED_LINES * LANES));
    let state = Product { blocks, scales, count, turned: vectors.map(|v| v.turned.as_ptr()) };
    let mut out = [[0.0; T]; R];
    // SAFETY: the caller's promise; so many groups are in rows and vectors, as asserted.
    unsafe {
        for line in (0..scales.len()).step_by(LINE) {
            _mm_prefetch::<_MM_HINT_T0>(scales.as_ptr().wrapping_add(AHEAD * scales.len() + line).cast());
        }
        let mut sums = [[_mm512_setzero_ps(); T]; R];
        let whole = count / LANES;
        for group in 0..whole {
            state.add::<C, true, R>(group, LANES, &mut sums);
        }
        if whole < groups {
            state.add::<C, false, R>(whole, count - whole * LANES, &mut sums);
        }
        // Values were doubled.
        for r in 0..R {
            for t in 0..T {
                out[r][t] = 0.5 * _mm512_reduce_add_ps(sums[r][t]);
            }
        }
    }
    out
}

struct Product<'a, const T: usize> {
    blocks: &'a [u8],
    scales: &'a [u8],
    /// Blocks of a row.
    count: usize,
    /// As [`Vector::turned`].
    turned: [*const u32; T],
}

impl<const T: usize> Product<'_, T> {
    /// Adds the products of `some` blocks, 16 when `WHOLE`, from `16 * group` on.
    ///
    /// # Safety
    /// The blocks are inside the rows, and the processor has what `C` uses.
    #[inline(always)]
    unsafe fn add<C: Codes, const WHOLE: bool, const R: usize>(
        &self,
        group: usize,
        some: usize,
        sums: &mut [[__m512; T]; R],
    ) {
        // SAFETY: the caller's promise; masks leave what `some` blocks have, and vectors have whole groups.
        unsafe {
            let mut codes = [[_mm512_setzero_si512(); R]; WORDS];
            let mut weight_scales = [_mm512_setzero_ps(); R];
            for r in 0..R {
                let first = r * self.count + group * LANES;
                let start = self.blocks.as_ptr().add(first * BLOCK_BYTES);
                let mut vectors = [_mm512_setzero_si512(); WORDS];
                for (i, vector) in vectors.iter_mut().enumerate() {
                    let at = start.wrapping_add(i * LINE);
                    *vector = if WHOLE {
                        _mm512_loadu_si512(at.cast())
                    } else {
                        let bytes = (some * BLOCK_BYTES).saturating_sub(i * LINE).min(LINE) as u32;
                        let mask = u64::MAX.checked_shr(u64::BITS - bytes).unwrap_or(0);
                        _mm512_maskz_loadu_epi8(mask, at.cast())
                    };
                    // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                    _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(AHEAD * self.blocks.len()).cast());
                }
                for (codes, turned) in codes.iter_mut().zip(turn(vectors)) {
                    codes[r] = turned;
                }
                let mask = u16::MAX >> (LANES - some);
                let bytes = _mm_maskz_loadu_epi8(mask, self.scales.as_ptr().add(first).cast());
                let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                weight_scales[r] = powers(_mm_shuffle_epi8(bytes, order));
            }
            let lines = self.turned.map(|turned| turned.add(group * TURNED_LINES * LANES));
            let line = |t: usize, line: usize| _mm512_loadu_si512(lines[t].add(line * LANES).cast());
            let mut dots = [[_mm512_setzero_si512(); R]; T];
            for (t, dots) in dots.iter_mut().enumerate() {
                dots.fill(line(t, 2 * WORDS + 1));
            }
            for (k, codes) in codes.iter().enumerate() {
                let mut even = [_mm512_setzero_si512(); R];
                let mut odd = [_mm512_setzero_si512(); R];
                for r in 0..R {
                    (even[r], odd[r]) = C::doubled(codes[r]);
                }
                for (t, dots) in dots.iter_mut().enumerate() {
                    let (x_even, x_odd) = (line(t, 2 * k), line(t, 2 * k + 1));
                    for r in 0..R {
                        dots[r] = _mm512_dpbusd_epi32(dots[r], even[r], x_even);
                        dots[r] = _mm512_dpbusd_epi32(dots[r], odd[r], x_odd);
                    }
                }
            }
            for (t, dots) in dots.iter().enumerate() {
                let vector_scales = _mm512_castsi512_ps(line(t, 2 * WORDS));
                for r in 0..R {
                    let scale = _mm512_mul_ps(weight_scales[r], vector_scales);
                    sums[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), scale, sums[r][t]);
                }
            }
        }
    }
}

/// Word k of quarter j of vector i becomes word i of quarter j of vector k.
#[inline(always)]
unsafe fn turn(vectors: [__m512i; WORDS]) -> [__m512i; WORDS] {
    // SAFETY: the caller's promise.
    unsafe {
        let low = [0, 2].map(|i| _mm512_unpacklo_epi32(vectors[i], vectors[i + 1]));
        let high = [0, 2].map(|i| _mm512_unpackhi_epi32(vectors[i], vectors[i + 1]));
        [
            _mm512_unpacklo_epi64(low[0], low[1]),
            _mm512_unpackhi_epi64(low[0], low[1]),
            _mm512_unpacklo_epi64(high[0], high[1]),
            _mm512_unpackhi_epi64(high[0], high[1]),
        ]
    }
}

const _: () = assert!(LANES * BLOCK_BYTES == WORDS * LINE && BLOCK == 8 * WORDS);
