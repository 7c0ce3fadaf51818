//! The kernels in AVX-512: 16 lanes, one MXFP4 block or 32 bf16 numbers at a time.

use std::arch::x86_64::*;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, VALUES, scale_value};

use super::{Isa, Rows, Swiglu, Tiles};
use crate::int8::{self, SCALE_COLUMNS};

/// `INVARIANT`: see [`super::Order`].
pub(super) struct Kernel<const INVARIANT: bool>;

const HALF: usize = BLOCK / 2;
/// Bytes of a line of the cache.
const LINE: usize = 64;

impl<const INVARIANT: bool> Tiles for Kernel<INVARIANT> {
    const WIDE: bool = true;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [&[f32]; T]) -> [[f32; T]; R] {
        match rows {
            // SAFETY: `multiply` asserts that the processor has AVX-512 before it uses this kernel.
            Rows::Bf16 { bytes, columns } => unsafe { bf16::<R, T>(bytes, columns, vectors) },
            // SAFETY: as above.
            Rows::Mxfp4 { blocks, scales, columns } => unsafe {
                mxfp4::<R, T, INVARIANT>(blocks, scales, columns, vectors)
            },
            // SAFETY: as above.
            Rows::Int8 { numbers, scales, columns } => unsafe {
                int8::<R, T>(numbers, scales, columns, vectors)
            },
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn bf16<const R: usize, const T: usize>(bytes: &[u8], columns: usize, vectors: [&[f32]; T]) -> [[f32; T]; R] {
    assert_eq!(bytes.len(), R * columns * 2);
    assert!(vectors.iter().all(|v| v.len() == super::split_len(columns)));
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    let upper = _mm512_set1_epi32(0xffff_0000u32.cast_signed());
    let blocks = columns / BLOCK;
    for b in 0..blocks {
        let mut even = [_mm512_setzero_ps(); R];
        let mut odd = [_mm512_setzero_ps(); R];
        for r in 0..R {
            let at = (r * columns + b * BLOCK) * 2;
            // SAFETY: row r < R has `columns` numbers and block b of 64 bytes ends inside them.
            let pairs = unsafe { _mm512_loadu_si512(bytes.as_ptr().add(at).cast()) };
            // The same place in the rows that come next: the hardware's own prefetch stops at every page.
            _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at + bytes.len()).cast());
            even[r] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            odd[r] = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
        }
        for t in 0..T {
            // SAFETY: vectors have 32 elements for every block of columns.
            let (x_even, x_odd) = unsafe { load(vectors[t], b) };
            for r in 0..R {
                sums[r][t] = _mm512_fmadd_ps(even[r], x_even, sums[r][t]);
                sums[r][t] = _mm512_fmadd_ps(odd[r], x_odd, sums[r][t]);
            }
        }
    }
    let mut out = reduce(&sums);
    if !columns.is_multiple_of(BLOCK) {
        for (r, out) in out.iter_mut().enumerate() {
            let row = &bytes[r * columns * 2..][..columns * 2];
            super::add_bf16_tail(row, columns, vectors, out);
        }
    }
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn mxfp4<const R: usize, const T: usize, const INVARIANT: bool>(
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
    // SAFETY: VALUES has the 16 floats that are loaded.
    let table = unsafe { _mm512_loadu_ps(VALUES.as_ptr()) };
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for b in 0..count {
        let mut even = [_mm512_setzero_ps(); R];
        let mut odd = [_mm512_setzero_ps(); R];
        let mut scale = [_mm512_setzero_ps(); R];
        for r in 0..R {
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
            let codes = _mm512_cvtepu8_epi32(bytes);
            // The permutation looks at the low four bits of a lane only.
            even[r] = _mm512_permutexvar_ps(codes, table);
            odd[r] = _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), table);
            scale[r] = _mm512_set1_ps(scale_value(exponent));
            if T > 1 || INVARIANT {
                even[r] = _mm512_mul_ps(even[r], scale[r]);
                odd[r] = _mm512_mul_ps(odd[r], scale[r]);
            }
        }
        for t in 0..T {
            // SAFETY: vectors have 32 elements for every block of columns.
            let (x_even, x_odd) = unsafe { load(vectors[t], b) };
            for r in 0..R {
                if T > 1 || INVARIANT {
                    sums[r][t] = _mm512_fmadd_ps(even[r], x_even, sums[r][t]);
                    sums[r][t] = _mm512_fmadd_ps(odd[r], x_odd, sums[r][t]);
                } else {
                    // One vector alone: scaling the products takes one multiplication less than scaling the weights,
                    // and the sum waits for one addition a block and not for two. Scales are powers of two: exact.
                    let products = _mm512_fmadd_ps(odd[r], x_odd, _mm512_mul_ps(even[r], x_even));
                    sums[r][t] = _mm512_fmadd_ps(products, scale[r], sums[r][t]);
                }
            }
        }
    }
    reduce(&sums)
}

