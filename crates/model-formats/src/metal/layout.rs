//! Where each published tensor lies in a `model.bin`, and how its bytes become those that were published.

use std::ops::Range;

use super::{ALIGNMENT, MetalError, MetalFile, PAGE};
use crate::gpt_oss::{self, GptOssConfig, TensorSpec};
use crate::mxfp4::{BLOCK, BLOCK_BYTES, bf16_to_f32};

/// What is added to every scale of an expert.
pub(super) const SCALE_SHIFT: u8 = 14;
/// What queries and keys are multiplied by: together the 1/8 of heads of 64.
pub(super) const QUERY_FACTOR: f32 = 0.5;
pub(super) const KEY_FACTOR: f32 = 0.25;
pub(super) const HEAD_ROWS: usize = super::HEAD_DIM as usize;
const BF16: u64 = 2;

/// A tensor of the published checkpoint, found in a `model.bin`.
#[derive(Debug, Clone, PartialEq)]
pub struct MetalTensor {
    pub spec: TensorSpec,
    pub stored: Stored,
}

/// In which form a tensor is there.
#[derive(Debug, Clone, PartialEq)]
pub enum Stored {
    /// As published.
    Plain(Range<u64>),
    /// Rows of queries or keys, which [`restore_turned`] puts back with this factor.
    Turned { range: Range<u64>, factor: f32 },
    /// One piece for each expert, `bytes` long, the first at `start` and the others `stride` behind one another.
    Experts { start: u64, bytes: u64, stride: u64 },
    /// The same of scales, which [`restore_scales`] puts back.
    ExpertScales { start: u64, bytes: u64, stride: u64 },
}

/// Every tensor that [`gpt_oss::tensors`] lists for `config`, which is what [`MetalFile::check`] gave.
pub fn tensors(metal: &MetalFile, config: &GptOssConfig) -> Vec<MetalTensor> {
    let places = Places::of(metal);
    gpt_oss::tensors(config)
        .into_iter()
        .map(|spec| {
            let stored = places.stored(&spec.name);
            MetalTensor { spec, stored }
        })
        .collect()
}

/// The end of the last expert, which is that of the file.
pub(super) fn end(metal: &MetalFile) -> u64 {
    let places = Places::of(metal);
    let before = u64::from(metal.head.layers) - 1;
    places.experts + before * places.experts_of_layer.next_multiple_of(PAGE) + places.experts_of_layer
}

/// Offsets that follow from the shape.
struct Places {
    /// Of the embedding.
    weights: u64,
    /// Bytes of a row of the residual stream, of embedding or output matrix, and of what a layer has besides experts.
    hidden: u64,
    matrix: u64,
    layer: Layer,
    layer_bytes: u64,
    layers: u64,
    /// Of the first layer's experts.
    experts: u64,
    expert: Expert,
    expert_bytes: u64,
    experts_of_layer: u64,
    /// Rows.
    query: u64,
    kv: u64,
}

/// Offsets from the start of a layer.
struct Layer {
    qkv: u64,
    qkv_bias: u64,
    sinks: u64,
    out: u64,
    out_bias: u64,
    experts_norm: u64,
    router: u64,
    router_bias: u64,
}

/// Offsets from the start of an expert, and bytes: blocks, scales, bias of each matrix.
struct Expert {
    up: [(u64, u64); 3],
    down: [(u64, u64); 3],
}

/// Places things one behind the other at multiples of [`ALIGNMENT`].
#[derive(Default)]
struct Cursor(u64);

impl Cursor {
    fn place(&mut self, bytes: u64) -> u64 {
        let start = self.0;
        self.0 = (start + bytes).next_multiple_of(ALIGNMENT);
        start
    }
}

