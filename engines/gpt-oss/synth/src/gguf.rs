//! The weights of a checkpoint as one GGUF file, the form llama.cpp reads: what a peer is measured with.
//!
//! Shape and seed make the same numbers as in the safetensors. Experts keep their MXFP4 bits in GGUF's order, with gate and
//! up apart; matrices outside the experts are BF16 as published or Q8_0; router, norms, biases and sinks are F32, as
//! llama.cpp's own conversion has them.

mod bert;
mod blocks;
mod dense;
mod head;
mod large;
mod source;
mod vocabulary;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use model_formats::gpt_oss::{GptOssConfig, TensorSpec, tensors};
use model_formats::mxfp4::bf16_to_f32;

use crate::Shape;
use crate::write::{PIECE_BYTES, SynthError, check_space};
pub use bert::{BertShape, write_bert_gguf};
pub use dense::{
    DenseShape, Family, MadeTensor, Pooling, write_dense_gguf, write_pooled_gguf, write_split_gguf,
    write_vocabulary_gguf,
};
use head::Head;
pub use large::{LargeKind, LargeShape, write_large_gguf};
use source::Source;
pub(crate) use source::held;
use vocabulary::Vocabulary;

/// Tensors begin at multiples of this.
const ALIGNMENT: u64 = 32;
/// Elements that share a scale, in MXFP4 and in Q8_0 alike.
const BLOCK: usize = 32;
/// A scale byte and 32 codes of four bits.
const MXFP4_BLOCK_BYTES: usize = 17;
/// A half float and 32 bytes.
const Q8_0_BLOCK_BYTES: usize = 34;

/// How attention, embedding and output are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Dense {
    /// As published.
    Bf16,
    /// 8 bits and a half float for every 32 of them.
    #[value(name = "q8_0")]
    Q8_0,
}

/// The rows of an interleaved matrix that are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    All,
    /// Gate.
    Even,
    /// Up.
    Odd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    F32,
    Dense(Dense),
    Mxfp4,
}

impl Kind {
    /// Number of the type in the file.
    fn number(self) -> u32 {
        match self {
            Kind::F32 => 0,
            Kind::Dense(Dense::Q8_0) => 8,
            Kind::Dense(Dense::Bf16) => 30,
            Kind::Mxfp4 => 39,
        }
    }

    fn bytes(self, elements: u64) -> u64 {
        let blocks = elements / BLOCK as u64;
        match self {
            Kind::F32 => elements * 4,
            Kind::Dense(Dense::Bf16) => elements * 2,
            Kind::Dense(Dense::Q8_0) => blocks * Q8_0_BLOCK_BYTES as u64,
            Kind::Mxfp4 => blocks * MXFP4_BLOCK_BYTES as u64,
        }
    }
}

/// A tensor of the file and where its numbers come from.
#[derive(Debug)]
struct Planned {
    name: String,
    kind: Kind,
    /// Outermost first; the file has them the other way round.
    dimensions: Vec<u64>,
    take: Take,
    /// In the safetensors: the tensor, or blocks and scales.
    sources: Vec<TensorSpec>,
}

impl Planned {
    fn bytes(&self) -> u64 {
        self.kind.bytes(self.dimensions.iter().product())
    }
}

/// Writes the file. `progress(done, total)` is told of every few megabytes.
///
/// # Errors
/// Too little room (found out before anything is written), or a file that cannot be written. What was written stays.
pub fn write_gguf(
    shape: Shape,
    seed: u64,
    dense: Dense,
    path: &Path,
    progress: impl FnMut(u64, u64),
) -> Result<(), SynthError> {
    let config = GptOssConfig::parse(shape.config().to_string().as_bytes())
        .expect("the configs of the known shapes are valid");
    let vocabulary = Vocabulary::of_shape(shape, config.vocabulary);
    write_file(&config, &vocabulary, &Source::Random { seed }, dense, path, progress)
}

