//! Keys and values of one sequence, in blocks that come with its length and go when nothing looks at them any more.

use std::collections::VecDeque;

use gpt_oss_model::{Attention, GptOssConfig};

/// Positions of a block.
pub(crate) const BLOCK_TOKENS: usize = 64;

/// The cache of one sequence.
#[derive(Debug)]
pub struct Kv {
    layers: Vec<LayerKv>,
    length: usize,
    /// Of the slots, which the model checks.
    pub(crate) tokens_max: usize,
}

/// The cache of one layer.
#[derive(Debug)]
pub(crate) struct LayerKv {
    blocks: VecDeque<Box<[f32]>>,
    /// Number of the first block: positions before it are gone.
    first_block: usize,
    /// How many positions a row looks back at, its own included.
    window: Option<usize>,
    kv_heads: usize,
    head_dim: usize,
}

impl Kv {
    pub(crate) fn new(config: &GptOssConfig, tokens_max: usize) -> Kv {
        let layer = |attention: &Attention| LayerKv {
            blocks: VecDeque::new(),
            first_block: 0,
            window: match attention {
                Attention::Sliding => Some(config.sliding_window),
                Attention::Full => None,
            },
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        };
        Kv { layers: config.layers.iter().map(layer).collect(), length: 0, tokens_max }
    }

    /// Positions held so far.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes held now.
    pub fn bytes(&self) -> u64 {
        let floats: usize = self.layers.iter().flat_map(|l| &l.blocks).map(|b| b.len()).sum();
        (floats * size_of::<f32>()) as u64
    }

    /// Makes room for `count` more positions in every layer.
    pub(crate) fn grow(&mut self, count: usize) {
        self.length += count;
        for layer in &mut self.layers {
            layer.grow(self.length);
        }
    }

    /// Frees what no later position looks at.
    pub(crate) fn trim(&mut self) {
        for layer in &mut self.layers {
            layer.trim(self.length);
        }
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerKv {
        &self.layers[layer]
    }

    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut LayerKv {
        &mut self.layers[layer]
    }
}

impl LayerKv {
    /// Floats of the keys of one head in a block; its values follow them.
    fn head_floats(&self) -> usize {
        BLOCK_TOKENS * self.head_dim
    }

    fn grow(&mut self, length: usize) {
        let floats = 2 * self.kv_heads * self.head_floats();
        while (self.first_block + self.blocks.len()) * BLOCK_TOKENS < length {
            self.blocks.push_back(vec![0.0; floats].into_boxed_slice());
        }
    }

    fn trim(&mut self, length: usize) {
        let Some(window) = self.window else { return };
        let first_seen = (length + 1).saturating_sub(window);
        while (self.first_block + 1) * BLOCK_TOKENS <= first_seen && self.blocks.pop_front().is_some() {
            self.first_block += 1;
        }
    }

    /// Stores the turned keys and the values of a position, (kv_heads, head_dim) each.
    pub(crate) fn store(&mut self, position: usize, keys: &[f32], values: &[f32]) {
        let (head_floats, head_dim) = (self.head_floats(), self.head_dim);
        let block = &mut self.blocks[position / BLOCK_TOKENS - self.first_block];
        let at = position % BLOCK_TOKENS * head_dim;
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for ((keys, values), block) in heads.zip(block.chunks_exact_mut(2 * head_floats)) {
            block[at..at + head_dim].copy_from_slice(keys);
            block[head_floats + at..][..head_dim].copy_from_slice(values);
        }
    }

    /// The positions that the row at `position` looks at: its own and those before it.
    pub(crate) fn visible(&self, position: usize) -> std::ops::Range<usize> {
        let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        first..position + 1
    }

    /// Keys and values of one head at those positions, (n, head_dim) each, piece by piece in order.
    pub(crate) fn pieces(
        &self,
        head: usize,
        positions: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (&[f32], &[f32])> {
        let (head_floats, head_dim) = (self.head_floats(), self.head_dim);
        let blocks = positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS);
        blocks.map(move |number| {
            let start = number * BLOCK_TOKENS;
            let first = positions.start.max(start) - start;
            let end = positions.end.min(start + BLOCK_TOKENS) - start;
            let block = &self.blocks[number - self.first_block][2 * head * head_floats..][..2 * head_floats];
            let (keys, values) = block.split_at(head_floats);
            (&keys[first * head_dim..end * head_dim], &values[first * head_dim..end * head_dim])
        })
    }
}

#[cfg(test)]
mod tests;
