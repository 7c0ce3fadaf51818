//! What running a model takes, in bytes, told from its config.

use gpt_oss_model::{Attention, GptOssConfig};

use crate::kernel::bf16::GROUP;
use crate::kernel::{quantized, split_len};
use crate::kv::{BLOCK_TOKENS, KvFormat, KvShape};

const FLOAT: u64 = size_of::<f32>() as u64;
/// What a thread keeps from task to task: weights as bf16, products and the same turned.
const THREAD_BYTES: u64 = 1 << 20;

/// Bytes of private memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Activations of a batch, and logits.
    pub workspace: u64,
    /// Keys and values for all sequences together: of sliding layers while a batch is read, and what is shared.
    pub kv_shared: u64,
    /// Keys and values of every token of a sequence: full layers.
    pub kv_per_token: u64,
    /// Keys and values of a sequence whatever its length: the blocks of its windows, and the part of the last block of
    /// full layers that is not filled.
    pub kv_fixed: u64,
}

impl Needs {
    /// For batches of at most `batch_tokens` of at most `sequences` sequences.
    pub fn of(config: &GptOssConfig, kv_format: KvFormat, batch_tokens: u32, sequences: u32) -> Needs {
        let batch = u64::from(batch_tokens);
        let width = |n: usize| split_len(n) as u64;
        let (hidden, query, kv) =
            (width(config.hidden), width(config.query_width()), width(config.kv_width()));
        // Residual, norm and its split form; queries, keys, values; what the heads made and its split form.
        let attention = 3 * hidden + 3 * query + 2 * kv;
        // Activations of every visit; when they are rounded they take half, and so does what each expert's visitors
        // bring, in groups that are filled up.
        let intermediate = width(config.intermediate);
        let visits = config.experts_per_token as u64;
        // Quantized, they are beside those that they are made from.
        let eight_bits = |n: usize| quantized::words(n) as u64;
        let act = (intermediate + eight_bits(config.intermediate)).max((hidden + intermediate) / 2);
        let experts = 3 * hidden + eight_bits(config.hidden) + visits * act;
        let filling = config.experts as u64 * (GROUP as u64 - 1) * (hidden + intermediate) / 2;
        let logits = u64::from(sequences) * config.vocabulary as u64;
        let floats = batch * (attention.max(experts) + config.experts as u64) + filling + logits;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workspace = floats * FLOAT + threads as u64 * THREAD_BYTES;

        let layers = |kind| config.layers.iter().filter(|l| **l == kind).count() as u64;
        let (sliding, full) = (layers(Attention::Sliding), layers(Attention::Full));
        let layer_token = KvShape::of(config, kv_format).layer_token_bytes();
        let block = BLOCK_TOKENS as u64 * layer_token;
        // A window begins anywhere in a block, and so does the place for the next token.
        let window_blocks = (config.sliding_window as u64 - 1).div_ceil(BLOCK_TOKENS as u64) + 2;
        Needs {
            workspace,
            kv_shared: sliding * batch.div_ceil(BLOCK_TOKENS as u64) * block,
            kv_per_token: full * layer_token,
            kv_fixed: sliding * window_blocks * block + full * block,
        }
    }

    /// With room for `tokens` of all sequences together instead of for the longest of each.
    #[must_use]
    pub fn sharing(self, tokens: u32) -> Needs {
        let kv_shared = self.kv_shared + u64::from(tokens) * self.kv_per_token;
        Needs { kv_shared, kv_per_token: 0, ..self }
    }

    /// All keys and values of `sequences` sequences of `context` tokens.
    pub fn kv(&self, sequences: u32, context: u32) -> u64 {
        self.kv_shared + u64::from(sequences) * (self.kv_fixed + u64::from(context) * self.kv_per_token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_shape_stays_below_a_gibibyte() {
        let json = r#"{"num_hidden_layers":24,"hidden_size":2880,"intermediate_size":2880,"num_local_experts":32,
            "num_experts_per_tok":4,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,
            "vocab_size":201088,"quantization_config":{"quant_method":"mxfp4"}}"#;
        let config = GptOssConfig::parse(json.as_bytes()).unwrap();
        let needs = Needs::of(&config, KvFormat::F32, 512, 8);
        assert_eq!(needs.kv_per_token, 12 * 4096);
        assert_eq!(Needs::of(&config, KvFormat::Bf16, 512, 8).kv_per_token, 12 * 2048);
        assert!(needs.workspace < 256 << 20, "{}", needs.workspace);
        assert!(needs.kv_fixed < 64 << 20, "{}", needs.kv_fixed);
    }
}