impl Places {
    fn of(metal: &MetalFile) -> Places {
        // Every number is below a limit: products of two of them and 2^10 layers stay below 2^63.
        let head = &metal.head;
        let (hidden, inter) = (u64::from(head.hidden), u64::from(head.intermediate));
        let (heads, experts) = (u64::from(head.heads), u64::from(head.experts));
        let query = heads * HEAD_ROWS as u64;
        let kv = u64::from(head.kv_heads) * HEAD_ROWS as u64;
        let qkv = query + 2 * kv;

        let mut cursor = Cursor::default();
        let attention_norm = cursor.place(hidden * BF16);
        debug_assert_eq!(attention_norm, 0);
        let layer = Layer {
            qkv: cursor.place(qkv * hidden * BF16),
            qkv_bias: cursor.place(qkv * BF16),
            sinks: cursor.place(heads * BF16),
            out: cursor.place(hidden * query * BF16),
            out_bias: cursor.place(hidden * BF16),
            experts_norm: cursor.place(hidden * BF16),
            router: cursor.place(experts * hidden * BF16),
            router_bias: cursor.place(experts * BF16),
        };
        let layer_bytes = cursor.0;

        let mut cursor = Cursor::default();
        let mut matrix = |rows: u64, columns: u64| {
            let scales = rows * (columns / BLOCK as u64);
            [scales * BLOCK_BYTES as u64, scales, rows * BF16].map(|bytes| (cursor.place(bytes), bytes))
        };
        let expert = Expert { up: matrix(2 * inter, hidden), down: matrix(hidden, inter) };
        let expert_bytes = cursor.0;

        let mut cursor = Cursor(metal.weights);
        let embedding = u64::from(metal.vocabulary) * hidden * BF16;
        cursor.place(embedding);
        let layers = u64::from(head.layers);
        cursor.place(layers * layer_bytes);
        cursor.place(hidden * BF16);
        cursor.place(embedding);
        Places {
            weights: metal.weights,
            hidden: hidden * BF16,
            matrix: embedding,
            layer,
            layer_bytes,
            layers,
            experts: cursor.0.next_multiple_of(PAGE),
            expert,
            expert_bytes,
            experts_of_layer: experts * expert_bytes,
            query,
            kv,
        }
    }

    fn stored(&self, name: &str) -> Stored {
        let plain = |start: u64, bytes: u64| Stored::Plain(start..start + bytes);
        let first_layer = self.weights + self.matrix.next_multiple_of(ALIGNMENT);
        let norm = first_layer + self.layers * self.layer_bytes;
        match name {
            "model.embed_tokens.weight" => return plain(self.weights, self.matrix),
            "model.norm.weight" => return plain(norm, self.hidden),
            "lm_head.weight" => return plain(norm + self.hidden.next_multiple_of(ALIGNMENT), self.matrix),
            _ => {}
        }
        let (layer, rest) = layer_of(name);
        let (at, of) = (first_layer + layer * self.layer_bytes, &self.layer);
        let columns = self.hidden;
        // Queries, keys and values of a layer are one matrix and one bias.
        let turned = |start: u64, row: u64, first: u64, rows: u64, factor: f32| Stored::Turned {
            range: start + first * row..start + (first + rows) * row,
            factor,
        };
        let (weights, biases) = (at + of.qkv, at + of.qkv_bias);
        match rest {
            "input_layernorm.weight" => plain(at, self.hidden),
            "self_attn.q_proj.weight" => turned(weights, columns, 0, self.query, QUERY_FACTOR),
            "self_attn.k_proj.weight" => turned(weights, columns, self.query, self.kv, KEY_FACTOR),
            "self_attn.v_proj.weight" => plain(weights + (self.query + self.kv) * columns, self.kv * columns),
            "self_attn.q_proj.bias" => turned(biases, BF16, 0, self.query, QUERY_FACTOR),
            "self_attn.k_proj.bias" => turned(biases, BF16, self.query, self.kv, KEY_FACTOR),
            "self_attn.v_proj.bias" => plain(biases + (self.query + self.kv) * BF16, self.kv * BF16),
            "self_attn.sinks" => plain(at + of.sinks, self.query / HEAD_ROWS as u64 * BF16),
            "self_attn.o_proj.weight" => plain(at + of.out, self.hidden * self.query),
            "self_attn.o_proj.bias" => plain(at + of.out_bias, self.hidden),
            "post_attention_layernorm.weight" => plain(at + of.experts_norm, self.hidden),
            "mlp.router.weight" => {
                plain(at + of.router, self.experts_of_layer / self.expert_bytes * self.hidden)
            }
            "mlp.router.bias" => plain(at + of.router_bias, self.experts_of_layer / self.expert_bytes * BF16),
            _ => self.stored_expert(layer, rest),
        }
    }

