//! Brings the weights of a checkpoint to the device: from the mapped files, in pieces, so that they are not twice in memory.

use std::collections::VecDeque;

use engine_sdk::log;
use gpt_oss_model::rope::Rotation;
use gpt_oss_model::{GptOssConfig, Weights};

use crate::adapters::Adapter;
use crate::device::{DeviceError, Gpu, Memory};
use crate::model::{Encoding, WgpuModel};
use crate::ops::{Piece, Tensor, Weight, check_matrices, sample};
use crate::plan::{self, Bounds, EndWeights, Extent, KvGroups, LayerWeights, Needs, Workspace};
use crate::shaders::{Form, Shape};
use crate::testing::Failure;

/// Why loading, or a step, ended.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("stopped")]
    Stopped(E),
}

impl WgpuModel {
    /// `known`: of each token of the vocabulary, whether the tokenizer has it. `progress` is called with the bytes that are on their way so far.
    ///
    /// # Errors
    /// [`DeviceError::Unusable`] for a model that there are no kernels for; [`DeviceError::TooLarge`] before anything is
    /// allocated; otherwise of the device, or what `progress` gave. What was allocated is freed.
    ///
    /// # Panics
    /// When `known` is not as long as the vocabulary.
    pub fn load<E>(
        adapter: Adapter,
        config: &GptOssConfig,
        weights: &dyn Weights,
        bounds: Bounds,
        known: &[bool],
        mut progress: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<WgpuModel, LoadError<E>> {
        assert_eq!(known.len(), config.vocabulary, "the tokenizer is that of another vocabulary");
        let mut model = WgpuModel::with_room(adapter, config, bounds)?;
        model.put_constants(known)?;
        let mut done = 0;
        let WgpuModel { gpu, layers, ends, .. } = &mut model;
        let mut put = |to: &Weight, offset: u64, tensor: &str| {
            let mut at = offset;
            for mut bytes in weights.parts(tensor).into_iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
                while !bytes.is_empty() {
                    let (memory, within, room) = to.place(at);
                    let (now, later) = bytes.split_at(bytes.len().min(room));
                    gpu.upload(memory, within, now)?;
                    (bytes, at) = (later, at + now.len() as u64);
                    done += now.len() as u64;
                }
                progress(done).map_err(LoadError::Stopped)?;
            }
            Ok::<u64, LoadError<E>>(at - offset)
        };
        put(&ends.embedding, 0, "model.embed_tokens.weight")?;
        for (n, layer) in layers.iter().enumerate() {
            let name = |tensor: &str| format!("model.layers.{n}.{tensor}");
            for (kind, to) in [("weight", &layer.qkv), ("bias", &layer.qkv_bias)] {
                let mut offset = 0;
                for part in ["q", "k", "v"] {
                    offset += put(to, offset, &name(&format!("self_attn.{part}_proj.{kind}")))?;
                }
            }
            let places = [
                (&layer.attention_norm, "input_layernorm.weight"),
                (&layer.sinks, "self_attn.sinks"),
                (&layer.out, "self_attn.o_proj.weight"),
                (&layer.out_bias, "self_attn.o_proj.bias"),
                (&layer.experts_norm, "post_attention_layernorm.weight"),
                (&layer.router, "mlp.router.weight"),
                (&layer.router_bias, "mlp.router.bias"),
                (&layer.up_blocks, "mlp.experts.gate_up_proj_blocks"),
                (&layer.up_scales, "mlp.experts.gate_up_proj_scales"),
                (&layer.up_bias, "mlp.experts.gate_up_proj_bias"),
                (&layer.down_blocks, "mlp.experts.down_proj_blocks"),
                (&layer.down_scales, "mlp.experts.down_proj_scales"),
                (&layer.down_bias, "mlp.experts.down_proj_bias"),
            ];
            for (to, tensor) in places {
                put(to, 0, &name(tensor))?;
            }
        }
        put(&ends.norm, 0, "model.norm.weight")?;
        put(&ends.head, 0, "lm_head.weight")?;
        model.gpu.wait()?;
        Ok(model)
    }

    pub(crate) fn put_constants(&mut self, known: &[bool]) -> Result<(), DeviceError> {
        let constants: Vec<u8> = sample::constants(known).into_iter().flat_map(u32::to_ne_bytes).collect();
        self.gpu.upload(self.workspace.sample_constants, 0, &constants)
    }

    /// With everything allocated, and weights of 0.
    ///
    /// # Errors
    /// As `load`.
    pub(crate) fn with_room(
        adapter: Adapter,
        config: &GptOssConfig,
        bounds: Bounds,
    ) -> Result<WgpuModel, DeviceError> {
        if let Some(why) = plan::unsupported(config) {
            return Err(DeviceError::Unusable { id: adapter.id, name: adapter.name, why });
        }
        let shape = Shape::of(config);
        let mut gpu = Gpu::open(proven(adapter, shape), shape)?;
        let (wanted, what) = Needs::of(config, bounds).largest;
        let (limit, weights_max) = (gpu.buffer_max(), gpu.adapter().weights_max);
        if wanted > limit {
            return Err(DeviceError::TooLarge { what: what.to_owned(), wanted, limit });
        }
        let groups = KvGroups::of(config);
        let mut allocate = |what: &'static str, bytes: &u64| gpu.allocate(what, *bytes);
        let workspace = Workspace::of(config, bounds).map(&mut allocate)?;
        let layer_bytes = groups.layer_bytes(config, bounds.blocks);
        let kv: Result<Vec<Memory>, DeviceError> =
            (0..groups.layers_a_group).map(|_| allocate(plan::KV, &layer_bytes)).collect();
        let kv = kv?;
        let mut allocate = |what: &'static str, extent: &Extent| {
            let pieces = extent.pieces(limit.min(weights_max)).map(|rows| {
                let memory = gpu.allocate(what, rows.len() as u64 * extent.row_bytes)?;
                Ok(Piece { rows, memory, tensor: Tensor::whole(memory) })
            });
            pieces.collect::<Result<_, DeviceError>>().map(|pieces| Weight { pieces })
        };
        let ends = EndWeights::of(config).map(&mut allocate)?;
        let layers: Result<Vec<LayerWeights<Weight>>, DeviceError> =
            config.layers.iter().map(|_| LayerWeights::of(config).map(&mut allocate)).collect();
        let layers = layers?;
        Ok(WgpuModel {
            rotation: Rotation::new(&config.rope, config.head_dim),
            config: config.clone(),
            gpu,
            bounds,
            groups,
            layers,
            ends,
            workspace,
            kv,
            under_way: VecDeque::new(),
            last: Vec::new(),
            body: None,
            encoding: Encoding::default(),
        })
    }
}

/// The adapter, and without its matrices where they do not give what they have to.
fn proven(mut adapter: Adapter, shape: Shape) -> Adapter {
    if matches!(adapter.form, Form::Matrices { .. }) {
        let limitless = Adapter { memory_max: None, ..adapter.clone() };
        let tried = Gpu::open(limitless, shape).map_err(Failure::from);
        if let Err(why) = tried.and_then(|mut gpu| check_matrices(&mut gpu)) {
            log::warn(format_args!("{}: cooperative matrices are not used: {why}", adapter.id));
            adapter.form = Form::Subgroups;
        }
    }
    adapter
}

/// Progress is told after so many bytes.
const PIECE_BYTES: usize = 64 << 20;
