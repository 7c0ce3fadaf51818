//! The forward pass over rows of several sequences.

mod dense;
mod needs;

use std::ops::Range;

use gpt_oss_model::rope::{Rotation, rotate};
use gpt_oss_model::{Bf16, GptOssConfig, Store, Weights};

use crate::attention::{Arithmetic, AttentionSpan, Heads, attend};
use crate::experts::{ExpertMatrix, ExpertWeights, mix};
use crate::kernel::{Activations, Choice, Isa, Order, Rows, table};
use crate::kv::{Kv, KvFormat, KvShape, RowParts, StoredRows, Table};
use crate::linear::{Affine, Compute, Inputs, QuantizedRows, linear, token_ends};
use crate::mapped::Mapped;
use crate::math::rms_norm;
use crate::pool::Pool;
use crate::spent::{Clock, Part, Spent};

pub use dense::{DenseBytes, DenseCopy, PrepareError};
pub use needs::Needs;

/// A model whose weights are mapped files.
#[derive(Debug)]
pub struct CpuModel {
    store: Store<Mapped>,
    rotation: Rotation,
    layers: Vec<LayerRanges>,
    embedding: Place,
    norm: Place,
    head: Matrix,
    /// Stands for the stored matrices of attention and output.
    dense: Option<DenseCopy>,
    pool: Pool,
    isa: Isa,
    order: Order,
    kv_format: KvFormat,
    activations: Activations,
    clock: Clock,
}

/// Consecutive new tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// Of the first of the tokens.
    pub position: usize,
    /// Not empty, and below the vocabulary.
    pub tokens: &'a [u32],
    /// Of each group of the [`KvShape`]: where keys and values of all positions are that a token looks at, its own
    /// included. No other span writes to the blocks in which the tokens' own are.
    pub tables: &'a [Table<'a>],
    /// Whether the logits after the last token are wanted.
    pub wants_logits: bool,
}

/// Where a tensor is: shard and bytes. Looking names up a few hundred times a token would cost more than it looks.
#[derive(Debug, Clone)]
struct Place {
    shard: usize,
    range: Range<usize>,
}

/// A stored matrix for which there may be a copy.
#[derive(Debug)]
struct Matrix {
    stored: Place,
    /// Among all such matrices.
    number: usize,
    columns: usize,
}

#[derive(Debug)]
struct LayerRanges {
    attention_norm: Place,
    q: (Matrix, Place),
    k: (Matrix, Place),
    v: (Matrix, Place),
    o: (Matrix, Place),
    sinks: Place,
    experts_norm: Place,
    router: (Place, Place),
    /// Blocks, scales, bias.
    gate_up: (Place, Place, Place),
    down: (Place, Place, Place),
}

/// What a layer's attention makes. It is kept from layer to layer: memory that is asked for anew is cleared first, by one
/// thread.
#[derive(Default)]
struct Attended {
    /// Queries, keys and values, (rows, their widths).
    projected: Vec<f32>,
    /// What the heads made, (rows, heads, head_dim).
    mixed: Vec<f32>,
}

/// What a forward pass needs to know of one of its rows.
#[derive(Debug, Clone, Copy)]
struct RowPlace {
    token: u32,
    position: usize,
    wants_logits: bool,
}

impl CpuModel {
    pub fn new(store: Store<Mapped>, pool: Pool, isa: Isa) -> CpuModel {
        let place = |name: &str| {
            let place = &store.checkpoint().tensors[name];
            let range = &place.tensor.range;
            Place { shard: place.shard, range: range.start as usize..range.end as usize }
        };
        let config = store.config();
        let layers: Vec<_> = (0..config.layers.len()).map(|n| LayerRanges::new(n, config, place)).collect();
        let head = Matrix {
            stored: place("lm_head.weight"),
            number: layers.len() * dense::MATRICES_A_LAYER,
            columns: config.hidden,
        };
        CpuModel {
            rotation: Rotation::new(&config.rope, config.head_dim),
            layers,
            embedding: place("model.embed_tokens.weight"),
            norm: place("model.norm.weight"),
            head,
            dense: None,
            store,
            pool,
            isa,
            order: Order::Fastest,
            kv_format: KvFormat::F32,
            activations: Activations::Int8,
            clock: Clock::default(),
        }
    }

    /// With other activations than those of eight bits.
    #[must_use]
    pub fn with_activations(self, activations: Activations) -> CpuModel {
        CpuModel { activations, ..self }
    }

    /// The result of a row has the same bits whatever rows are beside it and however its sequence is cut, at the cost
    /// of a slower single sequence with AVX-512, and of activations that are never rounded to bf16.
    #[must_use]
    pub fn deterministic(self) -> CpuModel {
        CpuModel { order: Order::Invariant, ..self }
    }

