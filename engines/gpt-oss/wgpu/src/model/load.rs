//! Brings the weights of a checkpoint to the device: from the mapped files, in pieces, so that they are not twice in memory.

use std::collections::VecDeque;

use engine_sdk::log;
use gpt_oss_model::GptOssConfig;
use gpt_oss_model::rope::Rotation;

use crate::adapters::Adapter;
use crate::device::{DeviceError, Gpu, Memory};
use crate::model::{Encoding, KeptWeights, WgpuModel, mapped};
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
    /// With [`Adapter::in_place`], which is Metal's, the model keeps the weights and reads those of files where they are, as far
    /// as it can: their bytes have to lie in mapped memory that nobody writes to. Otherwise, and what cannot be read there, is
    /// uploaded.
    ///
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
        weights: &KeptWeights,
        bounds: Bounds,
        known: &[bool],
        mut progress: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<WgpuModel, LoadError<E>> {
        assert_eq!(known.len(), config.vocabulary, "the tokenizer is that of another vocabulary");
        let mut model = WgpuModel::with_room(adapter, config, bounds, Some(weights))?;
        model.put_constants(known)?;
        let mut done = 0;
        let WgpuModel { gpu, layers, ends, .. } = &mut model;
        let mut put = |to: &Weight, tensors: Vec<String>| {
            if to.in_place {
                let parts = tensors.iter().flat_map(|tensor| weights.parts(tensor));
                done += parts.map(|part| part.len() as u64).sum::<u64>();
                return progress(done).map_err(LoadError::Stopped);
            }
            let mut at = 0;
            let parts = tensors.iter().flat_map(|tensor| weights.parts(tensor));
            for mut bytes in parts.flat_map(|part| part.chunks(PIECE_BYTES)) {
                while !bytes.is_empty() {
                    let (memory, within, room) = to.place(at);
                    let (now, later) = bytes.split_at(bytes.len().min(room));
                    gpu.upload(memory, within, now)?;
                    (bytes, at) = (later, at + now.len() as u64);
                    done += now.len() as u64;
                }
                progress(done).map_err(LoadError::Stopped)?;
            }
            Ok(())
        };
        ends.map(|field, to| put(to, tensors(field, None)))?;
        for (n, layer) in layers.iter().enumerate() {
            layer.map(|field, to| put(to, tensors(field, Some(n))))?;
        }
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
        weights: Option<&KeptWeights>,
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
        let mut allocate = |what: &'static str, layer: Option<usize>, extent: &Extent| {
            if let Some(weights) = weights.filter(|_| gpu.adapter().in_place) {
                let (own, beside) = (tensors(what, layer), among(what, layer));
                if let Some(weight) = mapped::in_place(&mut gpu, weights, what, extent, &own, &beside)? {
                    return Ok(weight);
                }
            }
            let pieces = extent.pieces(limit.min(weights_max)).map(|rows| {
                let memory = gpu.allocate(what, rows.len() as u64 * extent.row_bytes)?;
                Ok(Piece { rows, memory, tensor: Tensor::whole(memory), row_stride: extent.row_bytes })
            });
            pieces.collect::<Result<_, DeviceError>>().map(|pieces| Weight { pieces, in_place: false })
        };
        let ends = EndWeights::of(config).map(|what, extent| allocate(what, None, extent))?;
        let of_layer = LayerWeights::of(config);
        let layers: Result<Vec<LayerWeights<Weight>>, DeviceError> = (0..config.layers.len())
            .map(|n| of_layer.map(|what, extent| allocate(what, Some(n), extent)))
            .collect();
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

/// What a weight's tensors are called in a checkpoint, one behind the other; `layer` for those of one.
fn tensors(field: &'static str, layer: Option<usize>) -> Vec<String> {
    let names: &[&str] = match field {
        "embedding" => &["model.embed_tokens.weight"],
        "norm" => &["model.norm.weight"],
        "head" => &["lm_head.weight"],
        "attention_norm" => &["input_layernorm.weight"],
        "qkv" => &["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
        "qkv_bias" => &["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"],
        "sinks" => &["self_attn.sinks"],
        "out" => &["self_attn.o_proj.weight"],
        "out_bias" => &["self_attn.o_proj.bias"],
        "experts_norm" => &["post_attention_layernorm.weight"],
        "router" => &["mlp.router.weight"],
        "router_bias" => &["mlp.router.bias"],
        "up_blocks" => &["mlp.experts.gate_up_proj_blocks"],
        "up_scales" => &["mlp.experts.gate_up_proj_scales"],
        "up_bias" => &["mlp.experts.gate_up_proj_bias"],
        "down_blocks" => &["mlp.experts.down_proj_blocks"],
        "down_scales" => &["mlp.experts.down_proj_scales"],
        "down_bias" => &["mlp.experts.down_proj_bias"],
        other => unreachable!("no tensor is called {other}"),
    };
    let full = |name: &&str| layer.map_or_else(|| (*name).to_owned(), |n| format!("model.layers.{n}.{name}"));
    names.iter().map(full).collect()
}

/// Tensors of a layer whose parts lie among those of this one, where they lie apart.
fn among(field: &'static str, layer: Option<usize>) -> Vec<String> {
    match field {
        "up_blocks" | "down_blocks" => {
            ["up_blocks", "down_blocks"].into_iter().flat_map(|field| tensors(field, layer)).collect()
        }
        _ => Vec::new(),
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
