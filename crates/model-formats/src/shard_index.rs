//! Reads `model.safetensors.index.json` and answers which file holds a tensor.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use crate::file_name::{FileNameError, check_file_names};
use crate::{json, safetensors};

/// Usual name of the index of a sharded checkpoint.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Usual name of the weights of a checkpoint in one file.
pub const SINGLE_FILE: &str = "model.safetensors";
/// Longest index, in bytes. That of gpt-oss-120b has 55 kB.
pub const INDEX_BYTES_MAX: usize = 100 << 20;
/// Shards of one checkpoint at most.
pub const SHARDS_MAX: usize = 10_000;
/// Members beside `weight_map` and inside `metadata` are not limited by format; this many are read.
const MEMBERS_MAX: usize = 1_000;

/// Which shard holds which tensor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardIndex {
    /// Tensor name to shard name. The shard names are safe relative file names that end in `.safetensors`.
    pub weight_map: BTreeMap<String, String>,
    /// `metadata.total_size` when it is a whole number: bytes of all tensors. Writers get it wrong at times, so it is
    /// good for a progress bar and for nothing else.
    pub total_size: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("{file}: {bytes} bytes; at most {INDEX_BYTES_MAX} are read")]
    TooLarge { file: String, bytes: usize },
    #[error("{file}: not UTF-8")]
    NotUtf8 { file: String, source: std::str::Utf8Error },
    #[error("{file}: not a JSON object with a weight_map")]
    NotJson { file: String, source: serde_json::Error },
    #[error("{file}: weight_map is missing")]
    NoWeightMap { file: String },
    #[error("{file}: weight_map is not an object of tensor names and file names")]
    WeightMap { file: String, source: serde_json::Error },
    #[error("{file}: weight_map is empty")]
    Empty { file: String },
    #[error("{file}: a tensor name is empty, too long or has control characters")]
    TensorName { file: String },
    #[error("{file}: tensor {tensor}: its file is not a string")]
    ShardNotAString { file: String, tensor: String, source: serde_json::Error },
    #[error("{file}: tensor {tensor}: file {shard:?} is not a .safetensors file")]
    NotAShard { file: String, tensor: String, shard: String },
    #[error("{file}: weight_map names a file that is not accepted")]
    ShardName { file: String, source: FileNameError },
    #[error("{file}: {shards} shards; at most {SHARDS_MAX} are read")]
    TooManyShards { file: String, shards: usize },
    #[error("{file}: shard {shard}, which tensor {tensor} is in, is missing")]
    ShardMissing { file: String, shard: String, tensor: String },
}

impl ShardIndex {
    /// Reads an index; `file` is its name, for messages.
    ///
    /// # Errors
    /// See [`IndexError`].
    pub fn parse(file: &str, bytes: &[u8]) -> Result<ShardIndex, IndexError> {
        let owned = || file.to_owned();
        if bytes.len() > INDEX_BYTES_MAX {
            return Err(IndexError::TooLarge { file: owned(), bytes: bytes.len() });
        }
        let text =
            std::str::from_utf8(bytes).map_err(|source| IndexError::NotUtf8 { file: owned(), source })?;
        let members = json::members(text, MEMBERS_MAX)
            .map_err(|source| IndexError::NotJson { file: owned(), source })?;
        let find = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, v)| *v);
        let map = find("weight_map").ok_or_else(|| IndexError::NoWeightMap { file: owned() })?;
        let index = ShardIndex {
            weight_map: weight_map(file, map)?,
            total_size: find("metadata").and_then(total_size),
        };
        let shards = index.shards();
        if shards.len() > SHARDS_MAX {
            return Err(IndexError::TooManyShards { file: owned(), shards: shards.len() });
        }
        check_file_names(shards).map_err(|source| IndexError::ShardName { file: owned(), source })?;
        Ok(index)
    }

    /// The files of the checkpoint, in name order, each once. Never derive them from the numbers in the names: the
    /// published gpt-oss shards count from 0 and end in the last index, not in their number.
    pub fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }

    /// Checks that each shard is among `files`.
    ///
    /// # Errors
    /// [`IndexError::ShardMissing`] for the first that is not.
    pub fn check_files(&self, file: &str, exists: impl Fn(&str) -> bool) -> Result<(), IndexError> {
        match self.weight_map.iter().find(|(_, shard)| !exists(shard)) {
            None => Ok(()),
            Some((tensor, shard)) => Err(IndexError::ShardMissing {
                file: file.to_owned(),
                shard: shard.clone(),
                tensor: tensor.clone(),
            }),
        }
    }
}

fn weight_map(file: &str, json: &RawValue) -> Result<BTreeMap<String, String>, IndexError> {
    let owned = || file.to_owned();
    let members = json::members(json.get(), safetensors::TENSORS_MAX)
        .map_err(|source| IndexError::WeightMap { file: owned(), source })?;
    if members.is_empty() {
        return Err(IndexError::Empty { file: owned() });
    }
    let mut map = BTreeMap::new();
    for (tensor, shard) in members {
        let too_long = tensor.len() > safetensors::TENSOR_NAME_BYTES_MAX;
        if tensor.is_empty() || too_long || tensor.chars().any(char::is_control) {
            return Err(IndexError::TensorName { file: owned() });
        }
        let shard: String = match serde_json::from_str(shard.get()) {
            Ok(shard) => shard,
            Err(source) => return Err(IndexError::ShardNotAString { file: owned(), tensor, source }),
        };
        if !shard.ends_with(".safetensors") {
            return Err(IndexError::NotAShard { file: owned(), tensor, shard });
        }
        map.insert(tensor, shard);
    }
    Ok(map)
}

fn total_size(metadata: &RawValue) -> Option<u64> {
    let members = json::members(metadata.get(), MEMBERS_MAX).ok()?;
    let (_, value) = members.iter().find(|(key, _)| key == "total_size")?;
    serde_json::from_str(value.get()).ok()
}

#[cfg(test)]
mod tests;