    /// With keys and values kept in another form than f32.
    #[must_use]
    pub fn with_kv_format(self, kv_format: KvFormat) -> CpuModel {
        CpuModel { kv_format, ..self }
    }

    pub fn store(&self) -> &Store<Mapped> {
        &self.store
    }

    pub fn config(&self) -> &GptOssConfig {
        self.store.config()
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What activations are when they are multiplied.
    pub fn activations(&self) -> Activations {
        self.activations.with(self.isa, self.order)
    }

    /// Which kernels multiply what.
    pub fn kernels(&self) -> Vec<Choice> {
        table(self.isa, self.activations, self.order)
    }

    /// Where the time of all forward passes so far went.
    pub fn spent(&self) -> Spent {
        self.clock.spent()
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Whether each thread stays on a processor of its own while a step is computed.
    pub fn is_pinned(&self) -> bool {
        self.pool.is_pinned()
    }

    /// How its keys and values lie in blocks.
    pub fn kv_shape(&self) -> KvShape {
        KvShape::of(self.config(), self.kv_format)
    }

    /// Runs the tokens of all spans through the model, stores their keys and values, and writes the logits of the spans
    /// that want them, in order, to `logits`: (wanting spans, vocabulary). `each_layer(done, total)` is called after
    /// every layer; with an error from it the pass ends there.
    ///
    /// # Errors
    /// What `each_layer` gave. The tokens' own places then hold garbage.
    ///
    /// # Panics
    /// When a table lacks a position that is looked at, a token is beyond the vocabulary, or `logits` is of another
    /// size.
    pub fn forward<E>(
        &self,
        spans: &[Span<'_>],
        kv: &mut Kv,
        logits: &mut [f32],
        each_layer: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        self.clock.timed(Part::All, || self.pass(spans, kv, logits, each_layer))
    }

    fn pass<E>(
        &self,
        spans: &[Span<'_>],
        kv: &mut Kv,
        logits: &mut [f32],
        mut each_layer: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let config = self.config();
        let wanted = spans.iter().filter(|s| s.wants_logits).count();
        assert_eq!(logits.len(), wanted * config.vocabulary, "logits of another size");
        let _pinned = self.pool.enter();
        assert_eq!(kv.shape().format(), self.kv_format, "keys and values of another form");
        let mut rows = begin(spans, kv);
        let mut x = self.embed(&rows);
        let turns = self.turns(&rows);
        let total = self.layers.len() as u64 + 1;
        let mut attended = Attended::default();
        for (n, layer) in self.layers.iter().enumerate() {
            let last = n + 1 == self.layers.len();
            self.attention(n, layer, spans, &turns, &x, kv, &mut attended);
            if last {
                // Nobody looks at the other rows any more: their keys and values are stored.
                keep_wanted(&mut rows, &mut x, config.hidden);
            }
            if rows.is_empty() {
                break;
            }
            let wanted = last.then(|| wanted_only(spans, &attended.mixed, config.query_width()));
            self.finish_layer(layer, wanted.as_ref().unwrap_or(&attended.mixed), &mut x);
            each_layer(n as u64 + 1, total)?;
        }
        if wanted > 0 {
            let t = self.normed(&self.norm, &x, self.dense.is_some());
            let head = Affine { weights: self.matrix(&self.head), bias: None };
            self.product(&[head], &t, false, logits);
        }
        each_layer(total, total)
    }

    /// (rows, hidden)
    fn embed(&self, rows: &[RowPlace]) -> Vec<f32> {
        let hidden = self.config().hidden;
        let embedding = self.bf16(&self.embedding);
        let mut x = vec![0.0; rows.len() * hidden];
        self.pool.tiles(&mut x, hidden, &token_ends(rows.len(), hidden), hidden, |tile| {
            for row in tile.rows() {
                let token = rows[row].token as usize;
                assert!(token < self.config().vocabulary, "token {token} is beyond the vocabulary");
                tile.row(row).iter_mut().zip(embedding.row(token, hidden).iter()).for_each(|(x, e)| *x = e);
            }
        });
        x
    }

    /// Cosines and then sines of each row's position, (rows, head_dim): the same for all heads and layers.
    fn turns(&self, rows: &[RowPlace]) -> Vec<f32> {
        let head_dim = self.config().head_dim;
        let mut turns = vec![0.0; rows.len() * head_dim];
        self.pool.tiles(&mut turns, head_dim, &token_ends(rows.len(), head_dim), head_dim, |tile| {
            for row in tile.rows() {
                let (cos, sin) = self.rotation.at(rows[row].position as u32);
                let (cos_out, sin_out) = tile.row(row).split_at_mut(head_dim / 2);
                cos_out.copy_from_slice(&cos);
                sin_out.copy_from_slice(&sin);
            }
        });
        turns
    }

    /// Queries, keys and values of the rows; stores the latter two; leaves what the heads made in `attended`.
    #[expect(clippy::too_many_arguments, reason = "one part of one function")]
    fn attention(
        &self,
        n: usize,
        layer: &LayerRanges,
        spans: &[Span<'_>],
        turns: &[f32],
        x: &[f32],
        kv: &mut Kv,
        attended: &mut Attended,
    ) {
        let GptOssConfig { head_dim, kv_heads, .. } = *self.config();
        let (query_width, kv_width) = (self.config().query_width(), self.config().kv_width());
        let rows = x.len() / self.config().hidden;
        let t = self.normed(&layer.attention_norm, x, self.dense.is_some());
        // Queries, keys and values of a row lie one after the other: one piece of work for all threads instead of three.
        let width = query_width + 2 * kv_width;
        let Attended { projected, mixed } = attended;
        projected.resize(rows * width, 0.0);
        mixed.resize(rows * query_width, 0.0);
        let matrices = [&layer.q, &layer.k, &layer.v].map(|m| self.affine(m));
        self.product(&matrices, &t, false, projected);
        let part = |start: usize, end: usize| RowParts { numbers: projected, width, columns: (start, end) };
        let queries = part(0, query_width);
        let keys = part(query_width, query_width + kv_width);
        let values = part(query_width + kv_width, width);
        self.clock.timed(Part::Attention, || {
            let stored: Vec<StoredRows<'_>> = row_ranges(spans)
                .zip(spans)
                .map(|(rows, span)| StoredRows { tables: span.tables, rows, position: span.position })
                .collect();
            kv.store(&self.pool, n, &stored, keys, values, |row, keys| {
                let (cos, sin) = turns[row * head_dim..][..head_dim].split_at(head_dim / 2);
                keys.chunks_exact_mut(head_dim).for_each(|head| rotate(head, cos, sin));
            });
            let attending: Vec<AttentionSpan<'_>> = row_ranges(spans)
                .zip(spans)
                .map(|(rows, span)| AttentionSpan {
                    kv: kv.layer(n, span.tables),
                    rows,
                    position: span.position,
                })
                .collect();
            let sinks = self.bf16(&layer.sinks).to_vec();
            let heads = Heads { queries, sinks: &sinks, turns, head_dim, kv_heads };
            // Where activations may be bf16, queries and weights of keys in bf16 may be, too: twice the rate.
            let pairs = self.activations.rounds(self.isa, self.order);
            let arithmetic = Arithmetic::new(self.isa, self.kv_format, pairs);
            attend(&self.pool, arithmetic, &attending, heads, mixed);
        });
    }

    /// Output projection and experts.
    fn finish_layer(&self, layer: &LayerRanges, mixed: &[f32], x: &mut [f32]) {
        let config = self.config();
        let compute = self.compute();
        let mixed = Inputs::new(compute, mixed, config.query_width(), self.dense.is_some());
        self.product(&[self.affine(&layer.o)], &mixed, true, x);
        let t = self.normed(&layer.experts_norm, x, false);
        let quantized = compute.chooser().quantizes().then(|| {
            QuantizedRows::made(compute, t.tokens(), config.hidden, self.norm_of(&layer.experts_norm, x))
        });
        let matrix =
            |(blocks, scales, bias): &'_ (Place, Place, Place), rows: usize, columns: usize| ExpertMatrix {
                blocks: self.bytes(blocks),
                scales: self.bytes(scales),
                bias: self.bf16(bias),
                rows,
                columns,
                stride: self.store.expert_stride(),
            };
        let weights = ExpertWeights {
            router: self.rows(&layer.router.0, config.hidden),
            router_bias: self.bf16(&layer.router.1),
            gate_up: matrix(&layer.gate_up, 2 * config.intermediate, config.hidden),
            down: matrix(&layer.down, config.hidden, config.intermediate),
        };
        self.clock.timed(Part::Matrices, || mix(compute, config, weights, &t, quantized.as_ref(), x));
    }

    /// The rows of `x` after a norm, ready to be multiplied; `eight_bits`: with weights of eight bits.
    fn normed(&self, weight: &Place, x: &[f32], eight_bits: bool) -> Inputs {
        let hidden = self.config().hidden;
        Inputs::made(self.compute(), x.len() / hidden, hidden, eight_bits, self.norm_of(weight, x))
    }

    /// Writes a row of `x` after a norm.
    fn norm_of<'a>(&'a self, weight: &Place, x: &'a [f32]) -> impl Fn(usize, &mut [f32]) + Sync + use<'a> {
        let (weight, config) = (self.bf16(weight), self.config());
        move |row, out| {
            rms_norm(&x[row * config.hidden..][..config.hidden], weight.iter(), config.rms_epsilon, out);
        }
    }

    fn product(&self, matrices: &[Affine<'_>], tokens: &Inputs, add: bool, out: &mut [f32]) {
        self.clock.timed(Part::Matrices, || linear(self.compute(), matrices, tokens, add, out));
    }

    fn affine(&self, (weights, bias): &(Matrix, Place)) -> Affine<'_> {
        Affine { weights: self.matrix(weights), bias: Some(self.bf16(bias)) }
    }

    fn compute(&self) -> Compute<'_> {
        Compute { pool: &self.pool, isa: self.isa, order: self.order, activations: self.activations() }
    }

    fn bytes(&self, place: &Place) -> &[u8] {
        &self.store.shards()[place.shard].as_ref()[place.range.clone()]
    }

    fn bf16(&self, place: &Place) -> Bf16<'_> {
        Bf16(self.bytes(place))
    }

    /// From the copy if there is one.
    fn matrix(&self, matrix: &Matrix) -> Rows<'_> {
        match &self.dense {
            Some(copy) => copy.rows(matrix),
            None => self.rows(&matrix.stored, matrix.columns),
        }
    }

    fn rows(&self, place: &Place, columns: usize) -> Rows<'_> {
        Rows::Bf16 { bytes: self.bytes(place), columns }
    }
}

