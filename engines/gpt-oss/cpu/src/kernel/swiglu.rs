//! What gate and up make of a row of products in f32.

use model_formats::mxfp4::BLOCK;

use super::Isa;
#[cfg(target_arch = "x86_64")]
use super::avx512;
use crate::math::sigmoid;

/// How gate and up make an activation.
#[derive(Debug, Clone, Copy)]
pub struct Swiglu {
    pub alpha: f32,
    pub limit: f32,
}

impl Swiglu {
    /// `pairs` are gates and ups in turn, of whole blocks of activations; `out` gets these in split order.
    ///
    /// # Panics
    /// When the lengths do not fit each other.
    pub fn activate_split(self, isa: Isa, pairs: &[f32], out: &mut [f32]) {
        assert!(
            out.len().is_multiple_of(BLOCK) && pairs.len() == 2 * out.len(),
            "not the pairs of whole blocks"
        );
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => avx512::activate_split(self, pairs, out),
            _ => self.split_blocks(pairs, out),
        }
    }

    /// Becomes vectors of whatever the caller may use.
    #[inline(always)]
    pub(super) fn split_blocks(self, pairs: &[f32], out: &mut [f32]) {
        let blocks = pairs.as_chunks::<{ 2 * BLOCK }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0);
        for (pairs, out) in blocks {
            for half in 0..2 {
                let (mut gates, mut ups) = ([0.0; BLOCK / 2], [0.0; BLOCK / 2]);
                for i in 0..BLOCK / 2 {
                    gates[i] = pairs[4 * i + 2 * half];
                    ups[i] = pairs[4 * i + 2 * half + 1];
                }
                for i in 0..BLOCK / 2 {
                    out[half * BLOCK / 2 + i] = self.one(gates[i], ups[i]);
                }
            }
        }
    }

    #[inline(always)]
    fn one(self, gate: f32, up: f32) -> f32 {
        let gate = gate.min(self.limit);
        gate * sigmoid(self.alpha * gate) * (up.clamp(-self.limit, self.limit) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_those_of_each_pair_with_every_instruction_set() {
        let swiglu = Swiglu { alpha: 1.702, limit: 7.0 };
        for blocks in [0, 1, 3] {
            let pairs: Vec<f32> =
                (0..2 * BLOCK * blocks).map(|i| ((i * 37) % 101) as f32 / 5.0 - 10.0).collect();
            let expected: Vec<f64> = pairs
                .as_chunks::<2>()
                .0
                .iter()
                .map(|&[gate, up]| {
                    let (gate, up) = (f64::from(gate.min(7.0)), f64::from(up.clamp(-7.0, 7.0)));
                    gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
                })
                .collect();
            let mut all = Vec::new();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let mut out = vec![f32::NAN; BLOCK * blocks];
                swiglu.activate_split(isa, &pairs, &mut out);
                for (i, expected) in expected.iter().enumerate() {
                    // Even ones of a block first.
                    let at = i / BLOCK * BLOCK + i % 2 * BLOCK / 2 + i % BLOCK / 2;
                    let error = (f64::from(out[at]) - expected).abs();
                    assert!(
                        error <= 1e-6 * expected.abs().max(1e-3),
                        "{isa:?}, {i}: {} for {expected}",
                        out[at]
                    );
                }
                all.push(out);
            }
            // Additions and multiplications of one order: to the bit.
            assert!(all.windows(2).all(|w| w[0] == w[1]));
        }
    }
}
