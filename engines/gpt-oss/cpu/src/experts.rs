//! The mixture of experts: tokens are grouped by expert, so that each expert's weights are read once for all of them.

use std::ops::Range;

use gpt_oss_model::router::choose_experts;
use gpt_oss_model::{Bf16, GptOssConfig};
use model_formats::mxfp4::{BLOCK, BLOCK_BYTES};

use crate::kernel::bf16::{self, GROUP};
use crate::kernel::{Form, Rows, Swiglu, split_len};
use crate::linear::{
    Affine, Compute, Inputs, QuantizedRows, RoundedRows, SplitRows, Vectors, linear, panel_rows,
};

/// At most so many visits, those of some 16 tokens, have their outputs written down one by one before they are added: of
/// more, an expert has so many that its weights are computed with and not waited for.
const APART_VISITS_MAX: usize = 64;
/// Columns of which a task adds up multiples: a line of the cache is written by one thread.
const SUM_COLUMNS: usize = 16;

/// Weights of the mixture of one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertWeights<'a> {
    pub(crate) router: Rows<'a>,
    pub(crate) router_bias: Bf16<'a>,
    pub(crate) gate_up: ExpertMatrix<'a>,
    pub(crate) down: ExpertMatrix<'a>,
}

/// One matrix of all experts, (experts, rows, columns), with its bias, (experts, rows).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertMatrix<'a> {
    pub(crate) blocks: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) bias: Bf16<'a>,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Bytes from the blocks of one expert to those of the next; `None`: they follow one another.
    pub(crate) stride: Option<usize>,
}

impl<'a> ExpertMatrix<'a> {
    fn expert(&self, expert: usize) -> (Rows<'a>, Bf16<'a>) {
        let scales = self.rows * self.columns / BLOCK;
        let bytes = scales * BLOCK_BYTES;
        let rows = Rows::Mxfp4 {
            blocks: &self.blocks[expert * self.stride.unwrap_or(bytes)..][..bytes],
            scales: &self.scales[expert * scales..][..scales],
            columns: self.columns,
        };
        (rows, self.bias.row(expert, self.rows))
    }
}

/// A token at an expert.
#[derive(Debug, Clone, Copy)]
struct Visit {
    expert: usize,
    token: usize,
    weight: f32,
}

/// Adds the mixture's output for `tokens` to `residual`, (tokens, hidden). The router takes them as they are, the experts
/// take the `quantized` ones if there are any.
pub(crate) fn mix(
    compute: Compute<'_>,
    config: &GptOssConfig,
    weights: ExpertWeights<'_>,
    tokens: &Inputs,
    quantized: Option<&QuantizedRows>,
    residual: &mut [f32],
) {
    let visits = route(compute, config, weights, tokens);
    let count = tokens.tokens();
    let (many, few): (Vec<&[Visit]>, Vec<&[Visit]>) = visits
        .chunk_by(|a, b| a.expert == b.expert)
        .partition(|visits| compute.chooser().expert(count, visits.len()) == Form::Rounded);
    if !few.is_empty() {
        let visits = few.concat();
        match (quantized, tokens) {
            (Some(tokens), _) => mix_quantized(compute, config, weights, tokens, &visits, residual),
            (None, Inputs::Split(tokens)) => mix_split(compute, config, weights, tokens, &visits, residual),
            (None, Inputs::Rounded(tokens)) => {
                mix_split(compute, config, weights, &tokens.split(compute), &visits, residual);
            }
            (None, Inputs::Quantized(_)) => unreachable!("the router is bf16"),
        }
    }
    if !many.is_empty() {
        let Inputs::Rounded(tokens) = tokens else { unreachable!("the router is bf16, too") };
        let acts = activate_packed(compute, config, weights.gate_up, tokens, &many);
        project_packed(compute, config, weights.down, &many, &acts, residual);
    }
}

