//! Plain values that pass between host and engine: devices, files of a model, settings, needs.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::{Status, reason};

/// Who the engine is. Must agree with the `manifest.json` beside the library, or the host refuses the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    pub id: &'static str,
    /// Semantic version, usually `env!("CARGO_PKG_VERSION")`.
    pub version: &'static str,
}

/// A device the engine can compute on, as the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// `cpu`, `cuda:0`, `metal:0`, `vulkan:0`.
    pub id: String,
    /// `cpu`, `cuda`, `metal`, `vulkan`, `d3d12`.
    pub kind: String,
    pub name: String,
    /// Bytes; 0 where the engine cannot tell.
    pub memory_total: u64,
    /// Bytes; 0 where the engine cannot tell.
    pub memory_free: u64,
}

/// A verified model on this machine. The files are complete and have the registered hashes; their content is still
/// hostile until the engine has checked it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// The id clients use, for messages.
    pub id: String,
    /// `safetensors` or `gguf`.
    pub format: String,
    /// `gpt_oss`.
    pub architecture: String,
    /// The engine runtime chosen for it: `gpt-oss`.
    pub runtime: String,
    /// Where files that are not in `files` would be; engines open what `files` names.
    pub dir: PathBuf,
    /// Name of the file to open first: the shard index, or the only weight file. One of `files`.
    pub primary: String,
    pub files: Vec<ModelFile>,
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// As the model's own files name it: relative, `/`-separated.
    pub name: String,
    /// Absolute.
    pub path: PathBuf,
}

impl ModelFiles {
    /// Where the file of this name is.
    ///
    /// # Errors
    /// `LOAD_FAILED` `file_missing`, naming the file and the model, when the model has no such file.
    pub fn path(&self, name: &str) -> Result<&Path, Status> {
        self.find(name).ok_or_else(|| {
            Status::load_failed(
                "file_missing",
                format!(
                    "model {} has no file {name}; it must be among the files it was registered with",
                    self.id
                ),
            )
        })
    }

    /// The content of a file that has at most `bytes_max`.
    ///
    /// # Errors
    /// As [`ModelFiles::path`]; `LOAD_FAILED` `file_unreadable` and `MODEL_CORRUPT` `file_corrupt` for a longer one, both
    /// naming its path.
    pub fn read_small(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, Status> {
        let path = self.path(name)?;
        let mut content = Vec::new();
        let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut content));
        read.map_err(|error| {
            let message = format!("{} cannot be read: {error}", path.display());
            Status::load_failed(reason::FILE_UNREADABLE, message)
        })?;
        if content.len() as u64 > bytes_max {
            let message = format!("{}: over {bytes_max} bytes", path.display());
            return Err(Status::model_corrupt(reason::FILE_CORRUPT, message));
        }
        Ok(content)
    }

    /// Where the file of this name is, when the model has it.
    pub fn find(&self, name: &str) -> Option<&Path> {
        self.files.iter().find(|f| f.name == name).map(|f| f.path.as_path())
    }
}

/// How to load a model. What is `None` the engine chooses, as best fits the budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Device ids to use; empty: the engine's first.
    pub devices: Vec<String>,
    /// Longest sequence, prompt and answer, in tokens.
    pub context_length: Option<u32>,
    /// How many sequences may run at once.
    pub sequences_max: Option<u32>,
    /// Tokens of one step at most, over all sequences.
    pub batch_tokens_max: Option<u32>,
    /// Threads of CPU devices; none: as many as there are physical cores.
    pub threads: Option<u32>,
    /// A JSON object of the engine's own options; empty: none. An engine refuses keys it does not know
    /// (`UNSUPPORTED` `unknown_option`).
    pub options_json: String,
}

/// What a model needs on one device, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceNeed {
    pub device: String,
    /// Weights that become private memory of the process or memory of the device.
    pub weights: u64,
    /// Weights that stay pages of mapped files, which the system may drop and read again.
    pub weights_mapped: u64,
    /// Allocated once, whatever runs.
    pub workspace: u64,
    /// For every sequence, besides its KV.
    pub per_sequence: u64,
    /// KV of every token of context of one sequence.
    pub kv_per_token: u64,
    /// KV of one sequence that does not grow with its length (sliding windows).
    pub kv_fixed: u64,
}

/// What loading would take, told without loading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Estimate {
    pub devices: Vec<DeviceNeed>,
    /// The longest context the model allows, in tokens.
    pub context_length_max: u32,
}

/// Bytes of one device: what a load may use, or what is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    pub device: String,
    pub bytes: u64,
}

/// What a loaded model is. Does not change while it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    /// Length of a row of logits. May exceed the tokenizer's vocabulary: ids it does not know are never chosen.
    pub vocabulary_size: u32,
    /// Tokens of one sequence at most, prompt and answer.
    pub context_length: u32,
    /// Slots: sequences that may run at once.
    pub sequences_max: u32,
    /// Tokens of one [`Batch`](crate::Batch) at most. At least `sequences_max`.
    pub batch_tokens_max: u32,
    /// Ids that end a reply, all of them (`generation_config.json` and `config.json` together).
    pub end_tokens: Vec<u32>,
}

/// What a model that gives embeddings says of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingSpec {
    /// Numbers of one, at most [`EMBEDDING_SIZE_MAX`].
    pub size: u32,
    /// It gives embeddings and no answers: no row of a batch wants logits.
    pub only: bool,
    /// A prompt has to be read in one pass, because its tokens look ahead too, or because all of them are averaged. Then
    /// `batch_tokens_max` is at least `context_length`, and the model has no [`KvLayout`](crate::KvLayout).
    pub whole: bool,
}

/// As many numbers as the header allows.
pub const EMBEDDING_SIZE_MAX: u32 = engine_abi::EMBEDDING_SIZE_MAX;

/// Memory a loaded model holds, for the operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes in use, per device.
    pub devices: Vec<DeviceBytes>,
    /// Bytes of KV that running sequences hold.
    pub kv_bytes_used: u64,
    /// Bytes of KV there can be.
    pub kv_bytes_total: u64,
    /// Whatever else the engine wants shown, a JSON object; empty: nothing.
    pub details_json: String,
}
