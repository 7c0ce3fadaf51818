//! Random bits of sensible size, as a function of seed, tensor name and place.

use model_formats::gpt_oss::{GptOssConfig, TensorSpec};

/// Fills a tensor's bytes piece by piece.
#[derive(Debug)]
pub(crate) struct Filler {
    state: u64,
    law: Law,
}

/// How the bits of a tensor are made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Law {
    /// bf16 with random sign and mantissa in one of the four binades from 2^top downwards.
    Noise { top: i32 },
    /// bf16 around 1: norm weights and sinks.
    AroundOne { spread: f32 },
    /// Random codes.
    Codes,
    /// Scale bytes near this one.
    Scales { base: u8 },
}

impl Filler {
    pub(crate) fn new(config: &GptOssConfig, seed: u64, tensor: &TensorSpec) -> Filler {
        // FNV-1a of the name, mixed with the seed: tensors of one checkpoint share no bits.
        let hash = tensor
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        let mut filler =
            Filler { state: hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), law: law(config, &tensor.name) };
        filler.next();
        filler
    }

    /// The next bytes. Pieces have an even length, except the last.
    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        let (chunks, tail) = out.as_chunks_mut::<8>();
        for chunk in chunks {
            *chunk = self.eight();
        }
        let last = self.eight();
        tail.copy_from_slice(&last[..tail.len()]);
    }

    fn eight(&mut self) -> [u8; 8] {
        let bits = self.next();
        match self.law {
            Law::Codes => bits.to_le_bytes(),
            Law::Scales { base } => bits.to_le_bytes().map(|b| base + (b & 1) - (b >> 7)),
            Law::Noise { top } => halves(bits, |half| {
                let exponent = (127 + top - i32::from((half >> 7) & 3)) as u16;
                (half & 0x807f) | (exponent << 7)
            }),
            Law::AroundOne { spread } => halves(bits, |half| {
                let value = 1.0 + spread * (f32::from(half) / 32_768.0 - 1.0);
                (value.to_bits() >> 16) as u16
            }),
        }
    }

    /// SplitMix64: fast enough that the disk is what a large checkpoint waits for.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn halves(bits: u64, each: impl Fn(u16) -> u16) -> [u8; 8] {
    let mut out = [0; 8];
    for (i, pair) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        *pair = each((bits >> (16 * i)) as u16).to_le_bytes();
    }
    out
}

/// Root mean square of (1 + m) 2^-j with m even in 0..1 and j even in 0..=3.
const NOISE_RMS: f64 = 0.880_3;
/// Root mean square of a code chosen evenly.
const CODE_RMS: f64 = 2.926;

/// Sizes that keep the activations of a forward pass near one, and attention and routing undecided.
fn law(config: &GptOssConfig, name: &str) -> Law {
    let by = |inputs: usize, gain: f64| gain / (inputs as f64).sqrt();
    let (hidden, inter) = (config.hidden, config.intermediate);
    let noise = |std: f64| Law::Noise { top: (std / NOISE_RMS).log2().round() as i32 };
    let leaf =
        name.rsplit_once("layers.").map_or(name, |(_, rest)| rest.split_once('.').map_or(rest, |r| r.1));
    match leaf {
        "mlp.experts.gate_up_proj_blocks" | "mlp.experts.down_proj_blocks" => Law::Codes,
        "mlp.experts.gate_up_proj_scales" => Law::Scales { base: scale_base(by(hidden, 2.5)) },
        "mlp.experts.down_proj_scales" => Law::Scales { base: scale_base(by(inter, 0.15)) },
        "input_layernorm.weight" | "post_attention_layernorm.weight" | "model.norm.weight" => {
            Law::AroundOne { spread: 0.25 }
        }
        "self_attn.sinks" => Law::AroundOne { spread: 1.0 },
        "self_attn.q_proj.weight" | "self_attn.k_proj.weight" => noise(by(hidden, 1.4)),
        "self_attn.v_proj.weight" => noise(by(hidden, 1.0)),
        "self_attn.o_proj.weight" => noise(by(config.query_width(), 1.1)),
        "self_attn.o_proj.bias" | "mlp.experts.down_proj_bias" => noise(0.1),
        "mlp.router.weight" | "lm_head.weight" => noise(by(hidden, 3.0)),
        "model.embed_tokens.weight" => noise(1.0),
        _ => noise(0.5),
    }
}

fn scale_base(std: f64) -> u8 {
    (127.0 + (std / CODE_RMS).log2().round()) as u8
}

#[cfg(test)]
mod tests {
    use model_formats::gpt_oss::tensors;
    use model_formats::mxfp4::bf16_to_f32;

    use super::*;
    use crate::Shape;

    fn bytes(seed: u64, name: &str, pieces: &[usize]) -> Vec<u8> {
        let config = GptOssConfig::parse(Shape::Nano.config().to_string().as_bytes()).unwrap();
        let tensor = tensors(&config).into_iter().find(|t| t.name == name).unwrap();
        let mut filler = Filler::new(&config, seed, &tensor);
        let mut out = Vec::new();
        for &piece in pieces {
            let start = out.len();
            out.resize(start + piece, 0);
            filler.fill(&mut out[start..]);
        }
        out
    }

    #[test]
    fn seeds_and_names_give_different_bits_and_the_same_ones_again() {
        let name = "lm_head.weight";
        assert_eq!(bytes(1, name, &[64]), bytes(1, name, &[64]));
        assert_ne!(bytes(1, name, &[64]), bytes(2, name, &[64]));
        assert_ne!(bytes(1, name, &[64]), bytes(1, "model.embed_tokens.weight", &[64]));
    }

    #[test]
    fn numbers_have_the_size_that_was_asked_for() {
        let numbers: Vec<f32> = bytes(1, "model.embed_tokens.weight", &[20_000])
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| bf16_to_f32(u16::from_le_bytes(*b)))
            .collect();
        let rms = (numbers.iter().map(|x| x * x).sum::<f32>() / numbers.len() as f32).sqrt();
        let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
        assert!((0.6..1.4).contains(&rms) && mean.abs() < 0.05, "rms {rms}, mean {mean}");
    }

    #[test]
    fn scales_stay_away_from_zero_and_nan() {
        for name in ["gate_up_proj_scales", "down_proj_scales"] {
            let scales = bytes(1, &format!("model.layers.0.mlp.experts.{name}"), &[1000]);
            assert!(scales.iter().all(|s| (100..130).contains(s)), "{name}");
        }
    }
}
