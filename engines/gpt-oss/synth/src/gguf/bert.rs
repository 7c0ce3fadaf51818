//! A small encoder of random weights: what embeddings are tested with.

use std::path::Path;

use model_formats::gguf::HeadWriter;

use super::dense::{Made, MadeTensor, Pooling, noise, write};
use super::vocabulary::{CONTROL, NORMAL};
use crate::write::SynthError;

/// Of every such file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BertShape;

impl BertShape {
    pub const LAYERS: usize = 2;
    pub const HIDDEN: usize = 48;
    pub const INTERMEDIATE: usize = 96;
    pub const HEADS: usize = 4;
    pub const CONTEXT: usize = 512;
    pub const EPSILON: f32 = 1e-6;
    /// Ids of what goes before and behind a text.
    pub const BEGIN: u32 = 2;
    pub const SEPARATOR: u32 = 3;
}

const SPECIALS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Pieces at the begin of a word, then those within one.
fn vocabulary() -> Vec<String> {
    let letters = || ('a'..='z').map(String::from).chain(["the", "ing", "er", "on"].map(str::to_owned));
    let mut all: Vec<String> = SPECIALS.map(str::to_owned).into();
    all.extend(letters().map(|piece| format!("\u{2581}{piece}")));
    all.extend(letters());
    all.extend([".", ",", "!"].map(|mark| format!("\u{2581}{mark}")));
    all
}

/// Writes one file, and answers its tensors.
///
/// # Errors
/// A file that cannot be written.
pub fn write_bert_gguf(pooling: Pooling, seed: u64, path: &Path) -> Result<Vec<MadeTensor>, SynthError> {
    let tokens = vocabulary();
    let kinds: Vec<i32> =
        (0..tokens.len()).map(|id| if id < SPECIALS.len() { CONTROL } else { NORMAL }).collect();
    let mut head = HeadWriter::default().text("general.architecture", "bert");
    for (key, value) in [
        ("block_count", BertShape::LAYERS),
        ("context_length", BertShape::CONTEXT),
        ("embedding_length", BertShape::HIDDEN),
        ("feed_forward_length", BertShape::INTERMEDIATE),
        ("attention.head_count", BertShape::HEADS),
        ("pooling_type", pooling as usize),
    ] {
        head = head.number(&format!("bert.{key}"), value as u32);
    }
    head = head
        .real("bert.attention.layer_norm_epsilon", BertShape::EPSILON)
        .flag("bert.attention.causal", false)
        .text("tokenizer.ggml.model", "bert")
        .texts("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .number("tokenizer.ggml.token_type_count", 2)
        .number("tokenizer.ggml.padding_token_id", 0)
        .number("tokenizer.ggml.unknown_token_id", 1)
        .number("tokenizer.ggml.bos_token_id", BertShape::BEGIN)
        .number("tokenizer.ggml.cls_token_id", BertShape::BEGIN)
        .number("tokenizer.ggml.seperator_token_id", BertShape::SEPARATOR)
        .number("tokenizer.ggml.mask_token_id", 4);
    let tensors = tensors(tokens.len(), seed);
    let made = |(dimensions, tensor): &(Vec<u64>, MadeTensor)| Made {
        name: tensor.name.clone(),
        dimensions: dimensions.clone(),
        bytes: tensor.numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
    };
    write(path, &head, &tensors.iter().map(made).collect::<Vec<_>>())?;
    Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
}

/// Dimensions, innermost first, and numbers.
fn tensors(vocabulary: usize, seed: u64) -> Vec<(Vec<u64>, MadeTensor)> {
    let (hidden, inner) = (BertShape::HIDDEN, BertShape::INTERMEDIATE);
    let mut noise = noise(seed);
    let mut all = Vec::new();
    let mut put = |name: String, dimensions: &[usize], around: f32, scale: f32| {
        let count = dimensions.iter().product();
        let numbers = (0..count).map(|_| around + noise() * scale).collect();
        all.push((dimensions.iter().map(|d| *d as u64).collect(), MadeTensor { name, numbers }));
    };
    for (name, rows) in
        [("token_embd", vocabulary), ("position_embd", BertShape::CONTEXT), ("token_types", 2)]
    {
        put(format!("{name}.weight"), &[hidden, rows], 0.0, 1.0);
    }
    norm(&mut put, "token_embd_norm");
    for layer in 0..BertShape::LAYERS {
        let square = ["attn_q", "attn_k", "attn_v", "attn_output"].map(|part| (part, hidden, hidden));
        let wide = [("ffn_up", hidden, inner), ("ffn_down", inner, hidden)];
        for (part, inputs, outputs) in square.into_iter().chain(wide) {
            let gain = 2.0 / (inputs as f32).sqrt();
            put(format!("blk.{layer}.{part}.weight"), &[inputs, outputs], 0.0, gain);
            put(format!("blk.{layer}.{part}.bias"), &[outputs], 0.0, 0.1);
        }
        for part in ["attn_output_norm", "layer_output_norm"] {
            norm(&mut put, &format!("blk.{layer}.{part}"));
        }
    }
    all
}

fn norm(put: &mut impl FnMut(String, &[usize], f32, f32), name: &str) {
    put(format!("{name}.weight"), &[BertShape::HIDDEN], 1.0, 0.2);
    put(format!("{name}.bias"), &[BertShape::HIDDEN], 0.0, 0.2);
}