/// Writes the checkpoint of a folder, a small one, as one file: the same numbers, vocabulary and template.
///
/// # Errors
/// A file of the folder that is missing or broken, too little room, or a file that cannot be written.
pub fn convert_gguf(
    dir: &Path,
    dense: Dense,
    path: &Path,
    progress: impl FnMut(u64, u64),
) -> Result<(), SynthError> {
    let broken = |source| SynthError::Convert { dir: dir.to_owned(), source };
    let read = |name: &str| std::fs::read(dir.join(name)).map_err(broken);
    let json = |name: &str| -> Result<serde_json::Value, SynthError> {
        serde_json::from_slice(&read(name)?).map_err(|error| broken(io::Error::other(error)))
    };
    let config =
        GptOssConfig::parse(&read("config.json")?).map_err(|error| broken(io::Error::other(error)))?;
    let template =
        String::from_utf8(read("chat_template.jinja")?).map_err(|error| broken(io::Error::other(error)))?;
    let vocabulary = Vocabulary::of_checkpoint(
        &json("tokenizer.json")?,
        &json("config.json")?,
        &template,
        config.vocabulary,
    );
    let vocabulary = vocabulary
        .ok_or_else(|| broken(io::Error::other("tokenizer.json is not of the form that is converted")))?;
    write_file(&config, &vocabulary, &Source::read(dir).map_err(broken)?, dense, path, progress)
}

fn write_file(
    config: &GptOssConfig,
    vocabulary: &Vocabulary,
    source: &Source,
    dense: Dense,
    path: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), SynthError> {
    let planned = plan(config, dense);
    let total: u64 = planned.iter().map(|t| t.bytes().next_multiple_of(ALIGNMENT)).sum();
    let failed = |source| SynthError::Write { path: path.to_owned(), source };
    check_space(path.parent().unwrap_or(Path::new(".")), total)?;
    let mut write = || -> io::Result<()> {
        let mut file = BufWriter::with_capacity(PIECE_BYTES, File::create(path)?);
        file.write_all(&Head::new(vocabulary, config, dense, &planned).bytes)?;
        let mut done = 0;
        for tensor in &planned {
            let mut written = 0;
            let mut out = |bytes: &[u8]| {
                written += bytes.len() as u64;
                progress(done + written, total);
                file.write_all(bytes)
            };
            write_tensor(tensor, config, source, &mut out)?;
            assert_eq!(written, tensor.bytes(), "{} has another size than its head says", tensor.name);
            let padded = written.next_multiple_of(ALIGNMENT);
            file.write_all(&[0; ALIGNMENT as usize][..(padded - written) as usize])?;
            done += padded;
        }
        file.flush()
    };
    write().map_err(failed)
}

/// The names that llama.cpp has for the tensors of a layer: its name, ours, and which rows.
const LAYER: [(&str, &str, Take); 19] = [
    ("attn_norm.weight", "input_layernorm.weight", Take::All),
    ("post_attention_norm.weight", "post_attention_layernorm.weight", Take::All),
    ("attn_q.weight", "self_attn.q_proj.weight", Take::All),
    ("attn_q.bias", "self_attn.q_proj.bias", Take::All),
    ("attn_k.weight", "self_attn.k_proj.weight", Take::All),
    ("attn_k.bias", "self_attn.k_proj.bias", Take::All),
    ("attn_v.weight", "self_attn.v_proj.weight", Take::All),
    ("attn_v.bias", "self_attn.v_proj.bias", Take::All),
    ("attn_output.weight", "self_attn.o_proj.weight", Take::All),
    ("attn_output.bias", "self_attn.o_proj.bias", Take::All),
    ("attn_sinks.weight", "self_attn.sinks", Take::All),
    ("ffn_gate_inp.weight", "mlp.router.weight", Take::All),
    ("ffn_gate_inp.bias", "mlp.router.bias", Take::All),
    ("ffn_gate_exps.weight", "mlp.experts.gate_up_proj", Take::Even),
    ("ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", Take::Even),
    ("ffn_up_exps.weight", "mlp.experts.gate_up_proj", Take::Odd),
    ("ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias", Take::Odd),
    ("ffn_down_exps.weight", "mlp.experts.down_proj", Take::All),
    ("ffn_down_exps.bias", "mlp.experts.down_proj_bias", Take::All),
];

