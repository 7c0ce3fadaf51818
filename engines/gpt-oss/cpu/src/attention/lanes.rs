//! What a kernel of attention needs of a processor, and the form of it that every processor has.

use crate::math::exp;

/// A vector of f32 and what can be done with it.
///
/// # Safety
/// Every function may only be called where the processor has what the implementation is made of. Pointers have to be
/// good for [`Lanes::N`] numbers, aligned to nothing; the one of `prefetch` may be anything.
pub(super) trait Lanes {
    type V: Copy;
    /// Numbers of a vector; 32 is a multiple of twice as many.
    const N: usize;
    /// Whether there are 32 registers of this width: then tiles are larger.
    const WIDE: bool;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    /// The lower and the upper halves of words as bf16.
    unsafe fn halves(from: *const u32) -> (Self::V, Self::V);
    /// a * b + c
    unsafe fn multiply_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn multiply(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn subtract(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn larger(a: Self::V, b: Self::V) -> Self::V;
    /// e^x for x of at most 0, to within 4e-7; exactly 0 for negative infinity, exactly 1 for 0; NaN stays.
    unsafe fn exp(x: Self::V) -> Self::V;
    unsafe fn sum(v: Self::V) -> f32;
    unsafe fn largest(v: Self::V) -> f32;
    unsafe fn prefetch(from: *const u32);
}

/// Plain Rust, which the compiler turns into NEON or SSE2.
pub(super) struct Portable;

const N: usize = 8;

/// One operation on all lanes.
macro_rules! each {
    ($i:ident => $value:expr) => {{
        let mut out = [0.0; N];
        for $i in 0..N {
            out[$i] = $value;
        }
        out
    }};
}

impl Lanes for Portable {
    type V = [f32; N];
    const N: usize = N;
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; N] {
        [x; N]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; N] {
        // SAFETY: good for N numbers, as the trait demands.
        unsafe { from.cast::<[f32; N]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: [f32; N]) {
        // SAFETY: as above.
        unsafe { to.cast::<[f32; N]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u32) -> ([f32; N], [f32; N]) {
        // SAFETY: as above.
        let words = unsafe { from.cast::<[u32; N]>().read_unaligned() };
        (each!(i => f32::from_bits(words[i] << 16)), each!(i => f32::from_bits(words[i] & 0xffff_0000)))
    }

    #[inline(always)]
    unsafe fn multiply_add(a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        // Elsewhere a fused one would be a call of the C library.
        if cfg!(target_arch = "aarch64") {
            each!(i => a[i].mul_add(b[i], c[i]))
        } else {
            each!(i => a[i] * b[i] + c[i])
        }
    }

    #[inline(always)]
    unsafe fn multiply(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each!(i => a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn add(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each!(i => a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn subtract(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each!(i => a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn larger(a: [f32; N], b: [f32; N]) -> [f32; N] {
        each!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn exp(x: [f32; N]) -> [f32; N] {
        each!(i => exp(x[i]))
    }

    #[inline(always)]
    unsafe fn sum(v: [f32; N]) -> f32 {
        let mut sum = 0.0;
        for x in v {
            sum += x;
        }
        sum
    }

    #[inline(always)]
    unsafe fn largest(v: [f32; N]) -> f32 {
        let mut largest = v[0];
        for x in v {
            largest = if x > largest { x } else { largest };
        }
        largest
    }

    #[inline(always)]
    unsafe fn prefetch(_from: *const u32) {}
}
