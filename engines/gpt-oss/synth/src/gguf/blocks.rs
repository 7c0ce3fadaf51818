//! Bytes of safetensors as the bytes GGUF has for the same numbers.

use super::{BLOCK, MXFP4_BLOCK_BYTES, Q8_0_BLOCK_BYTES, Take, numbers};

impl Take {
    fn has(self, row: usize) -> bool {
        match self {
            Take::All => true,
            Take::Even => row.is_multiple_of(2),
            Take::Odd => !row.is_multiple_of(2),
        }
    }
}

/// Codes (rows, row_blocks, 16 bytes) and scales (rows, row_blocks) of one expert. There byte j of a block has elements
/// 2j and 2j + 1, here a scale is followed by bytes of elements j and j + 16; the lower one is in the low bits in both.
pub(super) fn mxfp4(codes: &[u8], scales: &[u8], row_blocks: usize, take: Take) -> Vec<u8> {
    let mut out = Vec::with_capacity(scales.len() * MXFP4_BLOCK_BYTES);
    for (at, (codes, scale)) in codes.as_chunks::<{ BLOCK / 2 }>().0.iter().zip(scales).enumerate() {
        if !take.has(at / row_blocks) {
            continue;
        }
        let code = |element: usize| (codes[element / 2] >> (element % 2 * 4)) & 15;
        out.push(*scale);
        out.extend((0..BLOCK / 2).map(|j| code(j) | code(j + BLOCK / 2) << 4));
    }
    out
}

/// Of BF16 numbers, every one or every second one: of the biases of interleaved rows.
pub(super) fn f32(bytes: &[u8], take: Take) -> Vec<u8> {
    let taken = numbers(bytes).enumerate().filter(|(n, _)| take.has(*n));
    taken.flat_map(|(_, x)| x.to_le_bytes()).collect()
}

/// Of BF16 numbers, a multiple of 32 of them: the largest of 32 becomes 127 or -127.
pub(super) fn q8_0(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() / (2 * BLOCK) * Q8_0_BLOCK_BYTES);
    for block in bytes.as_chunks::<{ 2 * BLOCK }>().0 {
        let most = numbers(block).fold(0.0, |most: f32, x| most.max(x.abs()));
        let scale = half::f16::from_f32(most / 127.0);
        let inverse = if most == 0.0 { 0.0 } else { 127.0 / most };
        out.extend(scale.to_le_bytes());
        out.extend(numbers(block).map(|x| (x * inverse).round() as i8 as u8));
    }
    out
}
