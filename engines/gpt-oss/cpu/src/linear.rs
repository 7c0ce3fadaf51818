//! Matrices of the whole layer: every row of weights times every token.

use gpt_oss_model::Bf16;

use crate::kernel::{Isa, Order, Rows, multiply, split, split_len};
use crate::pool::Pool;

/// Weights of one task. Small enough to share out evenly, large enough that claiming a task costs nothing.
pub(crate) const TASK_BYTES: usize = 256 << 10;
/// Tokens that pass through a task's weights together: their vectors stay in the second cache.
pub(crate) const TOKEN_BLOCK: usize = 64;

/// How the work is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compute<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    pub(crate) order: Order,
}

/// Vectors of several tokens in split order.
#[derive(Debug, Default)]
pub(crate) struct SplitRows {
    data: Vec<f32>,
    length: usize,
}

impl SplitRows {
    /// `plain` is (tokens, width).
    pub(crate) fn new(compute: Compute<'_>, plain: &[f32], width: usize) -> SplitRows {
        let length = split_len(width);
        let tokens = plain.len() / width;
        let mut data = vec![0.0; tokens * length];
        let ends = token_ends(tokens);
        compute.pool.tiles(&mut data, length, &ends, length, |tile| {
            for row in tile.rows() {
                split(&plain[row * width..][..width], tile.row(row));
            }
        });
        SplitRows { data, length }
    }

    /// Takes rows that are in split order already.
    pub(crate) fn from_split(data: Vec<f32>, length: usize) -> SplitRows {
        SplitRows { data, length }
    }

    pub(crate) fn row(&self, token: usize) -> &[f32] {
        &self.data[token * self.length..][..self.length]
    }

    pub(crate) fn tokens(&self) -> usize {
        self.data.len() / self.length
    }
}

/// Ends of blocks of tokens for work that is done token by token.
pub(crate) fn token_ends(tokens: usize) -> Vec<usize> {
    const TOKENS_A_TASK: usize = 8;
    (1..=tokens.div_ceil(TOKENS_A_TASK)).map(|i| (i * TOKENS_A_TASK).min(tokens)).collect()
}

/// Rows of weights that make a task.
pub(crate) fn rows_a_task(row_bytes: usize, multiple_of: usize) -> usize {
    (TASK_BYTES / row_bytes).max(1).next_multiple_of(multiple_of)
}

/// `out`, (tokens, rows), = `tokens` times the matrix, plus the bias, plus what was in `out` when `add`.
pub(crate) fn linear(
    compute: Compute<'_>,
    weights: Rows<'_>,
    bias: Option<Bf16<'_>>,
    tokens: &SplitRows,
    add: bool,
    out: &mut [f32],
) {
    let count = tokens.tokens();
    let vectors: Vec<&[f32]> = (0..count).map(|t| tokens.row(t)).collect();
    let columns = rows_a_task(weights.row_bytes(), 8);
    compute.pool.tiles(out, weights.count(), &[count], columns, |tile| {
        let rows = tile.columns();
        for (block, vectors) in vectors.chunks(TOKEN_BLOCK).enumerate() {
            multiply(
                compute.isa,
                compute.order,
                weights.slice(rows.clone()),
                vectors,
                &mut |row, t, product| {
                    let value = product + bias.map_or(0.0, |b| b.get(rows.start + row));
                    let out = &mut tile.row(block * TOKEN_BLOCK + t)[row];
                    *out = if add { *out + value } else { value };
                },
            );
        }
    });
}
