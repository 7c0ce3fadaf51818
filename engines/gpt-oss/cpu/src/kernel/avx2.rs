//! The kernels in AVX2 and FMA: 8 lanes, half of a block at a time.

use std::arch::x86_64::*;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, VALUES, bf16_to_f32, scale_value};

use super::{Rows, Tiles};
use crate::int8::{self, SCALE_COLUMNS};

pub(super) struct Kernel;

const HALF: usize = BLOCK / 2;
const LANES: usize = 8;

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
            add_bf16_tail(&bytes[r * columns * 2..][..columns * 2], columns, vectors, out);
        }
    }
    out
}

/// Adds what is behind the last whole block of a row.
pub(super) fn add_bf16_tail<const T: usize>(
    row: &[u8],
    columns: usize,
    vectors: [&[f32]; T],
    out: &mut [f32; T],
) {
    let start = columns / BLOCK * BLOCK;
    for (i, bytes) in row[2 * start..].as_chunks::<2>().0.iter().enumerate() {
        let weight = bf16_to_f32(u16::from_le_bytes(*bytes));
        for (out, vector) in out.iter_mut().zip(vectors) {
            *out += weight * vector[start + i % 2 * HALF + i / 2];
        }
    }
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
    // SAFETY: VALUES begins with the 8 positive numbers that are loaded.
    let table = unsafe { _mm256_loadu_ps(VALUES.as_ptr()) };
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    for half in 0..count * 2 {
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = (r * count * 2 + half) * (BLOCK_BYTES / 2);
            // SAFETY: these 8 bytes are half of one of the R * count blocks that the length was checked for.
            let bytes = unsafe { _mm_loadl_epi64(blocks.as_ptr().add(at).cast()) };
            let codes = _mm256_cvtepu8_epi32(bytes);
            let scale = _mm256_set1_ps(scale_value(scales[r * count + half / 2]));
            let even = value(codes, table, scale);
            let odd = value(_mm256_srli_epi32::<4>(codes), table, scale);
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                // SAFETY: vectors have 32 elements for every block of columns.
                let (x_even, x_odd) = unsafe { load(vector, half) };
                *sum = _mm256_fmadd_ps(even, x_even, *sum);
                *sum = _mm256_fmadd_ps(odd, x_odd, *sum);
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

/// The numbers of eight codes; bits above the low four of a lane do not matter.
#[inline]
#[target_feature(enable = "avx2")]
fn value(codes: __m256i, table: __m256, scale: __m256) -> __m256 {
    // The permutation looks at the low three bits; the fourth is the sign.
    let magnitude = _mm256_permutevar8x32_ps(table, codes);
    let sign = _mm256_slli_epi32::<31>(_mm256_srli_epi32::<3>(codes));
    _mm256_mul_ps(_mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign)), scale)
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
