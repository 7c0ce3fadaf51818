//! Attention of new rows over what their sequences hold.
//!
//! One task is a block of rows of one sequence and one key head: its queries, 8 heads of each row in the published
//! models, meet block after block of 64 keys, so that keys and values are read once for all of them. Rows alone, those
//! of sequences that decode, have several key heads in a task: in a block these lie one behind the other, and while one
//! is computed the next is fetched.
//!
//! **Cut of the context.** What a query gathers is added up afresh every [`PART_TOKENS`] positions, and the parts are
//! joined in order. So parts can go to several threads where there are few rows, and the bits of a result depend
//! neither on that, nor on the rows beside it: `deterministic` costs nothing here.

#[expect(unsafe_code, reason = "vector loads take pointers")]
#[expect(
    clippy::needless_range_loop,
    reason = "closures and iterators would not be inlined, for want of features"
)]
mod block;
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod lanes;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod x86;

use std::ops::Range;

use block::{attend_block, pack};
use gpt_oss_model::rope::rotate;

use crate::kernel::Isa;
use crate::kv::{BLOCK_TOKENS, KvFormat, LayerKv, RowParts};
use crate::math::exp;
use crate::pool::Pool;

/// Queries of a task: at 8 heads 16 rows, whose state of 64 KiB stays in the second cache.
const TASK_QUERIES: usize = 128;
/// Positions after which a sum is begun anew: 8 heads of a context of 8,192 make 64 tasks.
const PART_TOKENS: usize = 1024;
/// With fewer tasks than this many times the threads, parts of the context become tasks.
const TASKS_A_THREAD: usize = 4;
/// Stands for a sink of negative infinity, and leaves the differences of scores finite.
const SINK_LEAST: f32 = -1e30;

/// What numbers are computed with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arithmetic {
    isa: Isa,
    format: KvFormat,
    /// Queries and weights are rounded to bf16, too, and multiplied in pairs.
    pairs: bool,
}

impl Arithmetic {
    /// `pairs` are used where the processor has them, and keys and values are bf16.
    ///
    /// # Panics
    /// When the processor lacks `isa`.
    pub(crate) fn new(isa: Isa, format: KvFormat, pairs: bool) -> Arithmetic {
        assert!(isa.is_available(), "this processor has no {}", isa.as_str());
        // Intel's pairs, which are there beside AMX, have half the rate of f32.
        let gains = !matches!(isa, Isa::Scalar | Isa::Avx2 | Isa::Amx);
        Arithmetic { isa, format, pairs: pairs && gains && format == KvFormat::Bf16 && has_pairs() }
    }

    /// Words of so many numbers of queries and weights.
    fn words(self, numbers: usize) -> usize {
        if self.pairs { numbers / 2 } else { numbers }
    }
}

fn has_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Consecutive rows of one sequence.
#[derive(Debug, Clone)]
pub(crate) struct AttentionSpan<'a> {
    pub(crate) kv: LayerKv<'a>,
    /// Of the batch.
    pub(crate) rows: Range<usize>,
    /// Of the first row.
    pub(crate) position: usize,
}

/// What is the same for all rows of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads<'a> {
    /// (rows, heads, head_dim), not turned yet.
    pub(crate) queries: RowParts<'a>,
    /// (heads)
    pub(crate) sinks: &'a [f32],
    /// Cosines and then sines of each row, (rows, head_dim).
    pub(crate) turns: &'a [f32],
    pub(crate) head_dim: usize,
    pub(crate) kv_heads: usize,
}

impl Heads<'_> {
    /// Query heads of a key head.
    fn group(&self) -> usize {
        self.sinks.len() / self.kv_heads
    }

    fn sinks_of(&self, kv_head: usize) -> &[f32] {
        &self.sinks[kv_head * self.group()..][..self.group()]
    }
}

/// Rows of a task, and their positions.
#[derive(Debug, Clone)]
struct RowBlock<'a> {
    kv: LayerKv<'a>,
    rows: Range<usize>,
    position: usize,
}

impl RowBlock<'_> {
    /// What its rows see, all together.
    fn visible(&self) -> Range<usize> {
        self.kv.visible(self.position).start..self.position + self.rows.len()
    }

    /// Numbers of the parts of the context that it sees.
    fn parts(&self) -> Range<usize> {
        let visible = self.visible();
        visible.start / PART_TOKENS..visible.end.div_ceil(PART_TOKENS)
    }
}

/// Queries of one key head, and what they have gathered.
#[derive(Debug)]
struct Queries {
    /// A head's dimensions, rounded up to whole vectors.
    dim: usize,
    /// (queries, dim) in the words of an [`Arithmetic`], turned and scaled.
    words: Vec<u32>,
    /// (queries): the largest score so far.
    largest: Vec<f32>,
    /// (queries): the sum of e^(score - largest).
    sums: Vec<f32>,
    /// (queries, dim): the sum of e^(score - largest) * value.
    out: Vec<f32>,
}

