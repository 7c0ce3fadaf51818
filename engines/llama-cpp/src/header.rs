//! What the head of a model's files says that decides about memory: its numbers, and the sizes of its tensors.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use engine_sdk::{ModelFiles, Status, reason};
use model_formats::gguf::{GgufError, HEAD_BYTES_MAX, Metadata, Value};

use crate::embedding::{Pooled, pooled};
use crate::native;
use crate::options::Options;

mod vocabulary;

/// Bytes of a head that are read first; a head that goes on behind is read again, four times as much of it each time.
const HEAD_BYTES_FIRST: u64 = 1 << 20;
/// Tokens of context where the file does not say what the model was made for.
const CONTEXT_UNKNOWN: u32 = 4096;
/// The kind of a control token in `tokenizer.ggml.token_type`.
const CONTROL: i64 = 3;
/// Layers of a model at most; published ones have up to 126.
const LAYERS_MAX: u32 = 4096;

/// The parts of a model's metadata that memory depends on.
#[derive(Debug, Clone)]
pub(crate) struct Header {
    pub(crate) architecture: String,
    pub(crate) primary: String,
    /// Of all parts, in order.
    pub(crate) paths: Vec<PathBuf>,
    /// Of all parts together.
    pub(crate) file_bytes: u64,
    /// The longest context the model was made for, in tokens.
    pub(crate) context_length: u32,
    pub(crate) vocabulary: u64,
    pub(crate) hidden: u64,
    /// Widest feed-forward layer that a token passes through, all chosen experts together.
    pub(crate) intermediate: u64,
    /// Numbers of the queries of a token in one layer.
    pub(crate) queries: u64,
    /// Heads of a layer, where it has the most.
    pub(crate) heads: u64,
    /// Numbers of a head, as its layers have them.
    pub(crate) head_sizes: Vec<HeadSize>,
    /// Attention keeps the scores of all cells that a pass looks at; see [`crate::attention`].
    pub(crate) keeps_scores: bool,
    /// Numbers that one token's keys and values take in each layer.
    pub(crate) kv_numbers: Vec<u64>,
    /// Of each layer, how many positions it looks back at, where that is bounded.
    pub(crate) windows: Vec<Option<u32>>,
    /// Bytes of state that a sequence has, whatever its length (recurrent layers).
    pub(crate) state_bytes: u64,
    /// Of each token, whether the file calls it a control token. llama.cpp changes some for its own ends.
    pub(crate) control_tokens: Vec<bool>,
    /// What the tables of the vocabulary take.
    pub(crate) vocabulary_bytes: u64,
    pub(crate) tensors: Vec<native::Tensor>,
    /// None: it answers.
    pub(crate) embedding: Option<Pooled>,
}

/// Numbers of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadSize {
    pub(crate) key: u64,
    pub(crate) value: u64,
}

