//! MXFP4: blocks of 32 four-bit numbers with a common power of two.
//!
//! A block is 16 bytes and one scale byte. Byte `j` holds element `2j` in its low nibble and `2j + 1` in its high one;
//! scale byte `s` means 2^(s-127).

/// Elements of a block.
pub const BLOCK: usize = 32;
/// Bytes of a block without its scale.
pub const BLOCK_BYTES: usize = 16;

/// Value of each code: sign, two bits of exponent, one of mantissa.
pub const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// 2^(s-127) for every scale byte s; NaN for 255, as the format says. A table, because kernels look one up for every
/// sixteen bytes of weights.
pub static SCALES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut s = 1;
    while s < 255 {
        values[s] = f32::from_bits((s as u32) << 23);
        s += 1;
    }
    // 2^-127 is below the smallest normal number.
    values[0] = f32::from_bits(1 << 22);
    values[255] = f32::NAN;
    values
};

/// The power of two that a scale byte means.
#[inline]
pub fn scale_value(scale: u8) -> f32 {
    SCALES[usize::from(scale)]
}

/// The 32 values of a block. Exact.
pub fn decode_block(bytes: &[u8; BLOCK_BYTES], scale: u8) -> [f32; BLOCK] {
    let factor = scale_value(scale);
    let mut out = [0.0; BLOCK];
    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        pair[0] = VALUES[usize::from(byte & 15)] * factor;
        pair[1] = VALUES[usize::from(byte >> 4)] * factor;
    }
    out
}

/// Decodes a row: `blocks` has 16 bytes for each byte of `scales`, `out` 32 elements.
///
/// # Panics
/// When the three lengths do not belong together: the caller's mistake.
pub fn decode_row(blocks: &[u8], scales: &[u8], out: &mut [f32]) {
    assert_eq!(blocks.len(), scales.len() * BLOCK_BYTES, "blocks and scales of different rows");
    assert_eq!(out.len(), scales.len() * BLOCK, "a row of another length");
    let blocks = blocks.as_chunks::<BLOCK_BYTES>().0;
    for ((out, block), &scale) in out.as_chunks_mut::<BLOCK>().0.iter_mut().zip(blocks).zip(scales) {
        *out = decode_block(block, scale);
    }
}

/// A bf16 number, widened.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests;
