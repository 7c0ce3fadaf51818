//! The shapes there are, and their `config.json`.

use serde_json::{Value, json};

/// Named sizes of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Odd dimensions, 1 MB.
    Nano,
    /// The published attention and expert counts in four narrow layers, 65 MB.
    Small,
    /// gpt-oss-20b, 13.76 GB.
    #[value(name = "20b")]
    B20,
    /// gpt-oss-120b, 65.25 GB.
    #[value(name = "120b")]
    B120,
}

/// The 21 special tokens, in id order; the first follows the last ordinary token.
pub(crate) const SPECIALS: [&str; 21] = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|reserved_200000|>",
    "<|reserved_200001|>",
    "<|return|>",
    "<|constrain|>",
    "<|reserved_200004|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|reserved_200009|>",
    "<|reserved_200010|>",
    "<|reserved_200011|>",
    "<|call|>",
    "<|reserved_200013|>",
    "<|reserved_200014|>",
    "<|reserved_200015|>",
    "<|reserved_200016|>",
    "<|reserved_200017|>",
    "<|endofprompt|>",
];

/// Numbers that differ between shapes.
struct Numbers {
    layers: u32,
    hidden: u32,
    intermediate: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    experts: u32,
    experts_per_token: u32,
    window: u32,
    vocabulary: u32,
    ordinary_tokens: u32,
}

impl Shape {
    fn numbers(self) -> Numbers {
        let published = Numbers {
            layers: 24,
            hidden: 2880,
            intermediate: 2880,
            heads: 64,
            kv_heads: 8,
            head_dim: 64,
            experts: 32,
            experts_per_token: 4,
            window: 128,
            vocabulary: 201_088,
            ordinary_tokens: 199_998,
        };
        match self {
            Shape::B20 => published,
            Shape::B120 => Numbers { layers: 36, experts: 128, ..published },
            Shape::Small => Numbers {
                layers: 4,
                hidden: 384,
                intermediate: 384,
                vocabulary: 4096,
                ordinary_tokens: 4000,
                ..published
            },
            Shape::Nano => Numbers {
                layers: 3,
                hidden: 96,
                intermediate: 160,
                heads: 6,
                kv_heads: 2,
                head_dim: 32,
                experts: 5,
                experts_per_token: 2,
                window: 7,
                vocabulary: 1024,
                ordinary_tokens: 1000,
            },
        }
    }

    /// Tokens that are text; the special ones follow them.
    pub fn ordinary_tokens(self) -> u32 {
        self.numbers().ordinary_tokens
    }

    /// Shards of the published shapes are filled to this many bytes; the small ones are split in two.
    pub(crate) fn shard_bytes_max(self, total: u64) -> u64 {
        match self {
            Shape::B20 | Shape::B120 => 4_800_000_000,
            Shape::Small | Shape::Nano => total * 5 / 7,
        }
    }

    pub(crate) fn special(self, name: &str) -> u32 {
        let place = SPECIALS.iter().position(|s| *s == name).expect("only names of the list are asked for");
        self.ordinary_tokens() + place as u32
    }

    /// `config.json` as published, with this shape's numbers.
    pub fn config(self) -> Value {
        let n = self.numbers();
        let layer_types: Vec<&str> =
            (0..n.layers).map(|i| if i % 2 == 0 { "sliding_attention" } else { "full_attention" }).collect();
        json!({
            "architectures": ["GptOssForCausalLM"],
            "attention_bias": true,
            "attention_dropout": 0.0,
            "eos_token_id": self.special("<|return|>"),
            "experts_per_token": n.experts_per_token,
            "head_dim": n.head_dim,
            "hidden_act": "silu",
            "hidden_size": n.hidden,
            "initial_context_length": 4096,
            "initializer_range": 0.02,
            "intermediate_size": n.intermediate,
            "layer_types": layer_types,
            "max_position_embeddings": 131_072,
            "model_type": "gpt_oss",
            "num_attention_heads": n.heads,
            "num_experts_per_tok": n.experts_per_token,
            "num_hidden_layers": n.layers,
            "num_key_value_heads": n.kv_heads,
            "num_local_experts": n.experts,
            "output_router_logits": false,
            "pad_token_id": self.special("<|endoftext|>"),
            "quantization_config": {
                "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"
                ],
                "quant_method": "mxfp4"
            },
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                "rope_type": "yarn", "truncate": false
            },
            "rope_theta": 150_000,
            "router_aux_loss_coef": 0.9,
            "sliding_window": n.window,
            "swiglu_limit": 7.0,
            "tie_word_embeddings": false,
            "transformers_version": "4.55.0.dev0",
            "use_cache": true,
            "vocab_size": n.vocabulary
        })
    }

    pub(crate) fn generation_config(self) -> Value {
        let ends = ["<|return|>", "<|endoftext|>", "<|call|>"].map(|name| self.special(name));
        json!({
            "bos_token_id": self.special("<|startoftext|>"),
            "do_sample": true,
            "eos_token_id": ends,
            "pad_token_id": self.special("<|endoftext|>"),
            "transformers_version": "4.55.0.dev0"
        })
    }
}
