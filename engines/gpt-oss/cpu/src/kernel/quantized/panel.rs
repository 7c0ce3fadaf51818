//! Many quantized rows at once, with AVX-512 and `vpdpbusd`: a lane is a row of weights.
//!
//! Weights are brought into **panels** first: for 16 rows and a block of 32 columns eight vectors, of which vector w has
//! the w-th four numbers of the block of each row, unsigned; then a vector of the rows' scales. Tokens are used as they
//! lie: four of their numbers go to all lanes. A dot product of a block is then one lane, and a conversion, a
//! multiplication and an addition for 16 rows are all that a block costs beside its eight `vpdpbusd`: at most 80 % of the
//! unit's peak, as the three units of that kind are one.

use std::arch::x86_64::*;
use std::cell::RefCell;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES};

use super::{DOUBLED, LANES, NUMBERS, OFFSET, SUMS, Vector};
use crate::int8::{SCALE_COLUMNS, numbers_bytes, scales_bytes};
use crate::kernel::Rows;
use crate::kernel::transpose::transpose;

/// Vectors of a block of a panel.
const BLOCK_LINES: usize = NUMBERS + 1;
/// Panels of a tile with more than [`NARROW`] tokens, and with fewer: at most 12 sums, and as many dot products.
const PANELS: usize = 2;
const PANELS_NARROW: usize = 4;
/// Tokens of a tile at most.
const WIDE: usize = 6;
const NARROW: usize = 3;

/// A vector, and a line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

thread_local! {
    /// What a thread keeps from task to task: memory that is asked for anew has to be cleared first.
    static PANELS_OF_A_TASK: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Multiplies every row with every vector; `out(row, vector, products)` gets those of some rows, from `row` on.
///
/// # Panics
/// When the lengths do not fit each other, or rows are bf16.
pub(super) fn multiply(rows: Rows<'_>, vectors: &[Vector<'_>], out: &mut dyn FnMut(usize, usize, &[f32])) {
    assert!(super::avx512vnni::is_available(), "this processor has no VNNI");
    let blocks = rows.columns().div_ceil(BLOCK);
    assert!(vectors.iter().all(|v| v.scales.len() >= blocks));
    let panels = rows.count().div_ceil(LANES);
    PANELS_OF_A_TASK.with_borrow_mut(|lines| {
        lines.resize(panels * blocks * BLOCK_LINES, Line([0; 64]));
        // SAFETY: the processor can, as asserted.
        unsafe {
            for (p, lines) in lines.chunks_exact_mut(blocks * BLOCK_LINES).enumerate() {
                let first = p * LANES;
                bring(rows.slice(first..rows.count().min(first + LANES)), lines);
            }
            match rows {
                Rows::Int8 { .. } => tiles::<INT8_SHIFT>(lines, rows.count(), blocks, vectors, out),
                _ => tiles::<0>(lines, rows.count(), blocks, vectors, out),
            }
        }
    });
}

/// Numbers of eight bits are taken 128 too large, and sums are of [`OFFSET`].
const INT8_SHIFT: u32 = (128 / OFFSET as u32).trailing_zeros();

