//! Element-wise arithmetic in plain Rust that the compiler turns into vectors.

/// Lanes of a sum kept apart, so that it can be computed in vectors.
const LANES: usize = 16;

/// ln 2 in two parts, of which the first has few bits: n * LN2_HIGH is exact.
pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding and taking away 1.5 * 2^23 rounds to a whole number.
pub(crate) const ROUND: f32 = 12_582_912.0;
/// Taylor's polynomial of e^x, highest power first. |x| is at most 0.347, so what is left out is below 3e-8 of the sum.
pub(crate) const EXP_TERMS: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// e^x to within 4e-7 of the exact value, relatively; 0 below -87, infinity above 88.7. Without branches, so that loops
/// over it become vectors; a call of the C library for each of the 64 heads' scores would cost as much as the scores.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    let clamped = x.clamp(-87.3, 88.8);
    let n = (clamped * LOG2_E + ROUND) - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = EXP_TERMS[0];
    for c in &EXP_TERMS[1..] {
        p = p * r + c;
    }
    // Two factors, because 2^128 alone is not a float.
    let half = (n * 0.5 + ROUND) - ROUND;
    let two_to = |n: f32| f32::from_bits(((n as i32 + 127) as u32) << 23);
    let y = p * two_to(half) * two_to(n - half);
    let y = if x < -87.3 { 0.0 } else { y };
    if x.is_nan() { x } else { y }
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_blocks, a_tail) = a.as_chunks::<LANES>();
    let (b_blocks, b_tail) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum::<f32>()
}

/// The nearest bf16 number, the even one of two that are as near.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        // Still no number when its lower half is cut off.
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// x / sqrt(mean(x²) + epsilon) * weight
pub(crate) fn rms_norm(x: &[f32], weight: impl Iterator<Item = f32>, epsilon: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

#[cfg(test)]
mod tests;
