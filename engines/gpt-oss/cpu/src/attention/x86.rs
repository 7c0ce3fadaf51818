//! Lanes of AVX2 and of AVX-512, and products of bf16 pairs.

use std::arch::x86_64::*;

use super::block::Products;
use super::lanes::Lanes;
use crate::math::{EXP_TERMS, LN2_HIGH, LN2_LOW, ROUND};

/// AVX2 and FMA.
pub(super) struct Avx2;
/// AVX-512 F, BW, DQ and VL.
pub(super) struct Avx512;
/// AVX-512 with BF16: both sides are pairs of bf16 numbers, two products and their sum are one instruction.
pub(super) struct Pairs;

/// Polynomial of the rest, after `x` was split into n * ln 2 and a rest. The same in both widths.
macro_rules! rest_of_exp {
    ($lanes:ty, $x:expr, $n:expr) => {{
        let r = <$lanes>::multiply_add($n, <$lanes>::splat(-LN2_HIGH), $x);
        let r = <$lanes>::multiply_add($n, <$lanes>::splat(-LN2_LOW), r);
        let mut p = <$lanes>::splat(EXP_TERMS[0]);
        let mut term = 1;
        while term < EXP_TERMS.len() {
            p = <$lanes>::multiply_add(p, r, <$lanes>::splat(EXP_TERMS[term]));
            term += 1;
        }
        p
    }};
}

impl Lanes for Avx2 {
    type V = __m256;
    const N: usize = 8;
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the trait's own demands, as in everything below.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m256) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u32) -> (__m256, __m256) {
        // SAFETY: as above.
        unsafe {
            let words = _mm256_loadu_si256(from.cast());
            let upper = _mm256_set1_epi32(0xffff_0000u32.cast_signed());
            (
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)),
                _mm256_castsi256_ps(_mm256_and_si256(words, upper)),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn subtract(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn larger(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn exp(x: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let lowest = _mm256_set1_ps(-87.3);
            // A NaN is the second operand's, so it stays.
            let clamped = _mm256_max_ps(lowest, x);
            let round = _mm256_set1_ps(ROUND);
            let n = _mm256_fmadd_ps(clamped, _mm256_set1_ps(std::f32::consts::LOG2_E), round);
            let n = _mm256_sub_ps(n, round);
            let p = rest_of_exp!(Avx2, clamped, n);
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            let y = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)));
            _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, lowest), y)
        }
    }

    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        // SAFETY: as above.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn largest(v: __m256) -> f32 {
        // SAFETY: as above.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u32) {
        // SAFETY: a prefetch does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}

impl Lanes for Avx512 {
    type V = __m512;
    const N: usize = 16;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u32) -> (__m512, __m512) {
        // SAFETY: as above.
        unsafe {
            let words = _mm512_loadu_si512(from.cast());
            let upper = _mm512_set1_epi32(0xffff_0000u32.cast_signed());
            (
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)),
                _mm512_castsi512_ps(_mm512_and_si512(words, upper)),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn subtract(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn larger(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn exp(x: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            // Below -104 the scaling by a power of two gives 0 by itself. A NaN is the second operand's, so it stays.
            let clamped = _mm512_max_ps(_mm512_set1_ps(-110.0), x);
            let round = _mm512_set1_ps(ROUND);
            let n = _mm512_fmadd_ps(clamped, _mm512_set1_ps(std::f32::consts::LOG2_E), round);
            let n = _mm512_sub_ps(n, round);
            _mm512_scalef_ps(rest_of_exp!(Avx512, clamped, n), n)
        }
    }

    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_ps(v) }
    }

    #[inline(always)]
    unsafe fn largest(v: __m512) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u32) {
        // SAFETY: a prefetch does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}

impl Products for Pairs {
    type L = Avx512;
    type Left = __m512i;
    type Right = __m512i;
    const NUMBERS: usize = 2;
    const WORDS: usize = 1;

    #[inline(always)]
    unsafe fn left(from: *const u32) -> __m512i {
        // SAFETY: as the trait demands.
        unsafe { _mm512_set1_epi32(from.read().cast_signed()) }
    }

    #[inline(always)]
    unsafe fn right(from: *const u32) -> __m512i {
        // SAFETY: as the trait demands.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn add(sum: __m512, left: __m512i, right: __m512i) -> __m512 {
        // SAFETY: only the name of the 64 bytes changes.
        unsafe {
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512i, __m512bh>(left),
                std::mem::transmute::<__m512i, __m512bh>(right),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u32, first: __m512, second: __m512) {
        // SAFETY: 32 numbers are 16 words.
        unsafe {
            let pairs = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            _mm512_storeu_si512(to.cast(), pairs);
        }
    }
}