/// The visits of some experts, in f32.
fn mix_split(
    compute: Compute<'_>,
    config: &GptOssConfig,
    weights: ExpertWeights<'_>,
    tokens: &SplitRows,
    visits: &[Visit],
    residual: &mut [f32],
) {
    let ends = ends(visits);
    let acts = activate(compute, config, weights.gate_up, tokens, visits, &ends);
    project(compute, config, weights.down, visits, &ends, &acts, residual);
}

/// The visits of some experts, in eight bits.
fn mix_quantized(
    compute: Compute<'_>,
    config: &GptOssConfig,
    weights: ExpertWeights<'_>,
    tokens: &QuantizedRows,
    visits: &[Visit],
    residual: &mut [f32],
) {
    let ends = ends(visits);
    let acts = activate(compute, config, weights.gate_up, tokens, visits, &ends);
    let acts = QuantizedRows::of(compute, &acts);
    project(compute, config, weights.down, visits, &ends, &acts, residual);
}

/// Where the visits of each expert that has any end.
fn ends(visits: &[Visit]) -> Vec<usize> {
    (1..=visits.len())
        .filter(|&i| visits.get(i).is_none_or(|next| next.expert != visits[i - 1].expert))
        .collect()
}

/// All visits, by expert and then by token.
fn route(
    compute: Compute<'_>,
    config: &GptOssConfig,
    weights: ExpertWeights<'_>,
    tokens: &Inputs,
) -> Vec<Visit> {
    let mut logits = vec![0.0; tokens.tokens() * config.experts];
    let router = Affine { weights: weights.router, bias: Some(weights.router_bias) };
    linear(compute, &[router], tokens, false, &mut logits);
    let mut visits: Vec<Visit> = Vec::with_capacity(tokens.tokens() * config.experts_per_token);
    for (token, logits) in logits.chunks_exact(config.experts).enumerate() {
        let chosen = choose_experts(logits, config.experts_per_token);
        visits.extend(chosen.into_iter().map(|(expert, weight)| Visit { expert, token, weight }));
    }
    visits.sort_by_key(|v| (v.expert, v.token));
    visits
}

/// Gate, up and activation of every visit, (visits, intermediate) in split order.
fn activate<V: Vectors>(
    compute: Compute<'_>,
    config: &GptOssConfig,
    gate_up: ExpertMatrix<'_>,
    tokens: &V,
    visits: &[Visit],
    ends: &[usize],
) -> SplitRows {
    // The width is a multiple of 32, so split order pads nothing.
    let width = split_len(config.intermediate);
    let mut acts = vec![0.0; visits.len() * width];
    // Whole blocks, each of 64 rows: gates and ups alternate.
    let (rows, _) = gate_up.expert(0);
    let columns = V::rows_a_task(
        compute,
        ends.len() * rows.count(),
        rows.row_bytes(),
        visits.len() / ends.len(),
        false,
    );
    let columns = (columns / 2).next_multiple_of(BLOCK);
    let swiglu = swiglu(config);
    compute.pool.tiles(&mut acts, width, ends, columns, |tile| {
        let (columns, own) = (tile.columns(), tile.rows());
        let pairs = 2 * columns.start..2 * columns.end;
        let rows = ExpertRows::new(gate_up, visits[own.start].expert, pairs.clone());
        let mut products = vec![0.0; pairs.len() * own.len().min(V::TOGETHER)];
        for first in own.clone().step_by(V::TOGETHER) {
            let some = first..own.end.min(first + V::TOGETHER);
            let tokens_of = visits[some.clone()].iter().map(|v| v.token);
            rows.multiply(compute, tokens, tokens_of, |i, row, some, bias| {
                let out = &mut products[i * pairs.len() + row..];
                for ((out, product), bias) in out.iter_mut().zip(some).zip(bias) {
                    *out = product + bias;
                }
            });
            for (visit, products) in some.zip(products.chunks_exact(pairs.len())) {
                swiglu.activate_split(compute.isa, products, tile.row(visit));
            }
        }
    });
    SplitRows::from_split(acts, width)
}