impl Weights for CpuModel {
    fn bytes(&self, tensor: &str) -> &[u8] {
        Weights::bytes(&self.store, tensor)
    }

    fn parts(&self, tensor: &str) -> Vec<&[u8]> {
        self.store.parts(tensor)
    }
}

impl LayerRanges {
    fn new(layer: usize, config: &GptOssConfig, place: impl Fn(&str) -> Place) -> LayerRanges {
        let one = |name: &str| place(&format!("model.layers.{layer}.{name}"));
        let two = |name: &str| (one(&format!("{name}.weight")), one(&format!("{name}.bias")));
        let three = |name: &str| {
            (one(&format!("{name}_blocks")), one(&format!("{name}_scales")), one(&format!("{name}_bias")))
        };
        let matrix = |name: &str, number: usize, columns: usize| {
            let (stored, bias) = two(name);
            (Matrix { stored, number: layer * dense::MATRICES_A_LAYER + number, columns }, bias)
        };
        LayerRanges {
            attention_norm: one("input_layernorm.weight"),
            q: matrix("self_attn.q_proj", 0, config.hidden),
            k: matrix("self_attn.k_proj", 1, config.hidden),
            v: matrix("self_attn.v_proj", 2, config.hidden),
            o: matrix("self_attn.o_proj", 3, config.query_width()),
            sinks: one("self_attn.sinks"),
            experts_norm: one("post_attention_layernorm.weight"),
            router: two("mlp.router"),
            gate_up: three("mlp.experts.gate_up_proj"),
            down: three("mlp.experts.down_proj"),
        }
    }
}

