//! Brings the weights of a checkpoint to the device: from the mapped files, once, without a copy of our own.

use gpt_oss_model::{GptOssConfig, Weights};

use crate::device::{Address, Device, DeviceError};
use crate::plan::{EndsLayout, LayerLayout};

/// Bytes of one upload: progress is told after each.
const PIECE_BYTES: usize = 64 << 20;

/// Where the weights of a model lie on a device.
#[derive(Debug)]
pub struct DeviceWeights {
    pub ends: (Address, EndsLayout),
    pub layers: Vec<Address>,
    pub layer: LayerLayout,
}

/// Why loading ended.
#[derive(Debug)]
pub enum LoadError<E> {
    Device(DeviceError),
    /// Progress said so.
    Stopped(E),
}

impl<E> From<DeviceError> for LoadError<E> {
    fn from(error: DeviceError) -> LoadError<E> {
        LoadError::Device(error)
    }
}

impl DeviceWeights {
    /// `progress` is called with the bytes that are on their way so far.
    ///
    /// # Errors
    /// Of the device, or what `progress` gave. What was allocated is freed with the device.
    pub fn load<E>(
        device: &dyn Device,
        config: &GptOssConfig,
        weights: &dyn Weights,
        mut progress: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<DeviceWeights, LoadError<E>> {
        let (ends, layer) = (EndsLayout::of(config), LayerLayout::of(config));
        let ends_at = device.allocate(ends.bytes)?;
        let layers: Result<Vec<_>, _> = config.layers.iter().map(|_| device.allocate(layer.bytes)).collect();
        let layers = layers?;
        let mut done = 0;
        let mut put = |to: Address, tensor: &str| {
            let mut offset = 0;
            for piece in weights.parts(tensor).into_iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
                device.upload(to.offset(offset), piece)?;
                offset += piece.len() as u64;
                done += piece.len() as u64;
                progress(done).map_err(LoadError::Stopped)?;
            }
            Ok::<u64, LoadError<E>>(offset)
        };
        put(ends_at.offset(ends.embedding), "model.embed_tokens.weight")?;
        for (n, at) in layers.iter().enumerate() {
            let name = |tensor: &str| format!("model.layers.{n}.{tensor}");
            for kind in ["weight", "bias"] {
                let mut to = at.offset(if kind == "weight" { layer.qkv } else { layer.qkv_bias });
                for part in ["q", "k", "v"] {
                    to = to.offset(put(to, &name(&format!("self_attn.{part}_proj.{kind}")))?);
                }
            }
            let places = [
                (layer.attention_norm, "input_layernorm.weight"),
                (layer.sinks, "self_attn.sinks"),
                (layer.out, "self_attn.o_proj.weight"),
                (layer.out_bias, "self_attn.o_proj.bias"),
                (layer.experts_norm, "post_attention_layernorm.weight"),
                (layer.router, "mlp.router.weight"),
                (layer.router_bias, "mlp.router.bias"),
                (layer.up_blocks, "mlp.experts.gate_up_proj_blocks"),
                (layer.up_scales, "mlp.experts.gate_up_proj_scales"),
                (layer.up_bias, "mlp.experts.gate_up_proj_bias"),
                (layer.down_blocks, "mlp.experts.down_proj_blocks"),
                (layer.down_scales, "mlp.experts.down_proj_scales"),
                (layer.down_bias, "mlp.experts.down_proj_bias"),
            ];
            for (place, tensor) in places {
                put(at.offset(place), &name(tensor))?;
            }
        }
        put(ends_at.offset(ends.norm), "model.norm.weight")?;
        put(ends_at.offset(ends.head), "lm_head.weight")?;
        Ok(DeviceWeights { ends: (ends_at, ends), layers, layer })
    }
}
