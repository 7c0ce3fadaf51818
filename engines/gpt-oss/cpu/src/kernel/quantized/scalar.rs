//! The same in plain Rust: what the others are compared with.

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, bf16_to_f32, scale_value};

use super::{DOUBLED, NUMBERS, OFFSET, Tiles, Vector};
use crate::int8::{SCALE_COLUMNS, numbers_bytes};
use crate::kernel::Rows;

pub(super) struct Kernel;

const HALF: usize = BLOCK / 2;

impl Tiles for Kernel {
    const WIDE: bool = false;
    const THREE: bool = false;

    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R] {
        let mut out = [[0.0; T]; R];
        for (r, out) in out.iter_mut().enumerate() {
            let columns = rows.columns();
            match rows.slice(r..r + 1) {
                Rows::Bf16 { .. } => panic!("rows of bf16 meet activations that are not quantized"),
                Rows::Mxfp4 { blocks, scales, .. } => {
                    let blocks = blocks.as_chunks::<BLOCK_BYTES>().0;
                    for (b, (bytes, scale)) in blocks.iter().zip(scales).enumerate() {
                        let doubled = |code: u8| (DOUBLED[usize::from(code)] as i8) - OFFSET;
                        let mut weights = [0; BLOCK];
                        for (i, byte) in bytes.iter().enumerate() {
                            (weights[i], weights[HALF + i]) = (doubled(byte & 15), doubled(byte >> 4));
                        }
                        add_block(&weights, 0.5 * scale_value(*scale), b, vectors, out);
                    }
                }
                Rows::Int8 { numbers, scales, .. } => {
                    assert_eq!(numbers.len(), numbers_bytes(columns));
                    for (b, numbers) in numbers.as_chunks::<BLOCK>().0.iter().enumerate() {
                        let scale = scales.as_chunks::<2>().0[b * BLOCK / SCALE_COLUMNS];
                        let scale = bf16_to_f32(u16::from_le_bytes(scale));
                        add_block(&numbers.map(|n| n as i8), scale, b, vectors, out);
                    }
                }
            }
        }
        out
    }
}

fn add_block<const T: usize>(
    weights: &[i8; BLOCK],
    scale: f32,
    block: usize,
    vectors: [Vector<'_>; T],
    out: &mut [f32; T],
) {
    for (out, vector) in out.iter_mut().zip(vectors) {
        let mut dot = 0;
        let words = &vector.numbers[block * NUMBERS..][..NUMBERS];
        for (weights, word) in weights.as_chunks::<4>().0.iter().zip(words) {
            for (weight, number) in weights.iter().zip(word.to_le_bytes()) {
                dot += i32::from(*weight) * i32::from(number as i8);
            }
        }
        *out += dot as f32 * f32::from_bits(vector.scales[block]) * scale;
    }
}
