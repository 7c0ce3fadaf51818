//! Puts an index and the headers of its shards together into one model, and finds what does not fit.

use std::collections::BTreeMap;

use crate::safetensors::{Headers, Tensor};
use crate::shard_index::ShardIndex;

/// All tensors of a model, each with the shard it is in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Shard names, in name order.
    pub shards: Vec<String>,
    pub tensors: BTreeMap<String, Place>,
}

/// Where a tensor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Index into [`Checkpoint::shards`].
    pub shard: usize,
    pub tensor: Tensor,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error("shard {shard} named in the index is missing")]
    ShardMissing { shard: String },
    #[error("shard {shard}: tensor {tensor} is in the index and not in the shard")]
    TensorMissing { shard: String, tensor: String },
    #[error("shard {shard}: tensor {tensor} is in the shard and not in the index")]
    TensorNotInIndex { shard: String, tensor: String },
    #[error("shard {shard}: tensor {tensor} is in this shard, but the index says it is in {indexed}")]
    TensorElsewhere { shard: String, tensor: String, indexed: String },
}

impl Checkpoint {
    /// Index and headers must agree exactly: what is in one and not in the other is an error.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn assemble(index: &ShardIndex, headers: &Headers) -> Result<Checkpoint, CheckpointError> {
        let shards: Vec<String> = index.shards().into_iter().map(str::to_owned).collect();
        let mut tensors = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            let Some(header) = headers.get(shard) else {
                return Err(CheckpointError::ShardMissing { shard: shard.clone() });
            };
            for (name, tensor) in &header.tensors {
                let (shard, name) = (shard.clone(), name.clone());
                match index.weight_map.get(&name) {
                    None => return Err(CheckpointError::TensorNotInIndex { shard, tensor: name }),
                    Some(indexed) if *indexed != shard => {
                        let indexed = indexed.clone();
                        return Err(CheckpointError::TensorElsewhere { shard, tensor: name, indexed });
                    }
                    Some(_) => tensors.insert(name, Place { shard: number, tensor: tensor.clone() }),
                };
            }
        }
        match index.weight_map.iter().find(|(name, _)| !tensors.contains_key(*name)) {
            None => Ok(Checkpoint { shards, tensors }),
            Some((name, shard)) => {
                Err(CheckpointError::TensorMissing { shard: shard.clone(), tensor: name.clone() })
            }
        }
    }

    /// A checkpoint in one file, which needs no index.
    pub fn single(shard: &str, header: crate::Header) -> Checkpoint {
        let tensors =
            header.tensors.into_iter().map(|(name, tensor)| (name, Place { shard: 0, tensor })).collect();
        Checkpoint { shards: vec![shard.to_owned()], tensors }
    }

    /// Bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.values().map(|p| p.tensor.byte_len()).sum()
    }
}

#[cfg(test)]
mod tests;
