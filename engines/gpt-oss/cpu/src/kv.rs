//! Keys and values in blocks that come from one pool, and the tables that say which block holds which positions.
//!
//! A block has 64 positions of all layers of one group. Groups have equally many layers of one kind, so that all blocks
//! are of one size: 12 sliding and 12 full layers are two groups of 12. Who gets which block, and when it is let go, is
//! not decided here but by whoever makes the tables; what is not written to yet is garbage of others.

mod sequences;

use gpt_oss_model::{Attention, GptOssConfig};

pub use sequences::Sequences;

/// Positions of a block. 16 KiB of keys of one head: long enough to be read at full speed, short enough that little of a
/// shared beginning is lost behind the last whole block.
pub const BLOCK_TOKENS: usize = 64;

/// How the layers of a model lie in blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvShape {
    /// Of each group, how many positions a row looks back at, its own included; none: all.
    windows: Vec<Option<usize>>,
    /// Of each layer: its group, and its place among the group's layers.
    layers: Vec<(usize, usize)>,
    layers_a_group: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// The blocks of one group of one sequence: block `i` holds the positions from `(first + i) * BLOCK_TOKENS` on.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    pub first: usize,
    /// Numbers of blocks, below [`Kv::blocks`].
    pub blocks: &'a [u32],
}

/// All blocks of a loaded model. Memory is taken when a block is used for the first time.
#[derive(Debug)]
pub struct Kv {
    shape: KvShape,
    blocks: Vec<Option<Box<[f32]>>>,
}

/// One layer of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerKv<'a> {
    kv: &'a Kv,
    table: Table<'a>,
    layer: usize,
}

impl KvShape {
    pub fn of(config: &GptOssConfig) -> KvShape {
        let sliding = config.layers.iter().filter(|l| **l == Attention::Sliding).count();
        let full = config.layers.len() - sliding;
        let layers_a_group = greatest_common_divisor(sliding, full).max(1);
        let window = |kind| match kind {
            Attention::Sliding => Some(config.sliding_window),
            Attention::Full => None,
        };
        let mut windows: Vec<Option<usize>> = Vec::new();
        // The group of each kind that still has places, and how many are taken.
        let mut open: [(usize, usize); 2] = [(0, layers_a_group); 2];
        let layers = config.layers.iter().map(|&kind| {
            let (group, taken) = &mut open[usize::from(kind == Attention::Full)];
            if *taken == layers_a_group {
                (*group, *taken) = (windows.len(), 0);
                windows.push(window(kind));
            }
            *taken += 1;
            (*group, *taken - 1)
        });
        let layers = layers.collect();
        let GptOssConfig { kv_heads, head_dim, .. } = *config;
        KvShape { windows, layers, layers_a_group, kv_heads, head_dim }
    }

    /// Of each group, how many positions a row looks back at, its own included; none: all.
    pub fn windows(&self) -> &[Option<usize>] {
        &self.windows
    }

    pub fn block_bytes(&self) -> u64 {
        (self.block_floats() * size_of::<f32>()) as u64
    }

    fn block_floats(&self) -> usize {
        self.layers_a_group * self.layer_floats()
    }

    /// Floats of one layer in a block: of each head its keys and then its values.
    fn layer_floats(&self) -> usize {
        2 * self.kv_heads * self.head_floats()
    }

    /// Floats of the keys of one head in a block.
    fn head_floats(&self) -> usize {
        BLOCK_TOKENS * self.head_dim
    }
}

impl Kv {
    pub fn new(shape: KvShape, blocks: usize) -> Kv {
        Kv { shape, blocks: (0..blocks).map(|_| None).collect() }
    }

    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Blocks there can be.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes that blocks have taken so far.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().flatten().count() as u64 * self.shape.block_bytes()
    }

    /// Gives memory to the blocks in which these positions are.
    ///
    /// # Panics
    /// When the tables do not have them, or name blocks that are not there.
    pub(crate) fn provide(&mut self, tables: &[Table<'_>], positions: std::ops::Range<usize>) {
        assert_eq!(tables.len(), self.shape.windows.len(), "a table for each group");
        let floats = self.shape.block_floats();
        for table in tables {
            for number in positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS) {
                let block = &mut self.blocks[table.block(number)];
                block.get_or_insert_with(|| vec![0.0; floats].into_boxed_slice());
            }
        }
    }

    pub(crate) fn layer<'a>(&'a self, layer: usize, tables: &[Table<'a>]) -> LayerKv<'a> {
        LayerKv { kv: self, table: tables[self.shape.layers[layer].0], layer }
    }

    /// Stores the turned keys and the values of a position, (kv_heads, head_dim) each.
    ///
    /// # Panics
    /// When [`Kv::provide`] was not called for the position.
    pub(crate) fn store(
        &mut self,
        layer: usize,
        tables: &[Table<'_>],
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let (group, place) = self.shape.layers[layer];
        let (layer_floats, head_floats, head_dim) =
            (self.shape.layer_floats(), self.shape.head_floats(), self.shape.head_dim);
        let block = &mut self.blocks[tables[group].block(position / BLOCK_TOKENS)];
        let block = block.as_mut().expect("provide gave it memory");
        let block = &mut block[place * layer_floats..][..layer_floats];
        let at = position % BLOCK_TOKENS * head_dim;
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for ((keys, values), block) in heads.zip(block.chunks_exact_mut(2 * head_floats)) {
            block[at..at + head_dim].copy_from_slice(keys);
            block[head_floats + at..][..head_dim].copy_from_slice(values);
        }
    }
}

impl Table<'_> {
    fn block(&self, number: usize) -> usize {
        let at = number.checked_sub(self.first).and_then(|at| self.blocks.get(at));
        *at.expect("the table has the block of every position that is looked at") as usize
    }
}

impl<'a> LayerKv<'a> {
    /// The positions that the row at `position` looks at: its own and those before it.
    pub(crate) fn visible(&self, position: usize) -> std::ops::Range<usize> {
        let window = self.kv.shape.windows[self.kv.shape.layers[self.layer].0];
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        first..position + 1
    }

    /// Keys and values of one head at those positions, (n, head_dim) each, piece by piece in order.
    pub(crate) fn pieces(
        &self,
        head: usize,
        positions: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
        let LayerKv { kv, table, layer } = *self;
        let (head_floats, head_dim) = (kv.shape.head_floats(), kv.shape.head_dim);
        let start_of_head = kv.shape.layers[layer].1 * kv.shape.layer_floats() + 2 * head * head_floats;
        let numbers = positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS);
        numbers.map(move |number| {
            let start = number * BLOCK_TOKENS;
            let first = positions.start.max(start) - start;
            let end = positions.end.min(start + BLOCK_TOKENS) - start;
            let block = kv.blocks[table.block(number)].as_ref().expect("what is looked at was stored");
            let (keys, values) = block[start_of_head..][..2 * head_floats].split_at(head_floats);
            (&keys[first * head_dim..end * head_dim], &values[first * head_dim..end * head_dim])
        })
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests;