/// `out` is (rows, heads, head_dim).
pub(crate) fn attend(
    pool: &Pool,
    arithmetic: Arithmetic,
    spans: &[AttentionSpan<'_>],
    heads: Heads<'_>,
    out: &mut [f32],
) {
    let Heads { head_dim, kv_heads, .. } = heads;
    let (group, width) = (heads.group(), heads.sinks.len() * head_dim);
    let rows_a_task = (TASK_QUERIES / group).max(1);
    let blocks: Vec<RowBlock<'_>> = spans.iter().flat_map(|span| cut(span, rows_a_task)).collect();
    let ends: Vec<usize> = blocks.iter().map(|b| b.rows.end).collect();
    let parts = blocks.iter().map(|b| b.parts().len()).max().unwrap_or(0);
    if parts > 1 && blocks.len() * kv_heads < pool.threads() * TASKS_A_THREAD {
        let blocks: Vec<RowBlock<'_>> = spans.iter().flat_map(|span| cut(span, 1)).collect();
        return attend_in_parts(pool, arithmetic, &blocks, heads, out);
    }
    let rows = blocks.iter().map(|b| b.rows.len()).max().unwrap_or(1);
    let heads_a_task = (blocks.len() * kv_heads / (pool.threads() * TASKS_A_THREAD))
        .min(TASK_QUERIES / (group * rows))
        .clamp(1, kv_heads);
    pool.tiles(out, width, &ends, heads_a_task * group * head_dim, |tile| {
        let block = &blocks[tile.group()];
        let some = tile.columns().start / (group * head_dim)..tile.columns().end / (group * head_dim);
        let gathered = gather(arithmetic, block, some.clone(), heads, block.parts());
        for (r, row) in block.rows.clone().enumerate() {
            let of_heads = tile.row(row).chunks_exact_mut(group * head_dim);
            for ((head, queries), out) in some.clone().zip(&gathered).zip(of_heads) {
                for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
                    queries.result(r * group + g, heads.sinks_of(head)[g], out);
                }
            }
        }
    });
}

/// Few rows and a long context: a task has one part of one row.
fn attend_in_parts(
    pool: &Pool,
    arithmetic: Arithmetic,
    rows: &[RowBlock<'_>],
    heads: Heads<'_>,
    out: &mut [f32],
) {
    let Heads { head_dim, kv_heads, .. } = heads;
    let group = heads.group();
    let dim = head_dim.next_multiple_of(DIM_MULTIPLE);
    // Largest, sum, and what was gathered, of each query.
    let width = group * (2 + dim);
    // Of each row, where its parts begin.
    let starts: Vec<usize> = rows
        .iter()
        .scan(0, |end, row| {
            let start = *end;
            *end += row.parts().len();
            Some(start)
        })
        .collect();
    let pieces: Vec<(&RowBlock<'_>, usize)> =
        rows.iter().flat_map(|row| row.parts().map(move |part| (row, part))).collect();
    let mut gathered = vec![0.0; pieces.len() * kv_heads * width];
    let ends: Vec<usize> = (1..=pieces.len()).collect();
    pool.tiles(&mut gathered, kv_heads * width, &ends, width, |tile| {
        let (row, part) = pieces[tile.group()];
        let head = tile.columns().start / width;
        let gathered = gather(arithmetic, row, head..head + 1, heads, part..part + 1);
        let out = tile.row(tile.group());
        for queries in gathered {
            out[..group].copy_from_slice(&queries.largest);
            out[group..2 * group].copy_from_slice(&queries.sums);
            out[2 * group..].copy_from_slice(&queries.out);
        }
    });
    let ends: Vec<usize> = (1..=rows.len()).collect();
    pool.tiles(out, heads.sinks.len() * head_dim, &ends, group * head_dim, |tile| {
        let (row, head) = (tile.group(), tile.columns().start / (group * head_dim));
        let part = |n: usize| {
            let gathered = &gathered[((starts[row] + n) * kv_heads + head) * width..][..width];
            Queries {
                dim,
                words: Vec::new(),
                largest: gathered[..group].to_vec(),
                sums: gathered[group..2 * group].to_vec(),
                out: gathered[2 * group..].to_vec(),
            }
        };
        let mut all = part(0);
        (1..rows[row].parts().len()).for_each(|n| all.join(&part(n)));
        for (g, out) in tile.row(row).chunks_exact_mut(head_dim).enumerate() {
            all.result(g, heads.sinks_of(head)[g], out);
        }
    });
}

/// A head's dimensions are rounded up to this many: two of the widest vectors.
pub(crate) const DIM_MULTIPLE: usize = 32;

fn cut<'a>(span: &AttentionSpan<'a>, rows_a_task: usize) -> impl Iterator<Item = RowBlock<'a>> {
    let AttentionSpan { kv, rows, position } = span.clone();
    rows.clone().step_by(rows_a_task).map(move |first| RowBlock {
        kv,
        rows: first..(first + rows_a_task).min(rows.end),
        position: position + first - rows.start,
    })
}