fn swiglu(config: &GptOssConfig) -> Swiglu {
    Swiglu { alpha: config.swiglu_alpha, limit: config.swiglu_limit }
}

/// Adds the weighted outputs of all visits to their tokens.
fn project<V: Vectors>(
    compute: Compute<'_>,
    config: &GptOssConfig,
    down: ExpertMatrix<'_>,
    visits: &[Visit],
    ends: &[usize],
    acts: &V,
    residual: &mut [f32],
) {
    if visits.len() <= APART_VISITS_MAX {
        return project_apart(compute, config, down, visits, ends, acts, residual);
    }
    let tokens = residual.len() / config.hidden;
    // Every expert that is visited passes through a task.
    let bytes = down.expert(0).0.row_bytes() * ends.len().min(8);
    let columns = V::rows_a_task(compute, config.hidden, bytes, visits.len() / ends.len(), false);
    compute.pool.tiles(residual, config.hidden, &[tokens], columns, |tile| {
        let columns = tile.columns();
        let mut first = 0;
        for &end in ends {
            let rows = ExpertRows::new(down, visits[first].expert, columns.clone());
            rows.multiply(compute, acts, first..end, |i, row, products, bias| {
                let visit = visits[first + i];
                let out = &mut tile.row(visit.token)[row..];
                for ((out, product), bias) in out.iter_mut().zip(products).zip(bias) {
                    *out += visit.weight * (product + bias);
                }
            });
            first = end;
        }
    });
}

/// The same with the rows of each expert in tasks of their own: they lie together and are fetched ahead from the first to
/// the last. Outputs are written down and added afterwards, in the same order.
fn project_apart<V: Vectors>(
    compute: Compute<'_>,
    config: &GptOssConfig,
    down: ExpertMatrix<'_>,
    visits: &[Visit],
    ends: &[usize],
    acts: &V,
    residual: &mut [f32],
) {
    let hidden = config.hidden;
    let row_bytes = down.expert(0).0.row_bytes();
    let columns = V::rows_a_task(compute, ends.len() * hidden, row_bytes, visits.len() / ends.len(), false);
    let mut outputs = vec![0.0; visits.len() * hidden];
    compute.pool.tiles(&mut outputs, hidden, ends, columns, |tile| {
        let own = tile.rows();
        let rows = ExpertRows::new(down, visits[own.start].expert, tile.columns());
        rows.multiply(compute, acts, own.clone(), |i, row, products, bias| {
            let out = &mut tile.row(own.start + i)[row..];
            for ((out, product), bias) in out.iter_mut().zip(products).zip(bias) {
                *out = product + bias;
            }
        });
    });
    let tokens = residual.len() / hidden;
    let columns = hidden.div_ceil(compute.pool.threads()).next_multiple_of(SUM_COLUMNS);
    compute.pool.tiles(residual, hidden, &[tokens], columns, |tile| {
        let columns = tile.columns();
        for (visit, outputs) in visits.iter().zip(outputs.chunks_exact(hidden)) {
            let sums = tile.row(visit.token).iter_mut().zip(&outputs[columns.clone()]);
            sums.for_each(|(sum, output)| *sum += visit.weight * output);
        }
    });
}

/// Some rows of an expert's matrix, and their biases.
struct ExpertRows<'a> {
    weights: Rows<'a>,
    bias: Vec<f32>,
}