/// One order for all: whole numbers times activations within a block, then the scale.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn int8<const R: usize, const T: usize>(
    numbers: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [&[f32]; T],
) -> [[f32; T]; R] {
    let length = int8::numbers_bytes(columns);
    let count = columns.div_ceil(SCALE_COLUMNS);
    assert_eq!(numbers.len(), R * length);
    assert_eq!(scales.len(), R * count * 2);
    assert!(vectors.iter().all(|v| v.len() == length));
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    // Scales of 16 blocks are widened together.
    for first in (0..count).step_by(HALF) {
        let some = (count - first).min(HALF);
        let mut widened = [[0.0f32; HALF]; R];
        for (r, widened) in widened.iter_mut().enumerate() {
            let mask = 0xffff >> (HALF - some);
            // SAFETY: the mask leaves the `some` scales of row r < R from block `first` on.
            unsafe {
                let pairs =
                    _mm256_maskz_loadu_epi16(mask, scales.as_ptr().add(2 * (r * count + first)).cast());
                let bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(pairs));
                _mm512_storeu_ps(widened.as_mut_ptr(), _mm512_castsi512_ps(bits));
            }
        }
        for (s, start) in (first * SCALE_COLUMNS..).step_by(SCALE_COLUMNS).take(some).enumerate() {
            let whole = (length - start).min(SCALE_COLUMNS) == SCALE_COLUMNS;
            for r in 0..R {
                let at = r * length + start;
                // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                _mm_prefetch::<_MM_HINT_T1>(numbers.as_ptr().wrapping_add(at + numbers.len()).cast());
                // SAFETY: row r < R has `length` bytes, and a vector as many elements; a block of 32 columns begins
                // at `start`, and another one behind it if the scale is of a whole 64.
                unsafe {
                    let numbers = numbers.as_ptr().add(at);
                    let (even, odd) = (widen(numbers), widen(numbers.add(HALF)));
                    let (mut more_even, mut more_odd) = (_mm512_setzero_ps(), _mm512_setzero_ps());
                    if whole {
                        (more_even, more_odd) = (widen(numbers.add(BLOCK)), widen(numbers.add(BLOCK + HALF)));
                    }
                    let scale = _mm512_set1_ps(widened[r][s]);
                    for t in 0..T {
                        let (x_even, x_odd) = load(vectors[t], start / BLOCK);
                        let mut products = _mm512_fmadd_ps(odd, x_odd, _mm512_mul_ps(even, x_even));
                        if whole {
                            let (x_even, x_odd) = load(vectors[t], start / BLOCK + 1);
                            products = _mm512_fmadd_ps(more_even, x_even, products);
                            products = _mm512_fmadd_ps(more_odd, x_odd, products);
                        }
                        sums[r][t] = _mm512_fmadd_ps(products, scale, sums[r][t]);
                    }
                }
            }
        }
    }
    reduce(&sums)
}

/// See [`Swiglu::activate_split`].
pub(super) fn activate_split(swiglu: Swiglu, pairs: &[f32], out: &mut [f32]) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn wide(swiglu: Swiglu, pairs: &[f32], out: &mut [f32]) {
        swiglu.split_blocks(pairs, out);
    }
    assert!(Isa::Avx512.is_available(), "this processor has no AVX-512");
    // SAFETY: the processor can, as asserted.
    unsafe { wide(swiglu, pairs, out) }
}

/// Sixteen signed bytes as floats.
///
/// # Safety
/// Sixteen bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn widen(bytes: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    let bytes = unsafe { _mm_loadu_si128(bytes.cast()) };
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
}

/// The sum of each accumulator's lanes. No closures: they would not be inlined, for want of the target's features.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduce<const R: usize, const T: usize>(sums: &[[__m512; T]; R]) -> [[f32; T]; R] {
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            out[r][t] = _mm512_reduce_add_ps(sums[r][t]);
        }
    }
    out
}

/// The even and the odd elements of a block.
///
/// # Safety
/// `vector` has at least `32 * (block + 1)` elements.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(vector: &[f32], block: usize) -> (__m512, __m512) {
    debug_assert!(vector.len() >= (block + 1) * BLOCK);
    // SAFETY: the caller's promise.
    unsafe {
        let start = vector.as_ptr().add(block * BLOCK);
        (_mm512_loadu_ps(start), _mm512_loadu_ps(start.add(HALF)))
    }
}
