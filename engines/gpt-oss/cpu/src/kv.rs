//! Keys and values in blocks that come from one pool, and the tables that say which block holds which positions.
//!
//! A block has 64 positions of all layers of one group. Groups have equally many layers of one kind, so that all blocks
//! are of one size: 12 sliding and 12 full layers are two groups of 12. Who gets which block, and when it is let go, is
//! not decided here but by whoever makes the tables; what is not written to yet is garbage of others.
//!
//! **How a head lies in a block.** First its keys, then its values, as words of 32 bits: one f32 number, or two bf16 ones.
//! Keys are turned around, so that scores of neighbouring positions are neighbouring lanes: f32 (dim, 64), bf16 (dim / 2,
//! 64) words of two dimensions. Values are not: f32 (64, dim), bf16 (32, dim) words of two positions. `dim` is the head's
//! number of dimensions rounded up to a multiple of 32; the rest is 0.

mod sequences;
#[expect(unsafe_code, reason = "threads write to parts of blocks that only they write to")]
mod store;

use gpt_oss_model::{Attention, GptOssConfig};

use crate::attention::DIM_MULTIPLE;

pub use sequences::Sequences;
pub(crate) use store::{RowParts, StoredRows};

/// Positions of a block. 16 KiB of keys of one head: long enough to be read at full speed, short enough that little of a
/// shared beginning is lost behind the last whole block.
pub const BLOCK_TOKENS: usize = 64;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvFormat {
    F32,
    /// Half of the memory, and of the reading; the published model's own form.
    Bf16,
}

impl KvFormat {
    pub fn as_str(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::Bf16 => "bf16",
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            KvFormat::F32 => 4,
            KvFormat::Bf16 => 2,
        }
    }

    /// Words of so many numbers, an even one.
    pub(crate) fn words(self, numbers: usize) -> usize {
        numbers * self.bytes() / WORD_BYTES
    }
}

const WORD_BYTES: usize = size_of::<u32>();

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
    format: KvFormat,
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
    blocks: Vec<Option<Box<[u32]>>>,
}

/// Keys and values of one head in one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadBlock<'a> {
    pub(crate) keys: &'a [u32],
    pub(crate) values: &'a [u32],
}

/// One layer of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerKv<'a> {
    kv: &'a Kv,
    table: Table<'a>,
    layer: usize,
}

impl KvShape {
    pub fn of(config: &GptOssConfig, format: KvFormat) -> KvShape {
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
        KvShape { windows, layers, layers_a_group, kv_heads, head_dim, format }
    }

    /// Of each group, how many positions a row looks back at, its own included; none: all.
    pub fn windows(&self) -> &[Option<usize>] {
        &self.windows
    }

    pub fn format(&self) -> KvFormat {
        self.format
    }

    pub fn block_bytes(&self) -> u64 {
        (self.block_words() * WORD_BYTES) as u64
    }

    /// Bytes of a layer for each position.
    pub(crate) fn layer_token_bytes(&self) -> u64 {
        (self.layer_words() * WORD_BYTES / BLOCK_TOKENS) as u64
    }

    fn block_words(&self) -> usize {
        self.layers_a_group * self.layer_words()
    }

    /// Words of one layer in a block: of each head its keys and then its values.
    fn layer_words(&self) -> usize {
        2 * self.kv_heads * self.head_words()
    }

    /// Words of the keys of one head in a block.
    fn head_words(&self) -> usize {
        self.format.words(BLOCK_TOKENS * self.dim())
    }

    /// Dimensions of a head, those that are always 0 included.
    fn dim(&self) -> usize {
        self.head_dim.next_multiple_of(DIM_MULTIPLE)
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
        let words = self.shape.block_words();
        for table in tables {
            for number in positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS) {
                let block = &mut self.blocks[table.block(number)];
                block.get_or_insert_with(|| vec![0; words].into_boxed_slice());
            }
        }
    }

    pub(crate) fn layer<'a>(&'a self, layer: usize, tables: &[Table<'a>]) -> LayerKv<'a> {
        LayerKv { kv: self, table: tables[self.shape.layers[layer].0], layer }
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

    /// One head in block `number` of the sequence.
    ///
    /// # Panics
    /// When the table does not have the block, or nothing was stored there.
    pub(crate) fn block(&self, head: usize, number: usize) -> HeadBlock<'a> {
        let LayerKv { kv, table, layer } = *self;
        let words = kv.shape.head_words();
        let start = kv.shape.layers[layer].1 * kv.shape.layer_words() + 2 * head * words;
        let block = kv.blocks[table.block(number)].as_ref().expect("what is looked at was stored");
        let (keys, values) = block[start..][..2 * words].split_at(words);
        HeadBlock { keys, values }
    }

    /// Key and value of one head at one position, number by number.
    #[cfg(test)]
    pub(crate) fn at(&self, head: usize, position: usize) -> (Vec<f32>, Vec<f32>) {
        let block = self.block(head, position / BLOCK_TOKENS);
        let (shape, at) = (&self.kv.shape, position % BLOCK_TOKENS);
        let half =
            |word: u32, upper: bool| f32::from_bits(if upper { word & 0xffff_0000 } else { word << 16 });
        let number = |d: usize| match shape.format {
            KvFormat::F32 => (
                f32::from_bits(block.keys[d * BLOCK_TOKENS + at]),
                f32::from_bits(block.values[at * shape.dim() + d]),
            ),
            KvFormat::Bf16 => (
                half(block.keys[d / 2 * BLOCK_TOKENS + at], d % 2 == 1),
                half(block.values[at / 2 * shape.dim() + d], at % 2 == 1),
            ),
        };
        (0..shape.head_dim).map(number).unzip()
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests;