/// Gives memory to the blocks that are written to, and says where each row is.
fn begin(spans: &[Span<'_>], kv: &mut Kv) -> Vec<RowPlace> {
    let mut rows = Vec::new();
    for span in spans {
        let end = span.position + span.tokens.len();
        kv.provide(span.tables, span.position..end);
        rows.extend((span.position..end).zip(span.tokens).map(|(position, &token)| RowPlace {
            token,
            position,
            wants_logits: span.wants_logits && position + 1 == end,
        }));
    }
    rows
}

/// The rows of each span.
fn row_ranges(spans: &[Span<'_>]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    spans.iter().map(move |span| {
        let start = end;
        end += span.tokens.len();
        start..end
    })
}

/// Drops the rows, of `rows` and of `x`, that nobody wants logits of.
fn keep_wanted(rows: &mut Vec<RowPlace>, x: &mut Vec<f32>, width: usize) {
    let kept = x.chunks_exact(width).zip(rows.iter()).filter(|(_, r)| r.wants_logits);
    *x = kept.flat_map(|(x, _)| x).copied().collect();
    rows.retain(|r| r.wants_logits);
}

/// The last row of every span that wants logits.
fn wanted_only(spans: &[Span<'_>], values: &[f32], width: usize) -> Vec<f32> {
    let mut end = 0;
    let mut out = Vec::new();
    for span in spans {
        end += span.tokens.len();
        if span.wants_logits {
            out.extend_from_slice(&values[(end - 1) * width..end * width]);
        }
    }
    out
}

#[cfg(test)]
mod tests;