impl<'a> ExpertRows<'a> {
    fn new(matrix: ExpertMatrix<'a>, expert: usize, rows: Range<usize>) -> ExpertRows<'a> {
        let (weights, bias) = matrix.expert(expert);
        ExpertRows { weights: weights.slice(rows.clone()), bias: rows.map(|row| bias.get(row)).collect() }
    }

    /// `out(i, row, products, biases)` gets the products of some rows, from `row` on, with the i-th of the vectors that
    /// are named, and the biases from `row` on.
    fn multiply<V: Vectors>(
        &self,
        compute: Compute<'_>,
        vectors: &V,
        named: impl ExactSizeIterator<Item = usize>,
        mut out: impl FnMut(usize, usize, &[f32], &[f32]),
    ) {
        let all: Vec<&[V::Number]> = named.map(|i| vectors.row(i)).collect();
        for (block, vectors) in all.chunks(V::TOGETHER).enumerate() {
            V::multiply(compute, self.weights, vectors, &mut |row, t, products| {
                out(block * V::TOGETHER + t, row, products, &self.bias[row..]);
            });
        }
    }
}

/// Gate, up and activation of all visits in groups, (groups, intermediate / 2, 16), each of one expert.
fn activate_packed(
    compute: Compute<'_>,
    config: &GptOssConfig,
    gate_up: ExpertMatrix<'_>,
    tokens: &RoundedRows,
    visits: &[&[Visit]],
) -> Vec<u32> {
    let swiglu = swiglu(config);
    let width = tokens.words() * GROUP;
    let visitors: Vec<Vec<usize>> = visits.iter().map(|v| v.iter().map(|v| v.token).collect()).collect();
    let groups: Vec<&[usize]> = visitors.iter().flat_map(|tokens| tokens.chunks(GROUP)).collect();
    let packed = tokens.pack(compute, groups.into_iter());

    let ends = group_ends(visits);
    let act_words = bf16::words(config.intermediate);
    let mut acts = vec![0; ends.last().copied().unwrap_or(0) * act_words * GROUP];
    // A word of activations is made of four rows.
    let columns = panel_rows(compute, 4 * act_words, tokens.words()) / 4 * GROUP;
    compute.pool.tiles(&mut acts, act_words * GROUP, &ends, columns, |tile| {
        let (expert, groups) = (visits[tile.group()][0].expert, tile.rows());
        let rows = tile.columns().start / GROUP * 4..tile.columns().end / GROUP * 4;
        let (weights, bias) = gate_up.expert(expert);
        let bias: Vec<f32> = rows.clone().map(|row| bias.get(row)).collect();
        let packed = &packed[groups.start * width..groups.end * width];
        bf16::multiply(compute.isa, weights.slice(rows), packed, |products| {
            for group in products.groups() {
                products.activate(group, &bias, swiglu, tile.row(groups.start + group));
            }
        });
    });
    acts
}

/// Adds the weighted outputs of all visits, whose activations are `acts`, to their tokens.
fn project_packed(
    compute: Compute<'_>,
    config: &GptOssConfig,
    down: ExpertMatrix<'_>,
    visits: &[&[Visit]],
    acts: &[u32],
    residual: &mut [f32],
) {
    let tokens = residual.len() / config.hidden;
    let act_words = bf16::words(config.intermediate);
    let ends = group_ends(visits);
    let columns = panel_rows(compute, config.hidden, act_words);
    compute.pool.tiles(residual, config.hidden, &[tokens], columns, |tile| {
        let columns = tile.columns();
        let mut first = 0;
        for (visits, &end) in visits.iter().zip(&ends) {
            let (weights, bias) = down.expert(visits[0].expert);
            let bias: Vec<f32> = columns.clone().map(|row| bias.get(row)).collect();
            let acts = &acts[first * act_words * GROUP..end * act_words * GROUP];
            bf16::multiply(compute.isa, weights.slice(columns.clone()), acts, |products| {
                products.each_token(visits.len(), |i, products| {
                    let visit = visits[i];
                    for ((out, product), bias) in tile.row(visit.token).iter_mut().zip(products).zip(&bias) {
                        *out += visit.weight * (product + bias);
                    }
                });
            });
            first = end;
        }
    });
}

/// Where the groups of each expert end.
fn group_ends(visits: &[&[Visit]]) -> Vec<usize> {
    let ends = visits.iter().scan(0, |end, visits| {
        *end += visits.len().div_ceil(GROUP);
        Some(*end)
    });
    ends.collect()
}
