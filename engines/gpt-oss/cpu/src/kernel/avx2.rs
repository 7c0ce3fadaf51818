//! The kernels in AVX2 and FMA: 8 lanes, half of a block at a time.

use std::arch::x86_64::*;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, bf16_to_f32, scale_value};

use super::{Rows, Tiles, VALUES_HIGH, VALUES_LOW};
use crate::int8::{self, SCALE_COLUMNS};

pub(super) struct Kernel;

const HALF: usize = BLOCK / 2;
const LANES: usize = 8;
/// Vectors of a block.
const PARTS: usize = BLOCK / LANES;
/// Bytes of a line of the cache.
const LINE: usize = 64;

impl Tiles for Kernel {
    const WIDE: bool = false;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [&[f32]; T]) -> [[f32; T]; R] {
        match rows {
            // SAFETY: `multiply` asserts that the processor has AVX2 and FMA before it uses this kernel.
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

#[target_feature(enable = "avx2,fma")]
fn bf16<const R: usize, const T: usize>(bytes: &[u8], columns: usize, vectors: [&[f32]; T]) -> [[f32; T]; R] {
    assert_eq!(bytes.len(), R * columns * 2);
    assert!(vectors.iter().all(|v| v.len() == super::split_len(columns)));
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    let upper = _mm256_set1_epi32(0xffff_0000u32.cast_signed());
    for half in 0..columns / BLOCK * 2 {
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = (r * columns + half * HALF) * 2;
            // SAFETY: row r < R has `columns` numbers and these 32 bytes end inside its whole blocks.
            let pairs = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) };
            if half % 2 == 0 {
                // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at + bytes.len()).cast());
            }
            let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
            let odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                // SAFETY: vectors have 32 elements for every block of columns.
                let (x_even, x_odd) = unsafe { load(vector, half) };
                *sum = _mm256_fmadd_ps(even, x_even, *sum);
                *sum = _mm256_fmadd_ps(odd, x_odd, *sum);
            }
        }
    }
    let mut out = sums.map(|row| row.map(|lanes| sum(lanes)));
    if !columns.is_multiple_of(BLOCK) {
        for (r, out) in out.iter_mut().enumerate() {
            super::add_bf16_tail(&bytes[r * columns * 2..][..columns * 2], columns, vectors, out);
        }
    }
    out
}

#[target_feature(enable = "avx2,fma")]
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
    let (high, low) = unsafe {
        (_mm_loadu_si128(VALUES_HIGH.as_ptr().cast()), _mm_loadu_si128(VALUES_LOW.as_ptr().cast()))
    };
    let (high, low) = (_mm256_broadcastsi128_si256(high), _mm256_broadcastsi128_si256(low));
    let (low_four, zero) = (_mm256_set1_epi8(15), _mm256_setzero_si256());
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    for b in 0..count {
        let mut x = [[_mm256_setzero_ps(); PARTS]; T];
        for (x, vector) in x.iter_mut().zip(vectors) {
            // SAFETY: vectors have 32 elements for every block of columns.
            *x = unsafe { load_block(vector, b) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = r * count + b;
            // SAFETY: block and scale `at` are among the R * count that the lengths were checked for.
            let (bytes, exponent) = unsafe {
                let bytes = _mm_loadu_si128(blocks.as_ptr().add(at * BLOCK_BYTES).cast());
                (bytes, *scales.as_ptr().add(at))
            };
            if b % (LINE / BLOCK_BYTES) == 0 {
                let ahead = at * BLOCK_BYTES + blocks.len();
                _mm_prefetch::<_MM_HINT_T1>(blocks.as_ptr().wrapping_add(ahead).cast());
            }
            // Even codes in the lower half, odd ones in the upper.
            let codes =
                _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
            let codes = _mm256_and_si256(codes, low_four);
            // As bytes of bf16 numbers, which are the upper halves of f32.
            let (high, low) = (_mm256_shuffle_epi8(high, codes), _mm256_shuffle_epi8(low, codes));
            let (first, second) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
            let weights = [
                _mm256_unpacklo_epi16(zero, first),
                _mm256_unpackhi_epi16(zero, first),
                _mm256_unpacklo_epi16(zero, second),
                _mm256_unpackhi_epi16(zero, second),
            ];
            let scale = _mm256_set1_ps(scale_value(exponent));
            for (sum, x) in sums.iter_mut().zip(&x) {
                let mut products = _mm256_mul_ps(_mm256_castsi256_ps(weights[0]), x[0]);
                for i in 1..PARTS {
                    products = _mm256_fmadd_ps(_mm256_castsi256_ps(weights[i]), x[i], products);
                }
                *sum = _mm256_fmadd_ps(products, scale, *sum);
            }
        }
    }
    sums.map(|row| row.map(|lanes| sum(lanes)))
}

