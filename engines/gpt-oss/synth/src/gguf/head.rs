//! Everything of a GGUF file before the tensors: version 3, the model's numbers, its vocabulary, where each tensor is.

use model_formats::gpt_oss::GptOssConfig;

use super::vocabulary::Vocabulary;
use super::{ALIGNMENT, Dense, Planned};

const VERSION: u32 = 3;
/// Kinds of files, of which llama.cpp only shows the name.
const MOSTLY_BF16: u32 = 32;
const MOSTLY_MXFP4: u32 = 38;
/// `config.json` of every shape says so; YaRN's other numbers are llama.cpp's defaults.
const YARN_ORIGINAL_CONTEXT: u32 = 4096;
pub(super) struct Head {
    pub(super) bytes: Vec<u8>,
}

/// Keys and values as they are in the file.
#[derive(Default)]
struct Pairs {
    bytes: Vec<u8>,
    count: u64,
}

impl Head {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        config: &GptOssConfig,
        dense: Dense,
        tensors: &[Planned],
    ) -> Head {
        let mut pairs = Pairs::default();
        of_the_model(&mut pairs, config, dense);
        of_the_tokenizer(&mut pairs, vocabulary);
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((tensors.len() as u64).to_le_bytes());
        bytes.extend(pairs.count.to_le_bytes());
        bytes.extend(pairs.bytes);
        let mut offset = 0u64;
        for tensor in tensors {
            text(&mut bytes, &tensor.name);
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().rev().for_each(|d| bytes.extend(d.to_le_bytes()));
            bytes.extend(tensor.kind.number().to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset += tensor.bytes().next_multiple_of(ALIGNMENT);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
        Head { bytes }
    }
}

fn of_the_model(pairs: &mut Pairs, config: &GptOssConfig, dense: Dense) {
    let kind = if dense == Dense::Bf16 { MOSTLY_BF16 } else { MOSTLY_MXFP4 };
    pairs.text("general.architecture", "gpt-oss");
    pairs.number("general.file_type", kind);
    pairs.number("general.quantization_version", 2);
    for (key, value) in [
        ("block_count", config.layers.len()),
        ("context_length", config.context_length_max as usize),
        ("embedding_length", config.hidden),
        ("feed_forward_length", config.intermediate),
        ("expert_feed_forward_length", config.intermediate),
        ("expert_count", config.experts),
        ("expert_used_count", config.experts_per_token),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("attention.sliding_window", config.sliding_window),
        ("rope.scaling.original_context_length", YARN_ORIGINAL_CONTEXT as usize),
        ("vocab_size", config.vocabulary),
    ] {
        pairs.number(&format!("gpt-oss.{key}"), value as u32);
    }
    let yarn = config.rope.yarn.as_ref().expect("every shape has it");
    pairs.real("gpt-oss.attention.layer_norm_rms_epsilon", config.rms_epsilon);
    pairs.real("gpt-oss.rope.freq_base", config.rope.theta as f32);
    pairs.real("gpt-oss.rope.scaling.factor", yarn.factor as f32);
    pairs.text("gpt-oss.rope.scaling.type", "yarn");
}

fn of_the_tokenizer(pairs: &mut Pairs, vocabulary: &Vocabulary) {
    let Vocabulary { tokens, kinds, merges, split, begin, end, padding, template } = vocabulary;
    pairs.text("tokenizer.ggml.model", "gpt2");
    pairs.text("tokenizer.ggml.pre", split);
    pairs.list("tokenizer.ggml.tokens", 8, tokens.iter(), |out, token| text(out, token));
    pairs.list("tokenizer.ggml.token_type", 5, kinds.iter(), |out, kind| out.extend(kind.to_le_bytes()));
    pairs.list("tokenizer.ggml.merges", 8, merges.iter(), |out, [a, b]| text(out, &format!("{a} {b}")));
    pairs.number("tokenizer.ggml.bos_token_id", *begin);
    pairs.number("tokenizer.ggml.eos_token_id", *end);
    pairs.number("tokenizer.ggml.padding_token_id", *padding);
    pairs.text("tokenizer.chat_template", template);
}

impl Pairs {
    fn key(&mut self, key: &str, kind: u32) {
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        self.count += 1;
    }

    fn number(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn real(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        text(&mut self.bytes, value);
    }

    /// `kind`: number of the elements' type.
    fn list<T>(
        &mut self,
        key: &str,
        kind: u32,
        elements: impl ExactSizeIterator<Item = T>,
        each: impl Fn(&mut Vec<u8>, T),
    ) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((elements.len() as u64).to_le_bytes());
        elements.for_each(|element| each(&mut self.bytes, element));
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
