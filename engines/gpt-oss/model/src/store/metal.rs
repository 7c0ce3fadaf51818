//! Opens a `model.bin`: what can be used where it lies stays there, the rest is converted into memory of its own.
//!
//! Queries and keys are turned back, scales made what they were, and biases of experts, which are little, laid together.
//! So everything behind it computes as it does with the published tensors, and gives the same numbers.

use std::ops::Range;

use model_formats::checkpoint::Place;
use model_formats::gpt_oss::GptOssConfig;
use model_formats::metal::{MetalTensor, Stored, restore_scales, restore_turned, tensors};
use model_formats::{Checkpoint, MetalError, MetalFile, Tensor};

use super::{CONFIG, GENERATION_CONFIG, OpenError, Store, end_tokens};

/// The place of what was converted among the shards.
pub(super) const CONVERTED: usize = 1;

impl<S: AsRef<[u8]> + From<Vec<u8>>> Store<S> {
    /// Opens the `model.bin` that is named `file` and has these bytes. `read` gives a small file whole.
    ///
    /// # Errors
    /// See [`OpenError`]: also when `config.json` describes another model.
    pub fn open_metal(
        file: &str,
        bytes: S,
        read: impl Fn(&str) -> std::io::Result<Vec<u8>>,
    ) -> Result<Store<S>, OpenError> {
        let read =
            |file: &str| read(file).map_err(|source| OpenError::Read { file: file.to_owned(), source });
        let published = GptOssConfig::parse(&read(CONFIG)?)?;
        let metal = MetalFile::parse(file, bytes.as_ref())?;
        let config = metal.check(&published)?;
        let end_tokens = end_tokens(&config, read(GENERATION_CONFIG))?;

        let tensors = tensors(&metal, &config);
        let converted: u64 = tensors.iter().filter(|t| is_converted(t)).map(|t| t.spec.byte_len()).sum();
        let mut memory = Vec::with_capacity(converted as usize);
        let mut checkpoint = Checkpoint {
            shards: vec![file.to_owned(), format!("{file}, converted")],
            ..Checkpoint::default()
        };
        let mut expert_stride = None;
        for tensor in &tensors {
            let (shard, range) = match &tensor.stored {
                Stored::Plain(range) => (0, range.clone()),
                Stored::Experts { start, bytes, stride } if !is_converted(tensor) => {
                    expert_stride = Some(*stride as usize);
                    (0, *start..start + (config.experts as u64 - 1) * stride + bytes)
                }
                _ => {
                    let first = memory.len() as u64;
                    convert(file, tensor, bytes.as_ref(), &config, &mut memory)?;
                    (CONVERTED, first..memory.len() as u64)
                }
            };
            let spec = &tensor.spec;
            let found = Tensor { dtype: spec.dtype, shape: spec.shape.clone(), range };
            checkpoint.tensors.insert(spec.name.clone(), Place { shard, tensor: found });
        }
        let shards = vec![bytes, S::from(memory)];
        Ok(Store { config, end_tokens, checkpoint, shards, expert_stride })
    }
}

/// Blocks, nine tenths of the file, and what is as published are used where they lie.
fn is_converted(tensor: &MetalTensor) -> bool {
    match tensor.stored {
        Stored::Plain(_) => false,
        Stored::Turned { .. } | Stored::ExpertScales { .. } => true,
        Stored::Experts { .. } => !tensor.spec.name.ends_with("_blocks"),
    }
}

/// Appends the published bytes to `memory`.
fn convert(
    file: &str,
    tensor: &MetalTensor,
    bytes: &[u8],
    config: &GptOssConfig,
    memory: &mut Vec<u8>,
) -> Result<(), MetalError> {
    // The reader checked that all of it lies inside the file, which is in memory.
    let slice = |range: Range<u64>| &bytes[range.start as usize..range.end as usize];
    let spec = &tensor.spec;
    let first = memory.len();
    match &tensor.stored {
        Stored::Plain(range) => memory.extend_from_slice(slice(range.clone())),
        Stored::Turned { range, factor } => {
            memory.resize(first + spec.byte_len() as usize, 0);
            let row = 2 * spec.shape.get(1).map_or(1, |columns| *columns as usize);
            restore_turned(slice(range.clone()), row, *factor, &mut memory[first..]);
        }
        Stored::Experts { start, bytes, stride } => {
            for expert in 0..config.experts as u64 {
                let start = start + expert * stride;
                memory.extend_from_slice(slice(start..start + bytes));
            }
        }
        Stored::ExpertScales { start, bytes, stride } => {
            memory.resize(first + spec.byte_len() as usize, 0);
            let one = *bytes as usize;
            for expert in 0..config.experts {
                let start = start + expert as u64 * stride;
                let stored = slice(start..start + bytes);
                restore_scales(stored, &mut memory[first + expert * one..][..one])
                    .map_err(|at| MetalError::scale(file, &spec.name, expert * one + at, stored[at]))?;
            }
        }
    }
    Ok(())
}
