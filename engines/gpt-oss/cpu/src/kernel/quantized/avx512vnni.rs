//! The same with AVX-512 and `vpdpbusd`: four MXFP4 blocks, or 64 numbers of eight bits, are one vector of weights.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES};

use super::{DOUBLED, LANES, OFFSET, Tiles, Vector};
use crate::int8::{SCALE_COLUMNS, numbers_bytes};
use crate::kernel::{Isa, Rows};

/// `C` is how codes become numbers.
pub(super) struct Kernel<C>(PhantomData<C>);

/// How 64 bytes of codes, two of them in each, become twice their values, and [`OFFSET`] more.
pub(super) trait Codes {
    /// Multiplies `R` rows with `T` vectors.
    ///
    /// # Safety
    /// The processor has what the kernel uses.
    unsafe fn product<const R: usize, const T: usize>(
        blocks: &[u8],
        scales: &[u8],
        columns: usize,
        vectors: [Vector<'_>; T],
    ) -> [[f32; T]; R];

    /// The same with [`super::blocks`].
    ///
    /// # Safety
    /// As above.
    unsafe fn blocks<const R: usize, const T: usize>(
        blocks: &[u8],
        scales: &[u8],
        columns: usize,
        vectors: [Vector<'_>; T],
    ) -> [[f32; T]; R];

    /// Those of the low halves, and of the high ones.
    ///
    /// # Safety
    /// As above.
    unsafe fn doubled(bytes: __m512i) -> (__m512i, __m512i);
}

/// With `vpshufb`, which wants everything but the index masked away: five instructions.
pub(super) struct Shuffled;
/// With `vpermb` of VBMI, which looks at six bits of an index: the table is there four times, and whatever the two upper
/// bits are finds the same. Three instructions.
pub(super) struct Permuted;

/// Whether the processor has what [`Permuted`] uses.
pub(super) fn permutes() -> bool {
    is_available() && is_x86_feature_detected!("avx512vbmi")
}

/// Both kernels, compiled for some features.
macro_rules! entries {
    ($features:literal) => {
        entries! { product, mxfp4, $features }
        entries! { blocks, super::blocks::product, $features }
    };
    ($name:ident, $kernel:path, $features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const R: usize, const T: usize>(
            blocks: &[u8],
            scales: &[u8],
            columns: usize,
            vectors: [Vector<'_>; T],
        ) -> [[f32; T]; R] {
            use $kernel as kernel;
            // SAFETY: the caller's promise.
            unsafe { kernel::<Self, R, T>(blocks, scales, columns, vectors) }
        }
    };
}

impl Codes for Shuffled {
    entries! { "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni" }

    #[inline(always)]
    unsafe fn doubled(bytes: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the caller's promise.
        unsafe {
            let low_four = _mm512_set1_epi8(15);
            let high = _mm512_srli_epi16::<4>(bytes);
            (
                _mm512_shuffle_epi8(table(), _mm512_and_si512(bytes, low_four)),
                _mm512_shuffle_epi8(table(), _mm512_and_si512(high, low_four)),
            )
        }
    }
}

impl Codes for Permuted {
    entries! { "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi" }

    #[inline(always)]
    unsafe fn doubled(bytes: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the caller's promise.
        unsafe {
            let high = _mm512_srli_epi16::<4>(bytes);
            (_mm512_permutexvar_epi8(bytes, table()), _mm512_permutexvar_epi8(high, table()))
        }
    }
}

/// [`DOUBLED`] four times.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn table() -> __m512i {
    // SAFETY: the caller's promise, and DOUBLED has 16 bytes.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(DOUBLED.as_ptr().cast())) }
}

/// 16 scales of MXFP4 as numbers: a byte is the exponent of its power of two; 0 becomes 0 and not 2^-127, 255 infinity.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn powers(bytes: __m128i) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(bytes))) }
}

/// Blocks of a vector of weights.
const FOUR: usize = 4;
/// Bytes of a vector, and of a line of the cache.
pub(super) const LINE: usize = 64;

/// Whether the processor has what is used here.
pub(super) fn is_available() -> bool {
    Isa::Avx512.is_available() && is_x86_feature_detected!("avx512vnni")
}

/// As [`super::quantize_blocks`], which the compiler turns into wide vectors here.
pub(super) fn quantize<'a>(
    chunks: impl Iterator<Item = &'a [f32]>,
    blocks: usize,
    out: &mut [u32],
    bring: impl Fn(&[f32], &mut [f32]),
) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn wide<'a>(
        chunks: impl Iterator<Item = &'a [f32]>,
        blocks: usize,
        out: &mut [u32],
        bring: impl Fn(&[f32], &mut [f32]),
    ) {
        super::quantize_blocks(chunks, blocks, out, bring);
    }
    assert!(is_available(), "this processor has no VNNI");
    // SAFETY: the processor can, as asserted.
    unsafe { wide(chunks, blocks, out, bring) }
}

