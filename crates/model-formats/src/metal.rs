//! Reads `metal/model.bin`: gpt-oss in one file, laid out for Apple's GPUs by its publisher.
//!
//! Little-endian: a head with the shape of the model, the vocabulary (which is checked and not used: `tokenizer.json` is
//! what tokenizes), then, from a multiple of 16 KiB on, the weights of everything but the experts, and those of the experts.
//! Nothing says where a tensor is: places follow from the shape, and the file has to have exactly the bytes they make.
//!
//! Against the published tensors: rows of queries and keys are in another order and multiplied by powers of two, scales of
//! experts are 14 larger, the matrices of one expert lie together, and the vocabulary ends with its sixteenth special token.

mod layout;
mod write;

use crate::gpt_oss::{
    Attention, CONTEXT_MAX, EXPERTS_MAX, GptOssConfig, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCABULARY_MAX,
    WIDTH_MAX,
};
use crate::mxfp4;

pub use layout::{MetalTensor, Stored, restore_scales, restore_turned, tensors};
pub use write::{MetalSource, MetalWriteError, SPECIAL_NAMES, SPECIAL_TOKENS, write_metal};

/// What engines and manifests call the file.
pub const METAL_FILE: &str = "model.metal.bin";
/// Special tokens that a file may name; published ones have sixteen.
pub const SPECIAL_MAX: u32 = 1024;
/// Longest pattern that splits text, in bytes.
pub const REGEX_BYTES_MAX: u32 = 64 << 10;
/// Longest table of tokens, in bytes; the published one has about 1.6 MB.
pub const TOKENS_BYTES_MAX: u32 = 128 << 20;

const MAGIC: &[u8; 16] = b"GPT-OSS v1.0\0\0\0\0";
const MODEL_UUID: [u8; 16] = 0xdf52dc86_1789_4ed0_a295_66f10508145b_u128.to_be_bytes();
const LAYOUT_UUID: [u8; 16] = 0x229177a8_5775_4268_bfd8_d588b351c56d_u128.to_be_bytes();
const TOKENIZER_UUID: [u8; 16] = 0x7401aded_2a95_40cb_b782_9ccebaafe72b_u128.to_be_bytes();
/// Weights begin at a multiple of this, and so do the experts of each layer.
const PAGE: u64 = 16_384;
/// Tensors begin at a multiple of this.
const ALIGNMENT: u64 = 16;
/// The scale of attention scores is in queries and keys, which is right for heads of this width alone.
const HEAD_DIM: u32 = 64;
/// Numbers of the head and of `config.json` are the same after different roundings.
const RELATIVE_TOLERANCE: f64 = 1e-5;

/// The shape that the head tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetalHead {
    pub context_length: u32,
    pub layers: u32,
    pub experts: u32,
    pub experts_per_token: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub swiglu_limit: f32,
    pub head_dim: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub window: u32,
    pub rope_theta: f32,
    /// 1 / factor of YaRN.
    pub interpolation_scale: f32,
    /// The ramp of YaRN at pair i is `i * yarn_scale + yarn_offset`, between 0 and 1.
    pub yarn_offset: f32,
    pub yarn_scale: f32,
    /// Multiplies cosine and sine.
    pub yarn_multiplier: f32,
    pub rms_epsilon: f32,
}

/// A file that has passed every check that needs no other file.
#[derive(Debug, Clone, PartialEq)]
pub struct MetalFile {
    file: String,
    pub head: MetalHead,
    /// Rows of embedding and output: ordinary and special tokens.
    pub vocabulary: u32,
    /// Where the weights begin.
    weights: u64,
}

