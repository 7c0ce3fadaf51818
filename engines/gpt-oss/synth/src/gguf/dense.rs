//! Small models of other families, of random weights: what an engine for GGUF is tested with.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use model_formats::gguf::{ALIGNMENT, HeadWriter, WrittenTensor};

use super::vocabulary::{CONTROL, NORMAL, USER_DEFINED};
use crate::write::SynthError;

/// Number of the type in the file. With it an engine rounds little, and what is equal has to be.
const F32: u32 = 0;
const LAYERS: u32 = DenseShape::LAYERS as u32;
const HIDDEN: u64 = DenseShape::HIDDEN as u64;
const INTERMEDIATE: u64 = 224;
const HEADS: u64 = DenseShape::HEADS as u64;
const KV_HEADS: u64 = DenseShape::KV_HEADS as u64;
const HEAD_DIM: u64 = DenseShape::HEAD_DIM as u64;
const ORDINARY: usize = 600;
/// Behind the ordinary ones: two control tokens, and an added one that is none.
const BEGIN: &str = "<|begin|>";
const END: &str = "<|end_of_turn|>";
const ADDED: &str = "<tool>";
const ADDITIONS: [&str; 3] = [BEGIN, END, ADDED];
const CONTEXT: u32 = 2048;
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}<|end_of_turn|>{% endfor %}\
     {% if add_generation_prompt %}assistant: {% endif %}";

/// Of every such file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseShape;

impl DenseShape {
    pub const LAYERS: usize = 3;
    pub const HIDDEN: usize = 96;
    pub const HEADS: usize = 6;
    pub const KV_HEADS: usize = 2;
    pub const HEAD_DIM: usize = DenseShape::HIDDEN / DenseShape::HEADS;
    pub const EPSILON: f32 = 1e-5;
    pub const ROPE_BASE: f32 = 10_000.0;
}

/// A tensor of a file, for whoever computes with it otherwise.
#[derive(Debug, Clone)]
pub struct MadeTensor {
    pub name: String,
    /// Rows of as many numbers as the tensor's first dimension has.
    pub numbers: Vec<f32>,
}

/// Families that differ in what a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Rotations in pairs of neighbours, no biases.
    Llama,
    /// Biases of queries, keys and values.
    Qwen2,
    /// Norms of queries and keys.
    Qwen3,
}

impl Family {
    pub const ALL: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Qwen3];

    /// As a file calls it.
    pub fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }
}

/// What becomes of the rows of the last layer in a model that is for embeddings, by its number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    Mean = 1,
    First = 2,
    Last = 3,
}

/// A tensor of f32 numbers.
pub(super) struct Made {
    pub(super) name: String,
    /// Innermost first.
    pub(super) dimensions: Vec<u64>,
    pub(super) bytes: Vec<u8>,
}

/// Writes one file of this family: three narrow layers, 603 tokens.
///
/// # Errors
/// A file that cannot be written.
pub fn write_dense_gguf(family: Family, seed: u64, path: &Path) -> Result<(), SynthError> {
    write(path, &head(family), &tensors(family, seed))
}

/// The same made for embeddings: an end token is put behind a text, and the rows are pooled. Answers its tensors.
///
/// # Errors
/// A file that cannot be written.
pub fn write_pooled_gguf(
    family: Family,
    pooling: Pooling,
    seed: u64,
    path: &Path,
) -> Result<Vec<MadeTensor>, SynthError> {
    let head = head(family)
        .number(&format!("{}.pooling_type", family.architecture()), pooling as u32)
        .flag("tokenizer.ggml.add_eos_token", true);
    let made = tensors(family, seed);
    write(path, &head, &made)?;
    let numbers =
        |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
    Ok(made.into_iter().map(|made| MadeTensor { numbers: numbers(&made.bytes), name: made.name }).collect())
}

/// A file of the first family whose vocabulary is of this kind, is cut in this way, and says or does not say that a text begins with
/// its beginning token.
///
/// # Errors
/// A file that cannot be written.
pub fn write_vocabulary_gguf(
    (vocabulary, split): (&str, &str),
    begins: Option<bool>,
    seed: u64,
    path: &Path,
) -> Result<(), SynthError> {
    let head = head_with(Family::Llama, (vocabulary, split));
    let head = begins.into_iter().fold(head, |head, said| head.flag("tokenizer.ggml.add_bos_token", said));
    write(path, &head, &tensors(Family::Llama, seed))
}

/// The same model in parts, as llama.cpp splits one: the first has the metadata, each some of the tensors.
///
/// # Errors
/// A file that cannot be written.
///
/// # Panics
/// Without a path, and with more than there are tensors.
pub fn write_split_gguf(family: Family, seed: u64, paths: &[PathBuf]) -> Result<(), SynthError> {
    let made = tensors(family, seed);
    let each = made.len().div_ceil(paths.len());
    let all = i32::try_from(made.len()).expect("a model of the tests");
    let (parts, count) = (made.chunks(each), u16::try_from(paths.len()).expect("a handful"));
    assert_eq!(parts.len(), paths.len(), "a part without tensors");
    for ((number, path), part) in (0u16..).zip(paths).zip(parts) {
        let metadata = if number == 0 { head(family) } else { HeadWriter::default() };
        let head = metadata
            .short("split.no", number)
            .short("split.count", count)
            .integer("split.tensors.count", all);
        write(path, &head, part)?;
    }
    Ok(())
}