impl Header {
    /// # Errors
    /// `UNSUPPORTED` for another format, `LOAD_FAILED` or `MODEL_CORRUPT` naming the file.
    pub(crate) fn read(files: &ModelFiles) -> Result<Header, Status> {
        if files.format != "gguf" {
            let message = format!("{}: this engine reads gguf, not {}", files.id, files.format);
            return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, message));
        }
        let names = parts(&files.primary);
        let paths: Vec<PathBuf> =
            names.iter().map(|name| files.path(name).map(Path::to_owned)).collect::<Result<_, _>>()?;
        let mut tensors = Vec::new();
        let mut file_bytes = 0;
        for path in &paths {
            file_bytes += path.metadata().map_err(|error| unreadable(path, &error))?.len();
            tensors.extend(native::tensors(path)?);
        }
        let head = head(&files.primary, &paths[0])?;
        let metadata = parse(&files.primary, &head, &paths[0])?;
        let header = Header::of(&files.primary, &metadata)?;
        let vocabulary_bytes = vocabulary::bytes(&metadata, head.len() as u64);
        Ok(Header { paths, file_bytes, tensors, vocabulary_bytes, ..header })
    }

    fn of(file: &str, metadata: &Metadata<'_>) -> Result<Header, Status> {
        let Some(Value::Text(architecture)) = metadata.values.get("general.architecture") else {
            let message = format!("{file}: metadata general.architecture does not say what the model is");
            return Err(Status::model_corrupt(reason::FILE_CORRUPT, message));
        };
        let numbers = Numbers { metadata, architecture };
        let layers = numbers.one("block_count").unwrap_or(0);
        if layers == 0 || layers > u64::from(LAYERS_MAX) {
            let message =
                format!("{file}: metadata {architecture}.block_count is {layers}, not 1 to {LAYERS_MAX}");
            return Err(Status::model_corrupt(reason::FILE_CORRUPT, message));
        }
        let each = |key: &str, other: u64| -> Vec<u64> {
            (0..layers as usize).map(|layer| numbers.of_layer(key, layer).unwrap_or(other)).collect()
        };
        let hidden = numbers.one("embedding_length").unwrap_or(0);
        let heads = each("attention.head_count", 1);
        let widest_heads = heads.iter().copied().max().unwrap_or(1).max(1);
        let key_length = numbers.one("attention.key_length").unwrap_or(hidden / widest_heads);
        let value_length = numbers.one("attention.value_length").unwrap_or(key_length);
        let kv_heads: Vec<u64> = (heads.iter().enumerate())
            .map(|(layer, heads)| numbers.of_layer("attention.head_count_kv", layer).unwrap_or(*heads))
            .collect();
        let causal = match numbers.value("attention.causal") {
            Some(Value::Bool(causal)) => Some(causal),
            _ => None,
        };
        let embedding = pooled(file, architecture, numbers.one("pooling_type"), causal)?;
        let kv_numbers = match numbers.one("attention.kv_lora_rank") {
            _ if embedding.is_some_and(|pooled| pooled.keeps_nothing) => vec![0; layers as usize],
            // Keys and values of all heads come from one short row.
            Some(rank) => vec![rank + numbers.one("rope.dimension_count").unwrap_or(0); layers as usize],
            None => kv_heads.iter().map(|heads| heads * (key_length + value_length)).collect(),
        };
        let head_sizes = match numbers.one("attention.kv_lora_rank") {
            Some(value) => vec![HeadSize { key: kv_numbers.iter().copied().max().unwrap_or(value), value }],
            None => {
                let windowed = numbers.one("attention.key_length_swa").map(|key| HeadSize {
                    key,
                    value: numbers.one("attention.value_length_swa").unwrap_or(key),
                });
                [HeadSize { key: key_length, value: value_length }].into_iter().chain(windowed).collect()
            }
        };
        let experts = numbers.one("expert_used_count").unwrap_or(0);
        let of_experts = experts * numbers.one("expert_feed_forward_length").unwrap_or(0);
        let dense = each("feed_forward_length", 0).into_iter().max().unwrap_or(0);
        let tokens = match metadata.values.get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) => tokens.len(),
            _ => 0,
        };
        Ok(Header {
            architecture: (*architecture).to_owned(),
            primary: file.to_owned(),
            paths: Vec::new(),
            file_bytes: 0,
            context_length: numbers
                .one("context_length")
                .and_then(|length| u32::try_from(length).ok())
                .filter(|length| (2..=i32::MAX as u32).contains(length))
                .unwrap_or(CONTEXT_UNKNOWN),
            vocabulary: numbers.one("vocab_size").unwrap_or(0).max(tokens),
            hidden,
            intermediate: of_experts.max(dense),
            queries: widest_heads * key_length,
            heads: widest_heads,
            head_sizes,
            keeps_scores: false,
            kv_numbers,
            windows: windows(architecture, layers, numbers.one("attention.sliding_window")),
            state_bytes: state_bytes(&numbers, layers),
            control_tokens: match metadata.values.get("tokenizer.ggml.token_type") {
                Some(Value::Array(kinds)) => kinds.integers().iter().map(|kind| *kind == CONTROL).collect(),
                _ => Vec::new(),
            },
            vocabulary_bytes: 0,
            tensors: Vec::new(),
            embedding,
        })
    }

    /// A prompt is read in one pass.
    pub(crate) fn reads_whole(&self) -> bool {
        self.embedding.is_some_and(|pooled| pooled.whole)
    }

    /// Whether sequences share cells. A model whose rotations depend on the length of the whole KV must not: it would
    /// take a sequence for as long as all of them together.
    pub(crate) fn shares_cells(&self, options: &Options) -> bool {
        options.shared_kv && !self.tensors.iter().any(|tensor| tensor.name.contains("rope_factors_long"))
    }
}

