//! Writing keys and values into their blocks, on all threads.

use std::ops::Range;

use super::{BLOCK_TOKENS, Kv, KvFormat, Table, WORD_BYTES};
use crate::math::to_bf16;
use crate::pool::Pool;

/// Rows of a task at least: fewer are written before another thread has woken up.
const ROWS_A_TASK: usize = 8;

/// Consecutive rows of one sequence.
#[derive(Debug, Clone)]
pub(crate) struct StoredRows<'a> {
    pub(crate) tables: &'a [Table<'a>],
    /// Of the batch.
    pub(crate) rows: Range<usize>,
    /// Of the first row.
    pub(crate) position: usize,
}

/// Some columns of every row of an array.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowParts<'a> {
    /// (rows, width)
    pub(crate) numbers: &'a [f32],
    pub(crate) width: usize,
    /// The first one, and the one behind the last.
    pub(crate) columns: (usize, usize),
}

impl<'a> RowParts<'a> {
    /// All columns.
    #[cfg(test)]
    pub(crate) fn all(numbers: &'a [f32], width: usize) -> RowParts<'a> {
        RowParts { numbers, width, columns: (0, width) }
    }

    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        &self.numbers[row * self.width..][self.columns.0..self.columns.1]
    }
}

/// Rows whose positions lie in one block.
struct Piece {
    block: usize,
    /// Place in the block of the first row.
    at: usize,
    rows: Range<usize>,
}

/// The words of one layer in one block.
struct LayerWords(*mut u32);

// SAFETY: every task writes to blocks of its own; `store` checks that no two pieces have one block.
unsafe impl Sync for LayerWords {}

impl Kv {
    /// Stores keys and values of a layer, (rows, kv_heads, head_dim) each. `turn` changes the keys of a row, (kv_heads,
    /// head_dim), before they are stored.
    ///
    /// # Panics
    /// When [`Kv::provide`] was not called for the positions, or two sequences write to one block.
    pub(crate) fn store(
        &mut self,
        pool: &Pool,
        layer: usize,
        spans: &[StoredRows<'_>],
        keys: RowParts<'_>,
        values: RowParts<'_>,
        turn: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let (group, place) = self.shape.layers[layer];
        let pieces: Vec<Piece> = spans.iter().flat_map(|span| cut(span, group)).collect();
        let mut blocks: Vec<usize> = pieces.iter().map(|p| p.block).collect();
        blocks.sort_unstable();
        assert!(blocks.windows(2).all(|w| w[0] != w[1]), "two sequences write to one block");
        let layer_words = self.shape.layer_words();
        let places: Vec<LayerWords> = pieces
            .iter()
            .map(|piece| {
                let block = self.blocks[piece.block].as_mut().expect("provide gave it memory");
                LayerWords(block[place * layer_words..][..layer_words].as_mut_ptr())
            })
            .collect();
        // Ends of the pieces that make a task.
        let mut ends = Vec::new();
        let mut rows = 0;
        for (i, piece) in pieces.iter().enumerate() {
            rows += piece.rows.len();
            if rows >= ROWS_A_TASK || i + 1 == pieces.len() {
                ends.push(i + 1);
                rows = 0;
            }
        }
        let shape = &self.shape;
        pool.run(ends.len(), |task| {
            let first = if task == 0 { 0 } else { ends[task - 1] };
            for i in first..ends[task] {
                // SAFETY: the words are of a block that lives as long as `self` is borrowed, and no other piece, so no
                // other task, has the same one. Nobody reads them: `self` is borrowed mutably.
                let words = unsafe { std::slice::from_raw_parts_mut(places[i].0, layer_words) };
                let width = shape.kv_heads * shape.head_dim;
                let mut turned = vec![0.0; width];
                for (offset, row) in pieces[i].rows.clone().enumerate() {
                    turned.copy_from_slice(keys.row(row));
                    turn(row, &mut turned);
                    let at = pieces[i].at + offset;
                    let heads = turned.chunks_exact(shape.head_dim);
                    let heads = heads.zip(values.row(row).chunks_exact(shape.head_dim));
                    for ((keys, values), words) in heads.zip(words.chunks_exact_mut(2 * shape.head_words())) {
                        write(shape.format, shape.dim(), at, keys, values, words);
                    }
                }
            }
        });
    }
}

fn cut<'a>(span: &'a StoredRows<'a>, group: usize) -> impl Iterator<Item = Piece> + 'a {
    let end = span.position + span.rows.len();
    let numbers = span.position / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
    numbers.map(move |number| {
        let positions = (number * BLOCK_TOKENS).max(span.position)..((number + 1) * BLOCK_TOKENS).min(end);
        let row = |position: usize| span.rows.start + position - span.position;
        Piece {
            block: span.tables[group].block(number),
            at: positions.start % BLOCK_TOKENS,
            rows: row(positions.start)..row(positions.end),
        }
    })
}

/// Writes one head at place `at` of its block.
fn write(format: KvFormat, dim: usize, at: usize, keys: &[f32], values: &[f32], words: &mut [u32]) {
    let (block_keys, block_values) = words.split_at_mut(BLOCK_TOKENS * dim * format.bytes() / WORD_BYTES);
    match format {
        KvFormat::F32 => {
            for (key, words) in keys.iter().zip(block_keys.chunks_exact_mut(BLOCK_TOKENS)) {
                words[at] = key.to_bits();
            }
            for (value, word) in values.iter().zip(&mut block_values[at * dim..]) {
                *word = value.to_bits();
            }
        }
        KvFormat::Bf16 => {
            let pair = |low: f32, high: f32| u32::from(to_bf16(low)) | u32::from(to_bf16(high)) << 16;
            for (key, words) in keys.chunks_exact(2).zip(block_keys.chunks_exact_mut(BLOCK_TOKENS)) {
                words[at] = pair(key[0], key[1]);
            }
            for (value, word) in values.iter().zip(&mut block_values[at / 2 * dim..]) {
                // The position that comes next in the word is multiplied by 0 until it is written, so it has to be a
                // number: what is there is anybody's.
                *word =
                    if at.is_multiple_of(2) { pair(*value, 0.0) } else { pair(0.0, *value) | *word & 0xffff };
            }
        }
    }
}
