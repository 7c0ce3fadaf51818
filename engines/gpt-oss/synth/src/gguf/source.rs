//! Where the numbers of a GGUF file come from: made up, or a checkpoint's.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use model_formats::Header;
use model_formats::gpt_oss::{GptOssConfig, TensorSpec};
use model_formats::safetensors::head_bytes;

use crate::fill::Filler;

/// A small file; the checkpoint is held in memory.
const CHECKPOINT_BYTES_MAX: u64 = 1 << 30;

pub(super) enum Source {
    Random {
        seed: u64,
    },
    /// The bytes of each tensor.
    Held(BTreeMap<String, Vec<u8>>),
}

/// Gives the bytes of one tensor, piece by piece.
pub(super) enum Bytes<'s> {
    Random(Filler),
    Held(&'s [u8]),
}

/// The bytes of every tensor of the shards in a folder.
pub(crate) fn held(dir: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        if path.metadata()?.len() > CHECKPOINT_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        let bytes = std::fs::read(&path)?;
        let name = path.display().to_string();
        let size = bytes.len() as u64;
        let head = head_bytes(&name, &bytes, size).map_err(io::Error::other)? as usize;
        let header = Header::parse(&name, &bytes[..head], size).map_err(io::Error::other)?;
        for (name, tensor) in header.tensors {
            // Ranges of a parsed header are inside the file.
            tensors.insert(name, bytes[tensor.range.start as usize..tensor.range.end as usize].to_vec());
        }
    }
    Ok(tensors)
}

impl Source {
    /// Reads every shard of a folder.
    pub(super) fn read(dir: &Path) -> io::Result<Source> {
        held(dir).map(Source::Held)
    }

    /// # Errors
    /// When the checkpoint does not have the tensor in the size it should have.
    pub(super) fn bytes(&self, config: &GptOssConfig, tensor: &TensorSpec) -> io::Result<Bytes<'_>> {
        match self {
            Source::Random { seed } => Ok(Bytes::Random(Filler::new(config, *seed, tensor))),
            Source::Held(tensors) => {
                let held = tensors.get(&tensor.name).filter(|held| held.len() as u64 == tensor.byte_len());
                let missing =
                    || io::Error::other(format!("the checkpoint has no tensor {} of this size", tensor.name));
                Ok(Bytes::Held(held.ok_or_else(missing)?))
            }
        }
    }
}

impl Bytes<'_> {
    pub(super) fn fill(&mut self, out: &mut [u8]) {
        match self {
            Bytes::Random(filler) => filler.fill(out),
            Bytes::Held(rest) => {
                let (now, later) = rest.split_at(out.len());
                out.copy_from_slice(now);
                *rest = later;
            }
        }
    }
}