/// The names of a model's parts, from that of the first: `x-00001-of-00003.gguf` is one of three.
fn parts(primary: &str) -> Vec<String> {
    let alone = || vec![primary.to_owned()];
    let Some(stem) = primary.strip_suffix(".gguf") else { return alone() };
    let Some((front, count)) = stem.rsplit_once("-of-") else { return alone() };
    let Some((name, number)) = front.rsplit_once('-') else { return alone() };
    match (number.parse::<u32>(), count.parse::<u32>()) {
        (Ok(1), Ok(parts @ 1..)) if number.len() == 5 && count.len() == 5 => {
            (1..=parts).map(|part| format!("{name}-{part:05}-of-{count}.gguf")).collect()
        }
        _ => alone(),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Status {
    Status::load_failed(reason::FILE_UNREADABLE, format!("{} cannot be read: {error}", path.display()))
}

/// As many bytes of the file as its metadata have, and some more.
fn head(name: &str, path: &Path) -> Result<Vec<u8>, Status> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let bytes = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    let mut head = Vec::new();
    let mut wanted = HEAD_BYTES_FIRST;
    loop {
        let more = wanted - head.len() as u64;
        (&file).take(more).read_to_end(&mut head).map_err(|error| unreadable(path, &error))?;
        match Metadata::parse(name, &head, bytes) {
            Err(GgufError::Incomplete { .. }) if wanted < HEAD_BYTES_MAX => {
                wanted = (wanted * 4).min(HEAD_BYTES_MAX);
            }
            _ => return Ok(head),
        }
    }
}

fn parse<'a>(name: &str, head: &'a [u8], path: &Path) -> Result<Metadata<'a>, Status> {
    let bytes = path.metadata().map_err(|error| unreadable(path, &error))?.len();
    Metadata::parse(name, head, bytes)
        .map_err(|error| Status::model_corrupt(reason::FILE_CORRUPT, error.to_string()))
}

/// Numbers of the model, `{architecture}.{key}`.
struct Numbers<'m, 'a> {
    metadata: &'m Metadata<'a>,
    architecture: &'m str,
}

impl Numbers<'_, '_> {
    fn value(&self, key: &str) -> Option<Value<'_>> {
        self.metadata.values.get(format!("{}.{key}", self.architecture).as_str()).copied()
    }

    fn one(&self, key: &str) -> Option<u64> {
        self.of_layer(key, 0)
    }

    /// Some numbers are there once for all layers, and in other files once for each.
    fn of_layer(&self, key: &str, layer: usize) -> Option<u64> {
        match self.value(key)? {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => u64::try_from(number).ok(),
            Value::Array(list) => list.integers().get(layer).and_then(|number| u64::try_from(*number).ok()),
            _ => None,
        }
    }
}

/// How far each layer looks back. llama.cpp knows of each architecture which layers have the window; the file does not say.
/// Of one that is not listed all layers count as full: the estimate is then too large, never too small.
fn windows(architecture: &str, layers: u64, window: Option<u64>) -> Vec<Option<u32>> {
    // Every so many layers one is full.
    let full_every = match architecture {
        "gpt-oss" | "gemma2" => Some(2),
        "gemma3" | "gemma-embedding" => Some(6),
        "gemma3n" => Some(5),
        "cohere2" | "exaone4" | "llama4" | "smallthinker" => Some(4),
        _ => None,
    };
    let window = window.and_then(|window| u32::try_from(window).ok()).filter(|window| *window > 0);
    (0..layers)
        .map(|layer| {
            let full = full_every.is_none_or(|every| layer % every == every - 1);
            if full { None } else { window }
        })
        .collect()
}

/// The state of layers that have one instead of keys and values: a piece of the last inputs, and what they remember, in f32.
fn state_bytes(numbers: &Numbers<'_, '_>, layers: u64) -> u64 {
    let [Some(kernel), Some(inner), Some(state)] =
        ["ssm.conv_kernel", "ssm.inner_size", "ssm.state_size"].map(|key| numbers.one(key))
    else {
        return 0;
    };
    let groups = numbers.one("ssm.group_count").unwrap_or(0);
    let inputs = kernel.saturating_sub(1).saturating_mul(inner + 2 * groups * state);
    layers.saturating_mul(inputs.saturating_add(inner.saturating_mul(state))).saturating_mul(4)
}

#[cfg(test)]
mod tests;
