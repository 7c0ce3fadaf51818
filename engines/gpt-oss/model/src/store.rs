//! Opens a checkpoint: config, index and shards, checked against one another.
//!
//! How a file becomes bytes is the caller's: tests read shards into memory, the cpu device maps them.

use model_formats::config::ConfigError;
use model_formats::gpt_oss::{GptOssConfig, TensorError, TensorSpec, check_tensors, tensors};
use model_formats::safetensors::Headers;
use model_formats::{
    Checkpoint, CheckpointError, GenerationConfig, Header, HeaderError, IndexError, MetalError, ShardIndex,
    Tensor,
};

use crate::weights::Weights;

mod metal;

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// A complete and consistent checkpoint; `S` holds the bytes of one shard.
#[derive(Debug)]
pub struct Store<S> {
    config: GptOssConfig,
    end_tokens: Vec<u32>,
    checkpoint: Checkpoint,
    /// In the order of [`Checkpoint::shards`].
    shards: Vec<S>,
    /// Bytes from the blocks of one expert to those of the next, where those of all do not lie together.
    expert_stride: Option<usize>,
}

/// Why a checkpoint cannot be opened. Each names the file, and the tensor where it is about one.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read {file}")]
    Read { file: String, source: std::io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Metal(#[from] MetalError),
    #[error("{file}: eos_token_id {id} is beyond the vocabulary of {vocabulary}")]
    EndToken { file: String, id: u32, vocabulary: usize },
}

impl OpenError {
    /// Whether the files themselves are to blame, and not the machine that reads them.
    pub fn is_corrupt(&self) -> bool {
        match self {
            OpenError::Read { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            _ => true,
        }
    }
}

impl<S: AsRef<[u8]>> Store<S> {
    /// Opens the checkpoint whose index, or only shard, is the file `primary`. `read` gives a small file whole,
    /// `shard` the bytes of a shard, both by the name that the checkpoint uses.
    ///
    /// # Errors
    /// See [`OpenError`]. Only headers are looked at: wrong numbers in the weights are not found.
    pub fn open(
        primary: &str,
        read: impl Fn(&str) -> std::io::Result<Vec<u8>>,
        shard: impl Fn(&str) -> std::io::Result<S>,
    ) -> Result<Store<S>, OpenError> {
        let read =
            |file: &str| read(file).map_err(|source| OpenError::Read { file: file.to_owned(), source });
        let config = GptOssConfig::parse(&read(CONFIG)?)?;
        let end_tokens = end_tokens(&config, read(GENERATION_CONFIG))?;

        let index = if primary.ends_with(".json") {
            Some(ShardIndex::parse(primary, &read(primary)?)?)
        } else {
            None
        };
        let names: Vec<String> = match &index {
            Some(index) => index.shards().into_iter().map(str::to_owned).collect(),
            None => vec![primary.to_owned()],
        };
        let mut shards = Vec::new();
        let mut headers = Headers::new();
        for name in names {
            let bytes = match shard(&name) {
                Ok(bytes) => bytes,
                Err(source) => return Err(OpenError::Read { file: name, source }),
            };
            let length = bytes.as_ref().len() as u64;
            headers.insert(name.clone(), Header::parse(&name, bytes.as_ref(), length)?);
            shards.push(bytes);
        }
        let checkpoint = match &index {
            Some(index) => Checkpoint::assemble(index, &headers)?,
            None => Checkpoint::single(primary, headers.remove(primary).unwrap_or_default()),
        };
        check_tensors(&config, &checkpoint)?;
        Ok(Store { config, end_tokens, checkpoint, shards, expert_stride: None })
    }

    pub fn config(&self) -> &GptOssConfig {
        &self.config
    }

    /// Every token that ends a reply: those of `generation_config.json` and of `config.json`.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub fn shards(&self) -> &[S] {
        &self.shards
    }

    /// Bytes of all tensors: of those that are used where they lie, and of those that were converted when it was opened.
    pub fn tensor_bytes(&self) -> (u64, u64) {
        let specs = tensors(&self.config);
        let all = specs.iter().map(TensorSpec::byte_len).sum::<u64>();
        let converted = match self.expert_stride {
            Some(_) => self.shards[metal::CONVERTED].as_ref().len() as u64,
            None => 0,
        };
        (all - converted, converted)
    }

    /// Bytes from the blocks of one expert to those of the next; `None`: they follow one another.
    pub fn expert_stride(&self) -> Option<usize> {
        self.expert_stride
    }
}

impl<S: AsRef<[u8]>> Store<S> {
    /// The tensor, and all bytes from its first to its last.
    fn span(&self, tensor: &str) -> (&Tensor, &[u8]) {
        let place = self.checkpoint.tensors.get(tensor).expect("open checked that every tensor is there");
        let range = &place.tensor.range;
        // The header's ranges lie inside the shard, which is in memory: they fit usize.
        (&place.tensor, &self.shards[place.shard].as_ref()[range.start as usize..range.end as usize])
    }
}

impl<S: AsRef<[u8]>> Weights for Store<S> {
    fn bytes(&self, tensor: &str) -> &[u8] {
        let (found, span) = self.span(tensor);
        let bytes = found.shape.iter().product::<u64>() * found.dtype.bits() / 8;
        assert_eq!(span.len() as u64, bytes, "the bytes of {tensor} do not lie together");
        span
    }

    fn parts(&self, tensor: &str) -> Vec<&[u8]> {
        let (found, span) = self.span(tensor);
        match self.expert_stride {
            Some(stride) if tensor.ends_with("_blocks") => {
                let one = found.shape[1..].iter().product::<u64>() as usize;
                span.chunks(stride).map(|expert| &expert[..one]).collect()
            }
            _ => vec![span],
        }
    }

    fn are_of_a_file(&self, tensor: &str) -> bool {
        let place = self.checkpoint.tensors.get(tensor).expect("open checked that every tensor is there");
        self.expert_stride.is_none() || place.shard != metal::CONVERTED
    }
}

fn end_tokens(config: &GptOssConfig, generation: Result<Vec<u8>, OpenError>) -> Result<Vec<u32>, OpenError> {
    let mut ids = match generation {
        Ok(bytes) => GenerationConfig::parse(&bytes)?.end_tokens,
        Err(OpenError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= config.vocabulary) {
        let file = GENERATION_CONFIG.to_owned();
        return Err(OpenError::EndToken { file, id, vocabulary: config.vocabulary });
    }
    for &id in &config.end_tokens {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}