fn head(family: Family) -> HeadWriter {
    head_with(family, ("gpt2", if family == Family::Llama { "llama-bpe" } else { "qwen2" }))
}

/// With the kind of the vocabulary, and how a text is cut.
fn head_with(family: Family, (vocabulary, split): (&str, &str)) -> HeadWriter {
    let (tokens, merges) = crate::tokenizer::vocabulary(ORDINARY);
    let ordinary = tokens.len();
    let mut tokens = tokens;
    tokens.extend(ADDITIONS.map(str::to_owned));
    let mut kinds = vec![NORMAL; ordinary];
    kinds.extend([CONTROL, CONTROL, USER_DEFINED]);
    let merges: Vec<String> = merges.iter().map(|[a, b]| format!("{a} {b}")).collect();

    let of = family.architecture();
    let mut head = HeadWriter::default().text("general.architecture", of);
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", CONTEXT),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", INTERMEDIATE as u32),
        ("attention.head_count", HEADS as u32),
        ("attention.head_count_kv", KV_HEADS as u32),
        ("rope.dimension_count", HEAD_DIM as u32),
        ("attention.key_length", HEAD_DIM as u32),
        ("attention.value_length", HEAD_DIM as u32),
        ("vocab_size", tokens.len() as u32),
    ] {
        head = head.number(&format!("{of}.{key}"), value);
    }
    head.real(&format!("{of}.attention.layer_norm_rms_epsilon"), DenseShape::EPSILON)
        .real(&format!("{of}.rope.freq_base"), DenseShape::ROPE_BASE)
        .text("tokenizer.ggml.model", vocabulary)
        .text("tokenizer.ggml.pre", split)
        .texts("tokenizer.ggml.tokens", &tokens)
        .integers("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &merges)
        .number("tokenizer.ggml.bos_token_id", ordinary as u32)
        .number("tokenizer.ggml.eos_token_id", ordinary as u32 + 1)
        .text("tokenizer.chat_template", TEMPLATE)
}

/// The head, and behind it the tensors.
pub(super) fn write(path: &Path, head: &HeadWriter, made: &[Made]) -> Result<(), SynthError> {
    let listed: Vec<WrittenTensor<'_>> = made
        .iter()
        .map(|t| WrittenTensor {
            name: &t.name,
            dimensions: &t.dimensions,
            kind: F32,
            bytes: t.bytes.len() as u64,
        })
        .collect();
    let failed = |source| SynthError::Write { path: path.to_owned(), source };
    let write_all = || {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&head.finish(&listed))?;
        for tensor in made {
            file.write_all(&tensor.bytes)?;
            let padding = tensor.bytes.len().next_multiple_of(ALIGNMENT as usize) - tensor.bytes.len();
            file.write_all(&vec![0; padding])?;
        }
        file.flush()
    };
    write_all().map_err(failed)
}

/// Xorshift: evenly in -1..1.
pub(super) fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn tensors(family: Family, seed: u64) -> Vec<Made> {
    let vocabulary = (ORDINARY + ADDITIONS.len()) as u64;
    let mut noise = noise(seed);
    let mut made = Vec::new();
    let mut matrix = |made: &mut Vec<Made>, name: String, inputs: u64, outputs: u64, gain: f32| {
        let scale = gain / (inputs as f32).sqrt();
        let bytes = (0..inputs * outputs).flat_map(|_| (noise() * scale).to_le_bytes()).collect();
        made.push(Made { name, dimensions: vec![inputs, outputs], bytes });
    };
    let vector = |made: &mut Vec<Made>, name: String, length: u64, around: f32| {
        let bytes =
            (0..length).flat_map(|n| (around + 0.1 * ((n * 37 % 11) as f32 / 11.0 - 0.5)).to_le_bytes());
        made.push(Made { name, dimensions: vec![length], bytes: bytes.collect() });
    };
    matrix(&mut made, "token_embd.weight".to_owned(), HIDDEN, vocabulary, 8.0);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (queries, keys) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        vector(&mut made, name("attn_norm.weight"), HIDDEN, 1.0);
        for (part, outputs) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
            matrix(&mut made, name(&format!("{part}.weight")), HIDDEN, outputs, 1.7);
            if family == Family::Qwen2 {
                vector(&mut made, name(&format!("{part}.bias")), outputs, 0.0);
            }
        }
        if family == Family::Qwen3 {
            vector(&mut made, name("attn_q_norm.weight"), HEAD_DIM, 1.0);
            vector(&mut made, name("attn_k_norm.weight"), HEAD_DIM, 1.0);
        }
        matrix(&mut made, name("attn_output.weight"), queries, HIDDEN, 1.0);
        vector(&mut made, name("ffn_norm.weight"), HIDDEN, 1.0);
        matrix(&mut made, name("ffn_gate.weight"), HIDDEN, INTERMEDIATE, 1.7);
        matrix(&mut made, name("ffn_up.weight"), HIDDEN, INTERMEDIATE, 1.7);
        matrix(&mut made, name("ffn_down.weight"), INTERMEDIATE, HIDDEN, 1.0);
    }
    vector(&mut made, "output_norm.weight".to_owned(), HIDDEN, 1.0);
    matrix(&mut made, "output.weight".to_owned(), HIDDEN, vocabulary, 4.0);
    made
}