/// What the queries of some key heads gather in some parts of the context, of each head.
fn gather(
    arithmetic: Arithmetic,
    block: &RowBlock<'_>,
    some: Range<usize>,
    heads: Heads<'_>,
    parts: Range<usize>,
) -> Vec<Queries> {
    let group = heads.group();
    let dim = heads.head_dim.next_multiple_of(DIM_MULTIPLE);
    let mut words: Vec<Vec<u32>> = some.clone().map(|head| turned(arithmetic, block, head, heads)).collect();
    let seen = block.visible();
    let last = (seen.end - 1) / BLOCK_TOKENS;
    // Of each query, what it sees.
    let visible: Vec<Range<usize>> = (0..block.rows.len())
        .flat_map(|row| std::iter::repeat_n(block.kv.visible(block.position + row), group))
        .collect();
    let mut limits = vec![(0, 0); visible.len()];
    let mut all: Vec<Queries> = Vec::new();
    for part in parts {
        let positions = (part * PART_TOKENS).max(seen.start)..((part + 1) * PART_TOKENS).min(seen.end);
        let mut gathered: Vec<Queries> = words
            .drain(..)
            .zip(some.clone())
            .map(|(words, head)| Queries::new(words, heads.sinks_of(head), visible.len(), dim))
            .collect();
        for number in positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS) {
            let start = number * BLOCK_TOKENS;
            for (limits, visible) in limits.iter_mut().zip(&visible) {
                let within = |position: usize| position.clamp(start, start + BLOCK_TOKENS) - start;
                *limits = (within(visible.start) as u32, within(visible.end) as u32);
            }
            for (head, queries) in some.clone().zip(&mut gathered) {
                // The next head is behind this one in the same block.
                let next = match head + 1 {
                    next if next < some.end => block.kv.block(next, number),
                    _ => block.kv.block(some.start, (number + 1).min(last)),
                };
                attend_block(arithmetic, queries, block.kv.block(head, number), next, &limits);
            }
        }
        words.extend(gathered.iter_mut().map(|queries| std::mem::take(&mut queries.words)));
        if all.is_empty() {
            all = gathered;
        } else {
            all.iter_mut().zip(&gathered).for_each(|(all, later)| all.join(later));
        }
    }
    all
}

/// The queries of one key head, turned to their positions and scaled, in words of the arithmetic.
fn turned(arithmetic: Arithmetic, block: &RowBlock<'_>, head: usize, heads: Heads<'_>) -> Vec<u32> {
    let Heads { head_dim, queries, turns, .. } = heads;
    let group = heads.group();
    let dim = head_dim.next_multiple_of(DIM_MULTIPLE);
    let words = arithmetic.words(dim);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut out = vec![0; block.rows.len() * group * words];
    let mut numbers = vec![0.0; dim];
    let mut each = out.chunks_exact_mut(words);
    for row in block.rows.clone() {
        let (cos, sin) = turns[row * head_dim..][..head_dim].split_at(head_dim / 2);
        let queries = &queries.row(row)[head * group * head_dim..][..group * head_dim];
        for (query, out) in queries.chunks_exact(head_dim).zip(&mut each) {
            let numbers_of_head = &mut numbers[..head_dim];
            numbers_of_head.copy_from_slice(query);
            rotate(numbers_of_head, cos, sin);
            numbers_of_head.iter_mut().for_each(|n| *n *= scale);
            pack(arithmetic, &numbers, out);
        }
    }
    out
}

impl Queries {
    /// Nothing gathered yet. A sink is a score that takes its share of the softmax and has no value: it is the largest
    /// score to begin with, and its share is counted at the end ([`Queries::result`]), once, however many parts there are.
    fn new(words: Vec<u32>, sinks: &[f32], count: usize, dim: usize) -> Queries {
        let largest = sinks.iter().map(|s| s.max(SINK_LEAST)).cycle().take(count).collect();
        Queries { dim, words, largest, sums: vec![0.0; count], out: vec![0.0; count * dim] }
    }

    /// Adds what the same queries gathered in a later part.
    fn join(&mut self, later: &Queries) {
        let dim = self.dim;
        for (i, out) in self.out.chunks_exact_mut(dim).enumerate() {
            let largest = self.largest[i].max(later.largest[i]);
            let (ours, theirs) = (exp(self.largest[i] - largest), exp(later.largest[i] - largest));
            self.largest[i] = largest;
            self.sums[i] = self.sums[i] * ours + later.sums[i] * theirs;
            for (out, later) in out.iter_mut().zip(&later.out[i * dim..]) {
                *out = *out * ours + later * theirs;
            }
        }
    }

    /// What a query has made of everything; `out` has the dimensions of a head.
    fn result(&self, query: usize, sink: f32, out: &mut [f32]) {
        let sum = self.sums[query] + exp(sink - self.largest[query]);
        for (out, gathered) in out.iter_mut().zip(&self.out[query * self.dim..]) {
            *out = gathered / sum;
        }
    }
}

#[cfg(test)]
mod tests;
