//! Attention of new rows over what their sequences hold.

use crate::kv::LayerKv;
use crate::math::{add_scaled, dot, exp};
use crate::pool::Pool;

/// What attention needs of one row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionRow<'a> {
    pub(crate) kv: LayerKv<'a>,
    pub(crate) position: usize,
}

/// `queries` and `out` are (rows, heads, head_dim); `sinks` (heads).
pub(crate) fn attend(
    pool: &Pool,
    rows: &[AttentionRow<'_>],
    queries: &[f32],
    sinks: &[f32],
    head_dim: usize,
    kv_heads: usize,
    out: &mut [f32],
) {
    let heads = sinks.len();
    let group = heads / kv_heads;
    let width = heads * head_dim;
    let ends: Vec<usize> = (1..=rows.len()).collect();
    // One task is the query heads of one row that share a key head.
    pool.tiles(out, width, &ends, group * head_dim, |tile| {
        let row = tile.group();
        let columns = tile.columns();
        let kv_head = columns.start / (group * head_dim);
        let queries = &queries[row * width..][columns];
        let sinks = &sinks[kv_head * group..][..group];
        attend_group(rows[row], kv_head, queries, sinks, head_dim, tile.row(row));
    });
}

/// The heads of one group for one row. A sink is a score that takes its share of the softmax and has no value.
fn attend_group(
    row: AttentionRow<'_>,
    kv_head: usize,
    queries: &[f32],
    sinks: &[f32],
    head_dim: usize,
    out: &mut [f32],
) {
    let visible = row.kv.visible(row.position);
    let count = visible.len();
    let scale = 1.0 / (head_dim as f32).sqrt();
    // (group, count)
    let mut scores = vec![0.0; sinks.len() * count];
    let mut done = 0;
    for (keys, _) in row.kv.pieces(kv_head, visible.clone()) {
        for (i, key) in keys.chunks_exact(head_dim).enumerate() {
            for (g, query) in queries.chunks_exact(head_dim).enumerate() {
                scores[g * count + done + i] = dot(query, key) * scale;
            }
        }
        done += keys.len() / head_dim;
    }
    let mut sums = vec![0.0; sinks.len()];
    for (g, scores) in scores.chunks_exact_mut(count).enumerate() {
        let largest = scores.iter().copied().fold(sinks[g], f32::max);
        scores.iter_mut().for_each(|s| *s = exp(*s - largest));
        sums[g] = scores.iter().sum::<f32>() + exp(sinks[g] - largest);
    }
    out.fill(0.0);
    let mut done = 0;
    for (_, values) in row.kv.pieces(kv_head, visible) {
        for (i, value) in values.chunks_exact(head_dim).enumerate() {
            for (g, out) in out.chunks_exact_mut(head_dim).enumerate() {
                add_scaled(out, scores[g * count + done + i], value);
            }
        }
        done += values.len() / head_dim;
    }
    for (out, sum) in out.chunks_exact_mut(head_dim).zip(sums) {
        out.iter_mut().for_each(|o| *o /= sum);
    }
}