#[target_feature(enable = "avx2,fma")]
fn int8<const R: usize, const T: usize>(
    numbers: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [&[f32]; T],
) -> [[f32; T]; R] {
    /// Of a block of [`SCALE_COLUMNS`].
    const HALVES: usize = SCALE_COLUMNS / HALF;
    let length = int8::numbers_bytes(columns);
    let count = columns.div_ceil(SCALE_COLUMNS);
    assert_eq!(numbers.len(), R * length);
    assert_eq!(scales.len(), R * count * 2);
    assert!(vectors.iter().all(|v| v.len() == length));
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    for b in 0..count {
        for (r, sums) in sums.iter_mut().enumerate() {
            let mut whole = [_mm256_setzero_ps(); T];
            for half in b * HALVES..((b + 1) * HALVES).min(length / HALF) {
                let at = r * length + half / 2 * BLOCK + half % 2 * LANES;
                // SAFETY: row r < R has `length` bytes, and half a block's even and odd ones end inside them.
                let (even, odd) = unsafe {
                    let start = numbers.as_ptr().add(at);
                    (widen(start), widen(start.add(HALF)))
                };
                for (whole, vector) in whole.iter_mut().zip(vectors) {
                    // SAFETY: vectors are as long as rows have bytes.
                    let (x_even, x_odd) = unsafe { load(vector, half) };
                    *whole = _mm256_fmadd_ps(even, x_even, *whole);
                    *whole = _mm256_fmadd_ps(odd, x_odd, *whole);
                }
            }
            let at = 2 * (r * count + b);
            let scale = _mm256_set1_ps(bf16_to_f32(u16::from_le_bytes([scales[at], scales[at + 1]])));
            for (sum, whole) in sums.iter_mut().zip(whole) {
                *sum = _mm256_fmadd_ps(whole, scale, *sum);
            }
        }
    }
    sums.map(|row| row.map(|lanes| sum(lanes)))
}

/// Eight signed bytes as floats.
///
/// # Safety
/// Eight bytes can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn widen(bytes: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm_loadl_epi64(bytes.cast()) };
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
}

/// A block of elements: four even ones and the odd ones behind each of them, four times.
///
/// # Safety
/// `vector` has at least `32 * (block + 1)` elements.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_block(vector: &[f32], block: usize) -> [__m256; PARTS] {
    debug_assert!(vector.len() >= (block + 1) * BLOCK);
    let mut parts = [_mm256_setzero_ps(); PARTS];
    for (i, part) in parts.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *part = unsafe {
            let start = vector.as_ptr().add(block * BLOCK + i * LANES / 2);
            _mm256_set_m128(_mm_loadu_ps(start.add(HALF)), _mm_loadu_ps(start))
        };
    }
    parts
}

/// Even and odd elements that meet half a block of weights.
///
/// # Safety
/// `vector` has at least `32 * (half / 2 + 1)` elements.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(vector: &[f32], half: usize) -> (__m256, __m256) {
    let start = half / 2 * BLOCK + half % 2 * LANES;
    debug_assert!(vector.len() >= start + HALF + LANES);
    // SAFETY: the caller's promise.
    unsafe {
        let start = vector.as_ptr().add(start);
        (_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(HALF)))
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(lanes: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