fn plan(config: &GptOssConfig, dense: Dense) -> Vec<Planned> {
    let all = tensors(config);
    let planned = |name: String, ours: &str, take: Take| {
        let of = |name: String| {
            let found = all.iter().find(|t| t.name == name);
            found.unwrap_or_else(|| panic!("the checkpoint has no {name}")).clone()
        };
        let experts = ours.ends_with("up_proj") || ours.ends_with("down_proj");
        let sources = if experts {
            vec![of(format!("{ours}_blocks")), of(format!("{ours}_scales"))]
        } else {
            vec![of(ours.to_owned())]
        };
        let mut dimensions = sources[0].shape.clone();
        if experts {
            // (experts, rows, blocks, 16 bytes) becomes (experts, rows, columns).
            dimensions.pop();
            dimensions[2] *= BLOCK as u64;
        }
        if take != Take::All {
            dimensions[1] /= 2;
        }
        let kind = if experts {
            Kind::Mxfp4
        } else if ours.ends_with("weight") && dimensions.len() == 2 && !ours.contains("router") {
            Kind::Dense(dense)
        } else {
            Kind::F32
        };
        Planned { name, kind, dimensions, take, sources }
    };
    let mut list = vec![planned("token_embd.weight".to_owned(), "model.embed_tokens.weight", Take::All)];
    for layer in 0..config.layers.len() {
        list.extend(LAYER.iter().map(|(theirs, ours, take)| {
            planned(format!("blk.{layer}.{theirs}"), &format!("model.layers.{layer}.{ours}"), *take)
        }));
    }
    list.push(planned("output_norm.weight".to_owned(), "model.norm.weight", Take::All));
    list.push(planned("output.weight".to_owned(), "lm_head.weight", Take::All));
    list
}

fn write_tensor(
    tensor: &Planned,
    config: &GptOssConfig,
    from: &Source,
    out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let source = &tensor.sources[0];
    let mut filler = from.bytes(config, source)?;
    if tensor.kind == Kind::Mxfp4 {
        let mut scale_filler = from.bytes(config, &tensor.sources[1])?;
        let [experts, rows, columns] = source.shape[..3] else { panic!("experts have four dimensions") };
        let row_blocks = columns as usize;
        let mut codes = vec![0; rows as usize * row_blocks * 16];
        let mut scales = vec![0; rows as usize * row_blocks];
        for _ in 0..experts {
            filler.fill(&mut codes);
            scale_filler.fill(&mut scales);
            out(&blocks::mxfp4(&codes, &scales, row_blocks, tensor.take))?;
        }
        return Ok(());
    }
    let mut left = source.byte_len();
    let mut piece = vec![0; PIECE_BYTES.min(left as usize)];
    while left > 0 {
        let bytes = left.min(PIECE_BYTES as u64);
        let piece = &mut piece[..bytes as usize];
        filler.fill(piece);
        match tensor.kind {
            Kind::Dense(Dense::Bf16) => out(piece)?,
            Kind::Dense(Dense::Q8_0) => out(&blocks::q8_0(piece))?,
            Kind::F32 | Kind::Mxfp4 => out(&blocks::f32(piece, tensor.take))?,
        }
        left -= bytes;
    }
    Ok(())
}

/// (elements) of the bytes of BF16 numbers.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<2>().0.iter().map(|b| bf16_to_f32(u16::from_le_bytes(*b)))
}

#[cfg(test)]
mod tests;