/// Why a file is not accepted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MetalError {
    #[error(
        "{file}: ends inside its {part}: {needed} bytes are needed, the file has {file_bytes}: truncated?"
    )]
    Truncated { file: String, part: &'static str, needed: u64, file_bytes: u64 },
    #[error("{file}: does not begin with GPT-OSS v1.0")]
    Magic { file: String },
    #[error("{file}: the {what} is of another kind: {found:032x}, and {expected:032x} is read")]
    Kind { file: String, what: &'static str, found: u128, expected: u128 },
    #[error("{file}: {field} is {number}, not a number from {min} to {max}")]
    Number { file: String, field: &'static str, number: u32, min: u32, max: u32 },
    #[error("{file}: {field} is {number}, not a number that can be")]
    Real { file: String, field: &'static str, number: f32 },
    #[error("{file}: {field} {problem}")]
    Relation { file: String, field: &'static str, problem: String },
    #[error("{file}: the pattern that splits text has no end")]
    Pattern { file: String },
    #[error("{file}: token {id} is empty")]
    EmptyToken { file: String, id: u32 },
    #[error("{file}: token {id} goes on behind the table of tokens")]
    TokenBeyond { file: String, id: u32 },
    #[error("{file}: the table of tokens has {given} bytes, and its {count} tokens take {taken}")]
    TokenBytes { file: String, count: u32, given: u64, taken: u64 },
    #[error("{file}: byte {at} before the weights is not zero")]
    Padding { file: String, at: u64 },
    #[error("{file}: a model of this shape has {needed} bytes, the file has {file_bytes}")]
    Size { file: String, needed: u64, file_bytes: u64 },
    #[error("{file}: {field} is {found}; config.json says {expected}")]
    Differs { file: String, field: &'static str, found: String, expected: String },
    #[error("{file}: tensor {tensor}: scale {at} is {scale}; with the 14 that is added none is below 14")]
    Scale { file: String, tensor: String, at: usize, scale: u8 },
}

impl MetalFile {
    /// Reads the head and vocabulary of `bytes`, a whole file named `file`.
    ///
    /// # Errors
    /// See [`MetalError`]. The weights are not looked at, but there are exactly as many bytes of them as there have to be.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<MetalFile, MetalError> {
        let mut reader = Reader { file, bytes, at: 0 };
        if reader.take("magic", MAGIC.len() as u64)? != MAGIC {
            return Err(MetalError::Magic { file: file.to_owned() });
        }
        reader.kind("model", MODEL_UUID)?;
        let head = MetalHead::read(&mut reader)?;
        reader.kind("layout of the weights", LAYOUT_UUID)?;
        let vocabulary = reader.vocabulary()?;
        let weights = reader.at.next_multiple_of(PAGE);
        let start = reader.at;
        let padding = reader.take("padding before the weights", weights - start)?;
        if let Some(at) = padding.iter().position(|byte| *byte != 0) {
            return Err(MetalError::Padding { file: file.to_owned(), at: start + at as u64 });
        }
        let metal = MetalFile { file: file.to_owned(), head, vocabulary, weights };
        let (needed, file_bytes) = (layout::end(&metal), bytes.len() as u64);
        if needed != file_bytes {
            return Err(MetalError::Size { file: file.to_owned(), needed, file_bytes });
        }
        Ok(metal)
    }

    /// Compares the shape with that of `config.json`, and gives the shape of the model that runs: the same but for the
    /// vocabulary, which is the file's.
    ///
    /// # Errors
    /// [`MetalError::Differs`], with both values.
    pub fn check(&self, config: &GptOssConfig) -> Result<GptOssConfig, MetalError> {
        let head = &self.head;
        let differs = |field, found: String, expected: String| {
            Err(MetalError::Differs { file: self.file.clone(), field, found, expected })
        };
        let numbers = [
            ("context_length", head.context_length, config.context_length_max as usize),
            ("num_blocks", head.layers, config.layers.len()),
            ("num_experts", head.experts, config.experts),
            ("num_active_experts", head.experts_per_token, config.experts_per_token),
            ("embedding_dim", head.hidden, config.hidden),
            ("mlp_dim", head.intermediate, config.intermediate),
            ("head_dim", head.head_dim, config.head_dim),
            ("num_heads", head.heads, config.heads),
            ("num_kv_heads", head.kv_heads, config.kv_heads),
            ("attention_window", head.window, config.sliding_window),
        ];
        if let Some((field, found, expected)) = numbers.into_iter().find(|(_, a, b)| *a as usize != *b) {
            return differs(field, found.to_string(), expected.to_string());
        }
        let alternates = |(n, kind): (usize, &Attention)| (n % 2 == 0) == (*kind == Attention::Sliding);
        if !config.layers.iter().enumerate().all(alternates) {
            let alternating = "every second layer, the first included".to_owned();
            return differs("the layers that slide", alternating, "others".to_owned());
        }
        let Some(yarn) = &config.rope.yarn else {
            return differs("rotary embedding", "YaRN".to_owned(), "none of that kind".to_owned());
        };
        let (low, high) = yarn.ramp(config.rope.theta, config.head_dim);
        let reals = [
            ("swiglu_limit", head.swiglu_limit, f64::from(config.swiglu_limit)),
            ("rope_theta", head.rope_theta, config.rope.theta),
            ("interpolation_scale", head.interpolation_scale, 1.0 / yarn.factor),
            ("yarn_offset", head.yarn_offset, -low / (high - low)),
            ("yarn_scale", head.yarn_scale, 1.0 / (high - low)),
            ("yarn_multiplier", head.yarn_multiplier, yarn.concentration),
            ("rmsnorm_epsilon", head.rms_epsilon, f64::from(config.rms_epsilon)),
        ];
        let off = |found: f32, expected: f64| {
            (f64::from(found) - expected).abs() > expected.abs() * RELATIVE_TOLERANCE
        };
        if let Some((field, found, expected)) = reals.into_iter().find(|(_, a, b)| off(*a, *b)) {
            return differs(field, found.to_string(), expected.to_string());
        }
        let rows = self.vocabulary as usize;
        if rows > config.vocabulary {
            return differs("the vocabulary", rows.to_string(), format!("at most {}", config.vocabulary));
        }
        if let Some(id) = config.end_tokens.iter().find(|id| **id as usize >= rows) {
            return differs("the vocabulary", rows.to_string(), format!("that token {id} ends an answer"));
        }
        Ok(GptOssConfig { vocabulary: rows, ..config.clone() })
    }

    /// The name it was read under.
    pub fn name(&self) -> &str {
        &self.file
    }
}

impl MetalHead {
    fn read(reader: &mut Reader<'_>) -> Result<MetalHead, MetalError> {
        let head = MetalHead {
            context_length: reader.number("context_length", 1, CONTEXT_MAX)?,
            layers: reader.number("num_blocks", 1, LAYERS_MAX)?,
            experts: reader.number("num_experts", 1, EXPERTS_MAX)?,
            experts_per_token: reader.number("num_active_experts", 1, EXPERTS_MAX)?,
            hidden: reader.number("embedding_dim", 1, WIDTH_MAX)?,
            intermediate: reader.number("mlp_dim", 1, WIDTH_MAX)?,
            swiglu_limit: reader.real("swiglu_limit")?,
            head_dim: reader.number("head_dim", 1, HEAD_DIM_MAX)?,
            heads: reader.number("num_heads", 1, HEADS_MAX)?,
            kv_heads: reader.number("num_kv_heads", 1, HEADS_MAX)?,
            window: reader.number("attention_window", 1, CONTEXT_MAX)?,
            rope_theta: reader.real("rope_theta")?,
            interpolation_scale: reader.real("interpolation_scale")?,
            yarn_offset: reader.real("yarn_offset")?,
            yarn_scale: reader.real("yarn_scale")?,
            yarn_multiplier: reader.real("yarn_multiplier")?,
            rms_epsilon: reader.real("rmsnorm_epsilon")?,
        };
        let wrong = |field, problem: String| {
            Err(MetalError::Relation { file: reader.file.to_owned(), field, problem })
        };
        let block = mxfp4::BLOCK as u32;
        for (field, width) in [("embedding_dim", head.hidden), ("mlp_dim", head.intermediate)] {
            if !width.is_multiple_of(block) {
                return wrong(field, format!("is {width}, not a multiple of {block} as MXFP4 needs"));
            }
        }
        if head.head_dim != HEAD_DIM {
            return wrong(
                "head_dim",
                format!(
                    "is {}, and this form has the attention's scale for {HEAD_DIM} in its weights",
                    head.head_dim
                ),
            );
        }
        if !head.heads.is_multiple_of(head.kv_heads) {
            return wrong(
                "num_kv_heads",
                format!("is {}, not a divisor of the {} heads", head.kv_heads, head.heads),
            );
        }
        if head.experts_per_token > head.experts {
            let problem = format!("is {}, more than the {} experts", head.experts_per_token, head.experts);
            return wrong("num_active_experts", problem);
        }
        Ok(head)
    }
}

/// Takes bytes from the front.
struct Reader<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: u64,
}

impl<'a> Reader<'a> {
    fn take(&mut self, part: &'static str, count: u64) -> Result<&'a [u8], MetalError> {
        // Counts are sums of a few u32.
        let end = self.at + count;
        let file_bytes = self.bytes.len() as u64;
        if end > file_bytes {
            return Err(MetalError::Truncated { file: self.file.to_owned(), part, needed: end, file_bytes });
        }
        let taken = &self.bytes[self.at as usize..end as usize];
        self.at = end;
        Ok(taken)
    }

    fn word(&mut self, part: &'static str) -> Result<[u8; 4], MetalError> {
        let taken = self.take(part, 4)?;
        Ok(taken.try_into().expect("four bytes were taken"))
    }

    fn number(&mut self, field: &'static str, min: u32, max: u32) -> Result<u32, MetalError> {
        let number = u32::from_le_bytes(self.word("head")?);
        if !(min..=max).contains(&number) {
            return Err(MetalError::Number { file: self.file.to_owned(), field, number, min, max });
        }
        Ok(number)
    }

    fn real(&mut self, field: &'static str) -> Result<f32, MetalError> {
        let number = f32::from_le_bytes(self.word("head")?);
        if !number.is_finite() {
            return Err(MetalError::Real { file: self.file.to_owned(), field, number });
        }
        Ok(number)
    }

    fn kind(&mut self, what: &'static str, expected: [u8; 16]) -> Result<(), MetalError> {
        let found: [u8; 16] = self.take("head", 16)?.try_into().expect("sixteen bytes were taken");
        if found != expected {
            let (found, expected) = (u128::from_be_bytes(found), u128::from_be_bytes(expected));
            return Err(MetalError::Kind { file: self.file.to_owned(), what, found, expected });
        }
        Ok(())
    }

    /// The number of tokens.
    fn vocabulary(&mut self) -> Result<u32, MetalError> {
        self.kind("tokenizer", TOKENIZER_UUID)?;
        let special = self.number("num_special", 0, SPECIAL_MAX)?;
        let text = self.number("num_text", 1, VOCABULARY_MAX)?;
        let pattern = self.number("regex_size", 1, REGEX_BYTES_MAX)?;
        let table = self.number("tokens_size", 3, TOKENS_BYTES_MAX)?;
        self.take("names of special tokens", 16 * u64::from(special))?;
        let pattern = self.take("pattern that splits text", u64::from(pattern))?;
        if pattern.iter().position(|byte| *byte == 0) != Some(pattern.len() - 1) {
            return Err(MetalError::Pattern { file: self.file.to_owned() });
        }
        let tokens = self.take("table of tokens", u64::from(table))?;
        check_tokens(self.file, tokens, text)?;
        Ok(text + special)
    }
}

/// Each token is its length and its bytes; together they fill the table.
fn check_tokens(file: &str, table: &[u8], count: u32) -> Result<(), MetalError> {
    let mut rest = table;
    for id in 0..count {
        let beyond = || MetalError::TokenBeyond { file: file.to_owned(), id };
        let (length, tail) = rest.split_first_chunk().ok_or_else(beyond)?;
        let length = usize::from(u16::from_le_bytes(*length));
        if length == 0 {
            return Err(MetalError::EmptyToken { file: file.to_owned(), id });
        }
        rest = tail.get(length..).ok_or_else(beyond)?;
    }
    if !rest.is_empty() {
        let (given, taken) = (table.len() as u64, (table.len() - rest.len()) as u64);
        return Err(MetalError::TokenBytes { file: file.to_owned(), count, given, taken });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
