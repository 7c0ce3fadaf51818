//! What a token has to read and to compute, counted from the checkpoint's own shapes.

use std::path::Path;

use anyhow::{Context as _, Result};
use model_formats::gpt_oss::{Attention, GptOssConfig, TensorSpec, tensors};

/// Bytes for every weight of our 8-bit form: 64 of them and a scale. The peer's Q8_0 has 34 bytes for 32.
const EIGHT_BIT_BYTES: f64 = 66.0 / 64.0;
const BF16_BYTES: f64 = 2.0;

pub struct Cost {
    config: GptOssConfig,
    tensors: Vec<TensorSpec>,
}

/// Of a token.
pub struct Operations {
    /// With weights of four bits.
    pub experts: f64,
    /// With bf16 ones, and of attention.
    pub rest: f64,
}

impl Cost {
    /// Of the model whose folder this is.
    pub fn of(folder: &Path) -> Result<Cost> {
        let path = folder.join("config.json");
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let config =
            GptOssConfig::parse(&bytes).with_context(|| format!("{} is no gpt-oss", path.display()))?;
        Ok(Cost { tensors: tensors(&config), config })
    }

    /// Weights that a step of so many sequences reads on average when routing is even: everything but the embedding,
    /// once, and of the experts those that any of the tokens visits.
    pub fn step_bytes(&self, sequences: u32) -> f64 {
        let GptOssConfig { experts, experts_per_token, .. } = self.config;
        let missed = 1.0 - experts_per_token as f64 / experts as f64;
        let visited = 1.0 - missed.powi(sequences.cast_signed());
        self.read().map(|t| t.byte_len() as f64 * if is_expert(t) { visited } else { 1.0 }).sum()
    }

    /// The same for one sequence, with attention and output in 8 bits.
    pub fn eight_bit_bytes(&self) -> f64 {
        let dense = self.read().filter(|t| is_dense(t)).map(|t| t.byte_len() as f64).sum::<f64>();
        self.step_bytes(1) - dense * (1.0 - EIGHT_BIT_BYTES / BF16_BYTES)
    }

    /// Operations, two for each multiply-add, of a prompt's token on average: without the output, which the last one
    /// needs only, and with what attention does for every key that is seen.
    pub fn prefill_operations(&self, prompt: u32) -> Operations {
        let config = &self.config;
        let visited = config.experts_per_token as f64 / config.experts as f64;
        let weights = |wanted: fn(&TensorSpec) -> bool| {
            let tensors = self.read().filter(|t| wanted(t));
            tensors.map(|t| t.shape.iter().product::<u64>() as f64).sum::<f64>()
        };
        // Two codes in a byte; scales and biases are next to nothing.
        let codes = 2.0 * weights(|t| is_expert(t) && t.name.ends_with("_blocks"));
        let dense = weights(|t| is_dense(t) && t.name != "lm_head.weight");
        let keys: f64 = config.layers.iter().map(|layer| seen(*layer, config.sliding_window, prompt)).sum();
        // Scores and values.
        let attention = keys * 4.0 * config.query_width() as f64;
        Operations { experts: 2.0 * codes * visited, rest: 2.0 * dense + attention }
    }

    fn read(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().filter(|t| t.name != "model.embed_tokens.weight")
    }
}

/// Keys that a token of the prompt sees on average.
fn seen(layer: Attention, window: usize, prompt: u32) -> f64 {
    let prompt = f64::from(prompt);
    match layer {
        Attention::Full => (prompt + 1.0) / 2.0,
        Attention::Sliding => {
            let window = (window as f64).min(prompt);
            // The first ones see less than a window.
            window - window * (window - 1.0) / (2.0 * prompt)
        }
    }
}

fn is_expert(tensor: &TensorSpec) -> bool {
    tensor.name.contains(".mlp.experts.")
}

/// The matrices that the 8-bit form changes.
fn is_dense(tensor: &TensorSpec) -> bool {
    tensor.shape.len() == 2 && !is_expert(tensor) && !tensor.name.contains("router")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published() -> Cost {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = serde_json::json!({
            "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
            "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "vocab_size": 201_088, "sliding_window": 128, "rope_theta": 150_000, "eos_token_id": 200_002,
            "quantization_config": {"quant_method": "mxfp4"},
        });
        std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a writable folder");
        Cost::of(folder.path()).expect("the published shape")
    }

    /// Counted by hand: 3,708,083,328 bytes and one embedding row of 5,760 that is not counted here.
    #[test]
    fn a_token_of_20b_reads_what_was_counted_by_hand() {
        let cost = published();
        assert!((cost.step_bytes(1) - 3_708_083_328.0).abs() < 1.0, "{}", cost.step_bytes(1));
        assert!((cost.step_bytes(16) / 1e9 - 11.4).abs() < 0.05, "{}", cost.step_bytes(16));
        assert!((cost.eight_bit_bytes() / 1e9 - 2.53).abs() < 0.01, "{}", cost.eight_bit_bytes());
    }

    #[test]
    fn a_prompt_of_20b_computes_what_was_counted_by_hand() {
        let cost = published();
        let all = |prompt: u32| {
            let Operations { experts, rest } = cost.prefill_operations(prompt);
            experts + rest
        };
        let without_attention = all(1);
        assert!((without_attention / 1e9 - 6.05).abs() < 0.01, "{without_attention}");
        let added = (all(4096) - without_attention) / 1e9;
        // 12 layers of 2048 keys and 12 of 126, 16,384 operations each.
        assert!((added - 0.427).abs() < 0.01, "{added}");
        // 24 layers, 4 experts, three matrices of 2880 x 2880.
        let experts = cost.prefill_operations(512).experts;
        assert!((experts / 1e9 - 4.777).abs() < 0.001, "{experts}");
    }
}
