//! The same with AVX2: two MXFP4 blocks, or 32 numbers of eight bits, are one vector of weights.

use std::arch::x86_64::*;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, bf16_to_f32, scale_value};

use super::{DOUBLED, NUMBERS, Tiles, Vector};
use crate::int8::{SCALE_COLUMNS, numbers_bytes};
use crate::kernel::Rows;

pub(super) struct Kernel;

/// Blocks of a vector of MXFP4 weights.
const PAIR: usize = 2;
/// Words of a vector.
const LANES: usize = 8;

impl Tiles for Kernel {
    const WIDE: bool = false;
    const THREE: bool = false;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
        match rows {
            Rows::Bf16 { .. } => panic!("rows of bf16 meet activations that are not quantized"),
            // SAFETY: `multiply` asserts that the processor has AVX2 and FMA before it uses this kernel.
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

/// Sums of four products of weights, 28 at most, with numbers, 127 at most, fit sixteen bits.
#[target_feature(enable = "avx2,fma")]
fn mxfp4<const R: usize, const T: usize>(
    blocks: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [Vector<'_>; T],
) -> [[f32; T]; R] {
    let count = columns / BLOCK;
    assert_eq!(columns % BLOCK, 0);
    assert_eq!(blocks.len(), R * count * BLOCK_BYTES);
    assert_eq!(scales.len(), R * count);
    assert!(vectors.iter().all(|v| v.scales.len() == count.next_multiple_of(PAIR)));
    // SAFETY: DOUBLED has 16 bytes.
    let table = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(DOUBLED.as_ptr().cast()) });
    let (low_four, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    for b in (0..count).step_by(PAIR) {
        let whole = b + 1 < count;
        let mut even = [_mm256_setzero_si256(); R];
        let mut odd = [_mm256_setzero_si256(); R];
        let mut weight_scales = [_mm256_setzero_ps(); R];
        for r in 0..R {
            let at = r * count + b;
            // SAFETY: block `at`, and the next one of a whole pair, are among the R * count.
            let bytes = unsafe {
                let start = blocks.as_ptr().add(at * BLOCK_BYTES);
                if whole {
                    _mm256_loadu_si256(start.cast())
                } else {
                    _mm256_zextsi128_si256(_mm_loadu_si128(start.cast()))
                }
            };
            if b % (2 * PAIR) == 0 {
                // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                let ahead = at * BLOCK_BYTES + blocks.len();
                _mm_prefetch::<_MM_HINT_T1>(blocks.as_ptr().wrapping_add(ahead).cast());
            }
            even[r] = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, low_four));
            odd[r] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low_four));
            let second = if whole { scale_value(scales[at + 1]) } else { 0.0 };
            weight_scales[r] = _mm256_set_m128(_mm_set1_ps(second), _mm_set1_ps(scale_value(scales[at])));
        }
        for t in 0..T {
            // SAFETY: vectors are padded to pairs of blocks, as asserted by the number of their scales.
            let (first, second, sum) = unsafe {
                let numbers = vectors[t].numbers.as_ptr().add(b * NUMBERS);
                (
                    _mm256_loadu_si256(numbers.cast()),
                    _mm256_loadu_si256(numbers.add(LANES).cast()),
                    _mm256_loadu_si256(vectors[t].sums.as_ptr().add(b * super::SUMS).cast()),
                )
            };
            let x_even = _mm256_permute2x128_si256::<0x20>(first, second);
            let x_odd = _mm256_permute2x128_si256::<0x31>(first, second);
            let scale = |b: usize| _mm_set1_ps(f32::from_bits(vectors[t].scales[b]));
            let vector_scale = _mm256_set_m128(scale(b + 1), scale(b));
            for r in 0..R {
                let pairs = _mm256_add_epi16(
                    _mm256_maddubs_epi16(even[r], x_even),
                    _mm256_maddubs_epi16(odd[r], x_odd),
                );
                let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(pairs, ones), sum));
                let scale = _mm256_mul_ps(weight_scales[r], vector_scale);
                sums[r][t] = _mm256_fmadd_ps(dot, scale, sums[r][t]);
            }
        }
    }
    // Values were doubled.
    sums.map(|row| row.map(|lanes| 0.5 * sum(lanes)))
}

/// Magnitudes of weights times numbers with the weights' signs: two products, 32,512 at most, fit sixteen bits.
#[target_feature(enable = "avx2,fma")]
fn int8<const R: usize, const T: usize>(
    numbers: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [Vector<'_>; T],
) -> [[f32; T]; R] {
    let length = numbers_bytes(columns);
    let count = columns.div_ceil(SCALE_COLUMNS);
    assert_eq!(numbers.len(), R * length);
    assert_eq!(scales.len(), R * count * 2);
    assert!(vectors.iter().all(|v| v.scales.len() * BLOCK >= length));
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    for b in 0..length / BLOCK {
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = r * length + b * BLOCK;
            // SAFETY: row r < R has `length` bytes, whole blocks.
            let weights = unsafe { _mm256_loadu_si256(numbers.as_ptr().add(at).cast()) };
            if b % 2 == 0 {
                // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                _mm_prefetch::<_MM_HINT_T1>(numbers.as_ptr().wrapping_add(at + numbers.len()).cast());
            }
            let magnitudes = _mm256_abs_epi8(weights);
            let scale = 2 * (r * count + b * BLOCK / SCALE_COLUMNS);
            let scale = bf16_to_f32(u16::from_le_bytes([scales[scale], scales[scale + 1]]));
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                // SAFETY: vectors have as many blocks as rows, at least.
                let x = unsafe { _mm256_loadu_si256(vector.numbers.as_ptr().add(b * NUMBERS).cast()) };
                let pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, weights));
                let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                let scale = _mm256_set1_ps(scale * f32::from_bits(vector.scales[b]));
                *sum = _mm256_fmadd_ps(dot, scale, *sum);
            }
        }
    }
    sums.map(|row| row.map(|lanes| sum(lanes)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(lanes: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