    fn stored_expert(&self, layer: u64, name: &str) -> Stored {
        let parts = if name.contains("gate_up_proj") { &self.expert.up } else { &self.expert.down };
        let at = self.experts + layer * self.experts_of_layer.next_multiple_of(PAGE);
        let stride = self.expert_bytes;
        let part = |n: usize| (at + parts[n].0, parts[n].1);
        if name.ends_with("_scales") {
            let (start, bytes) = part(1);
            return Stored::ExpertScales { start, bytes, stride };
        }
        let (start, bytes) = part(if name.ends_with("_blocks") { 0 } else { 2 });
        Stored::Experts { start, bytes, stride }
    }
}

/// `model.layers.7.mlp.router.bias` is `mlp.router.bias` of layer 7.
fn layer_of(name: &str) -> (u64, &str) {
    let rest = name.strip_prefix("model.layers.").expect("all other tensors are of a layer");
    let (number, rest) = rest.split_once('.').expect("a layer's tensor has a name");
    (number.parse().expect("layers have numbers"), rest)
}

/// Puts rows of queries or keys, or their biases, back into the published order and size: `stored` has bf16 numbers,
/// `row_bytes` bytes in a row, 64 rows a head; `out` is as long. Exact, unless a number is beyond the largest of its type.
///
/// # Panics
/// When the lengths are not those of whole heads: the caller's mistake.
pub fn restore_turned(stored: &[u8], row_bytes: usize, factor: f32, out: &mut [u8]) {
    let head_bytes = HEAD_ROWS * row_bytes;
    assert!(stored.len() == out.len() && stored.len().is_multiple_of(head_bytes), "not whole heads");
    for (stored, out) in stored.chunks_exact(head_bytes).zip(out.chunks_exact_mut(head_bytes)) {
        for (n, row) in stored.chunks_exact(row_bytes).enumerate() {
            let place = n / 2 + n % 2 * (HEAD_ROWS / 2);
            let out = &mut out[place * row_bytes..][..row_bytes];
            for (number, out) in row.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = scaled(*number, 1.0 / factor);
            }
        }
    }
}

/// The same the other way.
pub(super) fn turn(published: &[u8], row_bytes: usize, factor: f32) -> Vec<u8> {
    let head_bytes = HEAD_ROWS * row_bytes;
    let mut out = Vec::with_capacity(published.len());
    for head in published.chunks_exact(head_bytes) {
        for n in 0..HEAD_ROWS {
            let place = n / 2 + n % 2 * (HEAD_ROWS / 2);
            let row = &head[place * row_bytes..][..row_bytes];
            out.extend(row.as_chunks::<2>().0.iter().flat_map(|number| scaled(*number, factor)));
        }
    }
    out
}

/// A bf16 number times a power of two: what is cut off is zero, but of numbers too small to be normal.
fn scaled(number: [u8; 2], factor: f32) -> [u8; 2] {
    let product = bf16_to_f32(u16::from_le_bytes(number)) * factor;
    ((product.to_bits() >> 16) as u16).to_le_bytes()
}

/// Puts scales of an expert back to the published ones.
///
/// # Errors
/// The place of one that is too small.
pub fn restore_scales(stored: &[u8], out: &mut [u8]) -> Result<(), usize> {
    assert_eq!(stored.len(), out.len());
    for (at, (stored, out)) in stored.iter().zip(out).enumerate() {
        *out = stored.checked_sub(SCALE_SHIFT).ok_or(at)?;
    }
    Ok(())
}

impl MetalError {
    /// Of what [`restore_scales`] found in a tensor.
    pub fn scale(file: &str, tensor: &str, at: usize, scale: u8) -> MetalError {
        MetalError::Scale { file: file.to_owned(), tensor: tensor.to_owned(), at, scale }
    }
}
