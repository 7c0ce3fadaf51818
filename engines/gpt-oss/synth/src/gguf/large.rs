//! Files as large as published models whose weights are all zero: what takes memory is measured with them. They are sparse, and take
//! no room on disks that know holes.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use model_formats::gguf::{ALIGNMENT, HeadWriter, WrittenTensor};

use super::Family;
use super::vocabulary::{CONTROL, NORMAL};
use crate::write::SynthError;

/// How the matrices are stored; vectors are F32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LargeKind {
    F16,
    Q8_0,
    /// Which llama.cpp copies into a layout of its own.
    Q4_0,
}

impl LargeKind {
    /// Number of the type in the file.
    fn number(self) -> u32 {
        match self {
            LargeKind::F16 => 1,
            LargeKind::Q4_0 => 2,
            LargeKind::Q8_0 => 8,
        }
    }

    /// Of as many numbers, a multiple of 32.
    fn bytes(self, numbers: u64) -> u64 {
        match self {
            LargeKind::F16 => numbers * 2,
            LargeKind::Q4_0 => numbers / 32 * 18,
            LargeKind::Q8_0 => numbers / 32 * 34,
        }
    }
}

/// The numbers of a published model, or of one with fewer layers.
#[derive(Debug, Clone, Copy)]
pub struct LargeShape {
    pub family: Family,
    pub kind: LargeKind,
    pub layers: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_size: u32,
    pub vocabulary: u32,
    pub context: u32,
}

/// # Errors
/// A file that cannot be written.
///
/// # Panics
/// When the vocabulary has fewer tokens than there are bytes.
pub fn write_large_gguf(shape: &LargeShape, path: &Path) -> Result<(), SynthError> {
    let tensors = tensors(shape);
    let listed: Vec<WrittenTensor<'_>> = tensors
        .iter()
        .map(|(name, dimensions, kind, bytes)| WrittenTensor { name, dimensions, kind: *kind, bytes: *bytes })
        .collect();
    let head = head(shape).finish(&listed);
    let zeros: u64 = tensors.iter().map(|(.., bytes)| bytes.next_multiple_of(ALIGNMENT)).sum();
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(&head)?;
        file.set_len(head.len() as u64 + zeros)
    };
    write().map_err(|source| SynthError::Write { path: path.to_owned(), source })
}

fn head(shape: &LargeShape) -> HeadWriter {
    let count = shape.vocabulary as usize;
    let (mut tokens, merges) = crate::tokenizer::vocabulary(count - 1);
    let mut kinds = vec![NORMAL; tokens.len()];
    tokens.push("<|end|>".to_owned());
    kinds.push(CONTROL);
    assert_eq!(tokens.len(), count, "the vocabulary is made of bytes and merges");
    let merges: Vec<String> = merges.iter().map(|[a, b]| format!("{a} {b}")).collect();
    let of = shape.family.architecture();
    let mut head = HeadWriter::default().text("general.architecture", of);
    for (key, value) in [
        ("block_count", shape.layers),
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.intermediate),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("rope.dimension_count", shape.head_size),
        ("attention.key_length", shape.head_size),
        ("attention.value_length", shape.head_size),
        ("vocab_size", shape.vocabulary),
    ] {
        head = head.number(&format!("{of}.{key}"), value);
    }
    head.real(&format!("{of}.attention.layer_norm_rms_epsilon"), 1e-5)
        .real(&format!("{of}.rope.freq_base"), 10_000.0)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", if shape.family == Family::Llama { "llama-bpe" } else { "qwen2" })
        .texts("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &merges)
        .number("tokenizer.ggml.eos_token_id", shape.vocabulary - 1)
}

/// Name, dimensions (innermost first), number of the type, bytes.
fn tensors(shape: &LargeShape) -> Vec<(String, Vec<u64>, u32, u64)> {
    const F32: u32 = 0;
    let [hidden, intermediate, vocabulary, size] =
        [shape.hidden, shape.intermediate, shape.vocabulary, shape.head_size].map(u64::from);
    let (queries, keys) = (u64::from(shape.heads) * size, u64::from(shape.kv_heads) * size);
    let mut all = Vec::new();
    let matrix = |name: String, inputs: u64, outputs: u64| {
        (name, vec![inputs, outputs], shape.kind.number(), shape.kind.bytes(inputs * outputs))
    };
    let vector = |name: String, length: u64| (name, vec![length], F32, length * 4);
    all.push(matrix("token_embd.weight".to_owned(), hidden, vocabulary));
    for layer in 0..shape.layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        all.push(vector(name("attn_norm.weight"), hidden));
        for (part, outputs) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
            all.push(matrix(name(&format!("{part}.weight")), hidden, outputs));
            if shape.family == Family::Qwen2 {
                all.push(vector(name(&format!("{part}.bias")), outputs));
            }
        }
        if shape.family == Family::Qwen3 {
            all.push(vector(name("attn_q_norm.weight"), size));
            all.push(vector(name("attn_k_norm.weight"), size));
        }
        all.push(matrix(name("attn_output.weight"), queries, hidden));
        all.push(vector(name("ffn_norm.weight"), hidden));
        all.push(matrix(name("ffn_gate.weight"), hidden, intermediate));
        all.push(matrix(name("ffn_up.weight"), hidden, intermediate));
        all.push(matrix(name("ffn_down.weight"), intermediate, hidden));
    }
    all.push(vector("output_norm.weight".to_owned(), hidden));
    all.push(matrix("output.weight".to_owned(), hidden, vocabulary));
    all
}