/// Makes a panel of at most 16 rows; in lanes behind the last is the last once more.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bring(rows: Rows<'_>, lines: &mut [Line]) {
    let last = rows.count() - 1;
    match rows {
        Rows::Bf16 { .. } => panic!("rows of bf16 meet activations that are not quantized"),
        Rows::Mxfp4 { blocks, scales, .. } => {
            let count = scales.len() / (last + 1);
            // SAFETY: DOUBLED has 16 bytes.
            let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(DOUBLED.as_ptr().cast()) });
            let low_four = _mm512_set1_epi8(15);
            let stride = count * BLOCK_BYTES;
            for (four, out) in lines.chunks_mut(4 * BLOCK_LINES).enumerate() {
                let bytes = (out.len() / BLOCK_LINES * BLOCK_BYTES) as u32;
                let words = gather(blocks, last, stride, four * 64, bytes);
                for (out, words) in out.chunks_exact_mut(BLOCK_LINES).zip(words.as_chunks::<4>().0) {
                    for (w, codes) in words.iter().enumerate() {
                        let high = _mm512_srli_epi16::<4>(*codes);
                        let even = _mm512_shuffle_epi8(table, _mm512_and_si512(*codes, low_four));
                        let odd = _mm512_shuffle_epi8(table, _mm512_and_si512(high, low_four));
                        store(even, &mut out[w]);
                        store(odd, &mut out[NUMBERS / 2 + w]);
                    }
                }
            }
            for (group, out) in lines.chunks_mut(LANES * BLOCK_LINES).enumerate() {
                let mask = u16::MAX >> (LANES - out.len() / BLOCK_LINES);
                let mut exponents = [_mm512_setzero_si512(); LANES];
                for (r, exponents) in exponents.iter_mut().enumerate() {
                    let row = &scales[r.min(last) * count..][..count][group * LANES..];
                    // SAFETY: the mask leaves what the row has.
                    let bytes = unsafe { _mm_maskz_loadu_epi8(mask, row.as_ptr().cast()) };
                    // A byte is the exponent of its power of two; 0 becomes 0 and not 2^-127, 255 infinity.
                    *exponents = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(bytes));
                }
                for (out, scales) in out.chunks_exact_mut(BLOCK_LINES).zip(transpose(exponents)) {
                    // Values are doubled.
                    let scales = _mm512_mul_ps(_mm512_castsi512_ps(scales), _mm512_set1_ps(0.5));
                    store(_mm512_castps_si512(scales), &mut out[NUMBERS]);
                }
            }
        }
        Rows::Int8 { numbers, scales, columns } => {
            let flip = _mm512_set1_epi8(i8::MIN);
            let stride = numbers_bytes(columns);
            for (two, out) in lines.chunks_mut(2 * BLOCK_LINES).enumerate() {
                let bytes = (out.len() / BLOCK_LINES * BLOCK) as u32;
                let words = gather(numbers, last, stride, two * 64, bytes);
                for (out, words) in out.chunks_exact_mut(BLOCK_LINES).zip(words.as_chunks::<NUMBERS>().0) {
                    for (out, numbers) in out.iter_mut().zip(words) {
                        store(_mm512_xor_si512(*numbers, flip), out);
                    }
                }
            }
            const SHARE: usize = SCALE_COLUMNS / BLOCK;
            let count = scales_bytes(columns);
            for (group, out) in lines.chunks_mut(LANES * SHARE * BLOCK_LINES).enumerate() {
                let mask = u16::MAX >> (LANES - out.len().div_ceil(SHARE * BLOCK_LINES));
                let mut bits = [_mm512_setzero_si512(); LANES];
                for (r, bits) in bits.iter_mut().enumerate() {
                    let row = &scales[r.min(last) * count..][..count][2 * group * LANES..];
                    // SAFETY: the mask leaves what the row has.
                    let pairs = unsafe { _mm256_maskz_loadu_epi16(mask, row.as_ptr().cast()) };
                    *bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(pairs));
                }
                for (out, scales) in out.chunks_mut(SHARE * BLOCK_LINES).zip(transpose(bits)) {
                    for out in out.chunks_exact_mut(BLOCK_LINES) {
                        store(scales, &mut out[NUMBERS]);
                    }
                }
            }
        }
    }
}

/// `some` bytes, at most 64, of each row from `from` on: word w of all rows becomes vector w.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn gather(bytes: &[u8], last: usize, stride: usize, from: usize, some: u32) -> [__m512i; LANES] {
    let mask = u64::MAX >> (u64::BITS - some);
    let mut vectors = [_mm512_setzero_si512(); LANES];
    for (r, vector) in vectors.iter_mut().enumerate() {
        let row = &bytes[r.min(last) * stride + from..][..some as usize];
        // The same place in the panel that comes next: rows are too far from each other for the hardware's own prefetch.
        // Into the second cache: 16 tokens are 15 % slower when it is into the first, 12 tokens 20 %.
        _mm_prefetch::<_MM_HINT_T1>(row.as_ptr().wrapping_add(bytes.len()).cast());
        // SAFETY: the mask leaves the bytes of the slice.
        *vector = unsafe { _mm512_maskz_loadu_epi8(mask, row.as_ptr().cast()) };
    }
    transpose(vectors)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(vector: __m512i, line: &mut Line) {
    // SAFETY: a line is 64 bytes, and aligned to them.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), vector) };
}