impl<C: Codes> Tiles for Kernel<C> {
    const WIDE: bool = true;
    const THREE: bool = true;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
        match rows {
            Rows::Bf16 { .. } => panic!("rows of bf16 meet activations that are not quantized"),
            // SAFETY: `multiply` takes this kernel only where `is_available` or `permutes` says so.
            Rows::Mxfp4 { blocks, scales, columns } => unsafe {
                C::product::<R, T>(blocks, scales, columns, vectors)
            },
            // SAFETY: as above.
            Rows::Int8 { numbers, scales, columns } => unsafe {
                int8::<R, T>(numbers, scales, columns, vectors)
            },
        }
    }
}

/// # Safety
/// The processor has what `C` uses.
#[inline(always)]
unsafe fn mxfp4<C: Codes, const R: usize, const T: usize>(
    blocks: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [Vector<'_>; T],
) -> [[f32; T]; R] {
    let count = columns / BLOCK;
    assert_eq!(columns % BLOCK, 0);
    assert_eq!(blocks.len(), R * count * BLOCK_BYTES);
    assert_eq!(scales.len(), R * count);
    assert!(vectors.iter().all(|v| v.scales.len() >= count));
    let state = Mxfp4 { blocks, count, vectors };
    let mut out = [[0.0; T]; R];
    // SAFETY: the caller's promise; masks leave what rows and vectors have.
    unsafe {
        // The scales of the rows that come next, too: 90 bytes a row are too far apart for the hardware's own prefetch. One
        // vector was 29 and 3 % faster with one thread, 9 and 8 % with two, in two runs.
        for line in (0..scales.len()).step_by(LINE) {
            _mm_prefetch::<_MM_HINT_T0>(scales.as_ptr().wrapping_add(scales.len() + line).cast());
        }
        let mut sums = [[_mm512_setzero_ps(); T]; R];
        for first in (0..count).step_by(LANES) {
            let some = (count - first).min(LANES);
            let mask = u16::MAX >> (LANES - some);
            let mut weight_scales = [_mm512_setzero_ps(); R];
            for (r, widened) in weight_scales.iter_mut().enumerate() {
                // The mask leaves the `some` scales of row r < R from block `first` on.
                let bytes = _mm_maskz_loadu_epi8(mask, scales.as_ptr().add(r * count + first).cast());
                *widened = powers(bytes);
            }
            let mut vector_scales = [_mm512_setzero_ps(); T];
            for (scales, vector) in vector_scales.iter_mut().zip(vectors) {
                // Vectors have a scale for every block.
                *scales = _mm512_maskz_loadu_ps(mask, vector.scales.as_ptr().add(first).cast());
            }
            if T == 1 {
                for scales in &mut weight_scales {
                    *scales = _mm512_mul_ps(*scales, vector_scales[0]);
                }
            }
            // Four blocks are among the `count`, and what is left of four is.
            let whole = some / FOUR;
            for four in 0..whole {
                state.step::<C, true, R>(first, four, FOUR, &weight_scales, &vector_scales, &mut sums);
            }
            if !some.is_multiple_of(FOUR) {
                let rest = some % FOUR;
                state.step::<C, false, R>(first, whole, rest, &weight_scales, &vector_scales, &mut sums);
            }
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

struct Mxfp4<'a, const T: usize> {
    blocks: &'a [u8],
    /// Blocks of a row.
    count: usize,
    vectors: [Vector<'a>; T],
}

impl<const T: usize> Mxfp4<'_, T> {
    /// `some` blocks, four when `WHOLE`, from `first + 4 * four` on; the scales are those of 16 blocks from `first` on,
    /// those of the weights times those of the vector if there is only one.
    ///
    /// # Safety
    /// The blocks are inside the rows, and the processor has what `C` uses.
    #[inline(always)]
    unsafe fn step<C: Codes, const WHOLE: bool, const R: usize>(
        &self,
        first: usize,
        four: usize,
        some: usize,
        weight_scales: &[__m512; R],
        vector_scales: &[__m512; T],
        sums: &mut [[__m512; T]; R],
    ) {
        let b = first + FOUR * four;
        let bytes_mask = if WHOLE { u64::MAX } else { u64::MAX >> (LINE - some * BLOCK_BYTES) };
        // SAFETY: the caller's promise; masks leave the bytes of `some` blocks, and vectors are padded to pairs of blocks.
        unsafe {
            // Each block's scale to the four lanes of its sixteen bytes.
            let spread = _mm512_add_epi32(
                _mm512_set1_epi32((FOUR * four) as i32),
                _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
            );
            let mut even = [_mm512_setzero_si512(); R];
            let mut odd = [_mm512_setzero_si512(); R];
            let mut scales = [_mm512_setzero_ps(); R];
            for r in 0..R {
                let at = (r * self.count + b) * BLOCK_BYTES;
                let start = self.blocks.as_ptr().add(at);
                let bytes = if WHOLE {
                    _mm512_loadu_si512(start.cast())
                } else {
                    _mm512_maskz_loadu_epi8(bytes_mask, start.cast())
                };
                // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(self.blocks.len()).cast());
                (even[r], odd[r]) = C::doubled(bytes);
                scales[r] = _mm512_permutexvar_ps(spread, weight_scales[r]);
            }
            for t in 0..T {
                let vector = self.vectors[t];
                let numbers = vector.numbers.as_ptr().add(b * BLOCK / 4);
                let sum = vector.sums.as_ptr().add(b * FOUR);
                let (low, high, sum) = if WHOLE {
                    (
                        _mm512_loadu_si512(numbers.cast()),
                        _mm512_loadu_si512(numbers.add(LANES).cast()),
                        _mm512_loadu_si512(sum.cast()),
                    )
                } else {
                    let second = if some > 2 { u16::MAX } else { 0 };
                    (
                        _mm512_loadu_si512(numbers.cast()),
                        _mm512_maskz_loadu_epi32(second, numbers.wrapping_add(LANES).cast()),
                        _mm512_maskz_loadu_epi32(u16::MAX >> (LANES - FOUR * some), sum.cast()),
                    )
                };
                let x_even =
                    _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), high);
                let x_odd =
                    _mm512_permutex2var_epi64(low, _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15), high);
                let vector_scale = _mm512_permutexvar_ps(spread, vector_scales[t]);
                for r in 0..R {
                    let dot = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even[r], x_even), odd[r], x_odd);
                    let dot = _mm512_cvtepi32_ps(dot);
                    // Scales of weights are powers of two: where they are multiplied makes no difference.
                    let scale = if T == 1 { scales[r] } else { _mm512_mul_ps(scales[r], vector_scale) };
                    sums[r][t] = _mm512_fmadd_ps(dot, scale, sums[r][t]);
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn int8<const R: usize, const T: usize>(
    numbers: &[u8],
    scales: &[u8],
    columns: usize,
    vectors: [Vector<'_>; T],
) -> [[f32; T]; R] {
    /// Units are given 128 more than a number, and sums are of 16.
    const SHIFT: u32 = (128 / OFFSET as u32).trailing_zeros();
    let length = numbers_bytes(columns);
    let count = columns.div_ceil(SCALE_COLUMNS);
    assert_eq!(numbers.len(), R * length);
    assert_eq!(scales.len(), R * count * 2);
    assert!(vectors.iter().all(|v| v.scales.len() == 2 * count));
    let flip = _mm512_set1_epi8(i8::MIN);
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for first in (0..count).step_by(LANES) {
        let some = (count - first).min(LANES);
        let mut widened = [[0.0f32; LANES]; R];
        for (r, widened) in widened.iter_mut().enumerate() {
            let mask = u16::MAX >> (LANES - some);
            // SAFETY: the mask leaves the `some` scales of row r < R from the `first` one on.
            unsafe {
                let pairs =
                    _mm256_maskz_loadu_epi16(mask, scales.as_ptr().add(2 * (r * count + first)).cast());
                let bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(pairs));
                _mm512_storeu_ps(widened.as_mut_ptr(), _mm512_castsi512_ps(bits));
            }
        }
        for (s, group) in (first..first + some).enumerate() {
            let start = group * SCALE_COLUMNS;
            let whole = length - start >= SCALE_COLUMNS;
            let mut weights = [_mm512_setzero_si512(); R];
            for (r, weights) in weights.iter_mut().enumerate() {
                let at = r * length + start;
                // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                _mm_prefetch::<_MM_HINT_T1>(numbers.as_ptr().wrapping_add(at + numbers.len()).cast());
                // SAFETY: row r < R has `length` bytes, of which a block of 32 begins at `start`, and another one
                // behind it if the scale is of a whole 64.
                let bytes = unsafe {
                    let start = numbers.as_ptr().add(at);
                    if whole {
                        _mm512_loadu_si512(start.cast())
                    } else {
                        _mm512_zextsi256_si512(_mm256_loadu_si256(start.cast()))
                    }
                };
                *weights = _mm512_xor_si512(bytes, flip);
            }
            for t in 0..T {
                // SAFETY: vectors are padded to whole 64 columns, as asserted by the number of their scales.
                let (x, sum, low, high) = unsafe {
                    let sum = _mm256_loadu_si256(vectors[t].sums.as_ptr().add(2 * FOUR * group).cast());
                    (
                        _mm512_loadu_si512(vectors[t].numbers.as_ptr().add(LANES * group).cast()),
                        // Each block's four sums to every other one of its eight lanes: they are added up in the end.
                        _mm512_slli_epi32::<SHIFT>(_mm512_cvtepu32_epi64(sum)),
                        _mm512_set1_ps(f32::from_bits(*vectors[t].scales.get_unchecked(2 * group))),
                        _mm512_set1_ps(f32::from_bits(*vectors[t].scales.get_unchecked(2 * group + 1))),
                    )
                };
                let vector_scale = _mm512_mask_blend_ps(0xff00, low, high);
                for r in 0..R {
                    let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(sum, weights[r], x));
                    let dot = _mm512_mul_ps(dot, vector_scale);
                    sums[r][t] = _mm512_fmadd_ps(dot, _mm512_set1_ps(widened[r][s]), sums[r][t]);
                }
            }
        }
    }
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            out[r][t] = _mm512_reduce_add_ps(sums[r][t]);
        }
    }
    out
}
