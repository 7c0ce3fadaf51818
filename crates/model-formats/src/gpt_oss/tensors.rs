//! Names, types and shapes of a gpt-oss checkpoint, in the published order.

use crate::checkpoint::Checkpoint;
use crate::gpt_oss::GptOssConfig;
use crate::mxfp4::{BLOCK, BLOCK_BYTES};
use crate::safetensors::Dtype;

/// A tensor that the checkpoint has to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
}

impl TensorSpec {
    /// Bytes of the tensor's data.
    pub fn byte_len(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.bits() / 8
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("tensor {tensor} is missing; config.json says the checkpoint has it")]
    Missing { tensor: String },
    #[error("{file}: tensor {tensor} is {found}, not {expected}")]
    Dtype { file: String, tensor: String, found: Dtype, expected: Dtype },
    #[error("{file}: tensor {tensor} has shape {found:?}; config.json makes it {expected:?}")]
    Shape { file: String, tensor: String, found: Vec<u64>, expected: Vec<u64> },
    #[error("{file}: tensor {tensor} is not part of the model that config.json describes")]
    Unexpected { file: String, tensor: String },
}

/// Every tensor of the model: layers sorted as strings (0, 1, 10, 11, …, 2), then embedding, norm and head. All
/// matrices are row-major `[outputs, inputs]`.
pub fn tensors(config: &GptOssConfig) -> Vec<TensorSpec> {
    let mut out = Vec::new();
    let mut order: Vec<usize> = (0..config.layers.len()).collect();
    order.sort_by_key(usize::to_string);
    for layer in order {
        layer_tensors(config, layer, &mut out);
    }
    let (vocabulary, hidden) = (config.vocabulary as u64, config.hidden as u64);
    out.push(bf16("model.embed_tokens.weight".to_owned(), &[vocabulary, hidden]));
    out.push(bf16("model.norm.weight".to_owned(), &[hidden]));
    out.push(bf16("lm_head.weight".to_owned(), &[vocabulary, hidden]));
    out
}

fn layer_tensors(config: &GptOssConfig, layer: usize, out: &mut Vec<TensorSpec>) {
    let (hidden, inter, experts) = (config.hidden as u64, config.intermediate as u64, config.experts as u64);
    let (query, kv) = (config.query_width() as u64, config.kv_width() as u64);
    let name = |rest: &str| format!("model.layers.{layer}.{rest}");
    let u8 =
        |rest: &str, shape: &[u64]| TensorSpec { name: name(rest), dtype: Dtype::U8, shape: shape.to_vec() };
    let (block, bytes) = (BLOCK as u64, BLOCK_BYTES as u64);
    out.extend([
        bf16(name("input_layernorm.weight"), &[hidden]),
        bf16(name("self_attn.o_proj.bias"), &[hidden]),
        bf16(name("self_attn.o_proj.weight"), &[hidden, query]),
        bf16(name("self_attn.q_proj.bias"), &[query]),
        bf16(name("self_attn.k_proj.bias"), &[kv]),
        bf16(name("self_attn.v_proj.bias"), &[kv]),
        bf16(name("self_attn.q_proj.weight"), &[query, hidden]),
        bf16(name("self_attn.k_proj.weight"), &[kv, hidden]),
        bf16(name("self_attn.v_proj.weight"), &[kv, hidden]),
        bf16(name("self_attn.sinks"), &[config.heads as u64]),
        bf16(name("mlp.router.bias"), &[experts]),
        bf16(name("mlp.router.weight"), &[experts, hidden]),
        bf16(name("mlp.experts.gate_up_proj_bias"), &[experts, 2 * inter]),
        u8("mlp.experts.gate_up_proj_blocks", &[experts, 2 * inter, hidden / block, bytes]),
        u8("mlp.experts.gate_up_proj_scales", &[experts, 2 * inter, hidden / block]),
        bf16(name("mlp.experts.down_proj_bias"), &[experts, hidden]),
        u8("mlp.experts.down_proj_blocks", &[experts, hidden, inter / block, bytes]),
        u8("mlp.experts.down_proj_scales", &[experts, hidden, inter / block]),
        bf16(name("post_attention_layernorm.weight"), &[hidden]),
    ]);
}

fn bf16(name: String, shape: &[u64]) -> TensorSpec {
    TensorSpec { name, dtype: Dtype::BF16, shape: shape.to_vec() }
}

/// Checks that the checkpoint has exactly the tensors of [`tensors`].
///
/// # Errors
/// Names the tensor, and the file it is in.
pub fn check_tensors(config: &GptOssConfig, checkpoint: &Checkpoint) -> Result<(), TensorError> {
    let specs = tensors(config);
    for spec in &specs {
        let Some(place) = checkpoint.tensors.get(&spec.name) else {
            return Err(TensorError::Missing { tensor: spec.name.clone() });
        };
        let (file, tensor) = (checkpoint.shards[place.shard].clone(), spec.name.clone());
        if place.tensor.dtype != spec.dtype {
            let (found, expected) = (place.tensor.dtype, spec.dtype);
            return Err(TensorError::Dtype { file, tensor, found, expected });
        }
        if place.tensor.shape != spec.shape {
            let (found, expected) = (place.tensor.shape.clone(), spec.shape.clone());
            return Err(TensorError::Shape { file, tensor, found, expected });
        }
    }
    if checkpoint.tensors.len() > specs.len() {
        let known: std::collections::HashSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
        let extra = checkpoint.tensors.iter().find(|(name, _)| !known.contains(name.as_str()));
        let (name, place) = extra.expect("more tensors than known names");
        let file = checkpoint.shards[place.shard].clone();
        return Err(TensorError::Unexpected { file, tensor: name.clone() });
    }
    Ok(())
}