/// All `rows` of the panels times all vectors.
#[target_feature(enable = "avx512f,avx512vnni")]
fn tiles<const SHIFT: u32>(
    lines: &[Line],
    rows: usize,
    blocks: usize,
    vectors: &[Vector<'_>],
    out: &mut dyn FnMut(usize, usize, &[f32]),
) {
    let panels = lines.len() / (blocks * BLOCK_LINES);
    let mut done = 0;
    // As even as can be: seven tokens are four and three.
    let groups = vectors.len().div_ceil(WIDE);
    // A few tokens at a time, which stay in the first cache, pass through all panels, which stay in the second.
    for group in 0..groups {
        let width = (vectors.len() - done).div_ceil(groups - group);
        let tokens = &vectors[done..done + width];
        let most = if width > NARROW { PANELS } else { PANELS_NARROW };
        let mut panel = 0;
        while panel < panels {
            let height = match (panels - panel).min(most) {
                3 => 2,
                height => height,
            };
            let lines = &lines[panel * blocks * BLOCK_LINES..][..height * blocks * BLOCK_LINES];
            let first = panel * LANES;
            let count = (rows - first).min(height * LANES);
            let mut out = |token: usize, products: &[f32]| out(first, done + token, &products[..count]);
            match (height, width) {
                (1, 1) => tile::<1, 1, SHIFT>(lines, blocks, tokens, &mut out),
                (1, 2) => tile::<1, 2, SHIFT>(lines, blocks, tokens, &mut out),
                (1, 3) => tile::<1, 3, SHIFT>(lines, blocks, tokens, &mut out),
                (1, 4) => tile::<1, 4, SHIFT>(lines, blocks, tokens, &mut out),
                (1, 5) => tile::<1, 5, SHIFT>(lines, blocks, tokens, &mut out),
                (1, _) => tile::<1, WIDE, SHIFT>(lines, blocks, tokens, &mut out),
                (2, 1) => tile::<2, 1, SHIFT>(lines, blocks, tokens, &mut out),
                (2, 2) => tile::<2, 2, SHIFT>(lines, blocks, tokens, &mut out),
                (2, 3) => tile::<2, 3, SHIFT>(lines, blocks, tokens, &mut out),
                (2, 4) => tile::<2, 4, SHIFT>(lines, blocks, tokens, &mut out),
                (2, 5) => tile::<2, 5, SHIFT>(lines, blocks, tokens, &mut out),
                (2, _) => tile::<2, WIDE, SHIFT>(lines, blocks, tokens, &mut out),
                (_, 1) => tile::<PANELS_NARROW, 1, SHIFT>(lines, blocks, tokens, &mut out),
                (_, 2) => tile::<PANELS_NARROW, 2, SHIFT>(lines, blocks, tokens, &mut out),
                _ => tile::<PANELS_NARROW, NARROW, SHIFT>(lines, blocks, tokens, &mut out),
            }
            panel += height;
        }
        done += width;
    }
}

/// `R` panels times `T` vectors.
#[target_feature(enable = "avx512f,avx512vnni")]
fn tile<const R: usize, const T: usize, const SHIFT: u32>(
    lines: &[Line],
    blocks: usize,
    vectors: &[Vector<'_>],
    out: &mut impl FnMut(usize, &[f32]),
) {
    let stride = blocks * BLOCK_LINES;
    let tokens: &[Vector<'_>; T] = vectors.try_into().expect("as many vectors as the tile has");
    assert_eq!(lines.len(), R * stride);
    let enough =
        |v: &Vector<'_>| v.numbers.len() >= blocks * NUMBERS && v.scales.len().min(v.totals.len()) >= blocks;
    assert!(tokens.iter().all(enough));
    let numbers: [*const u32; T] = tokens.map(|v| v.numbers.as_ptr());
    let scales: [*const u32; T] = tokens.map(|v| v.scales.as_ptr());
    let totals: [*const u32; T] = tokens.map(|v| v.totals.as_ptr());
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for block in 0..blocks {
        // SAFETY: there are so many blocks of lines and of each vector, as asserted.
        unsafe {
            let lines = lines.as_ptr().add(block * BLOCK_LINES);
            let mut dots = [[_mm512_setzero_si512(); T]; R];
            for t in 0..T {
                let total = _mm512_set1_epi32(totals[t].add(block).read().cast_signed());
                let total = if SHIFT == 0 { total } else { _mm512_slli_epi32::<SHIFT>(total) };
                for dots in &mut dots {
                    dots[t] = total;
                }
            }
            for word in 0..NUMBERS {
                let mut weights = [_mm512_setzero_si512(); R];
                for (r, weights) in weights.iter_mut().enumerate() {
                    *weights = _mm512_load_si512(lines.add(r * stride + word).cast());
                }
                for t in 0..T {
                    let x = numbers[t].add(block * NUMBERS + word).read().cast_signed();
                    let x = _mm512_set1_epi32(x);
                    for (dots, weights) in dots.iter_mut().zip(weights) {
                        dots[t] = _mm512_dpbusd_epi32(dots[t], weights, x);
                    }
                }
            }
            for t in 0..T {
                let scale = _mm512_set1_ps(f32::from_bits(scales[t].add(block).read()));
                for r in 0..R {
                    let scale = _mm512_mul_ps(scale, _mm512_load_ps(lines.add(r * stride + NUMBERS).cast()));
                    sums[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][t]), scale, sums[r][t]);
                }
            }
        }
    }
    for t in 0..T {
        let mut products = [[0.0f32; LANES]; R];
        for (products, sums) in products.iter_mut().zip(&sums) {
            // SAFETY: 16 floats.
            unsafe { _mm512_storeu_ps(products.as_mut_ptr(), sums[t]) };
        }
        out(t, products.as_flattened());
    }
}

const _: () = assert!(SUMS * BLOCK_BYTES == 64 && NUMBERS == 8);
