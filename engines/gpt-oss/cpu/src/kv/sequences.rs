//! Sequences that have all their blocks from the beginning, for programs that run a model without a scheduler.

use super::{BLOCK_TOKENS, Kv, KvShape, Table};
use crate::{CpuModel, Span};

/// A number of sequences, each of at most so many positions.
#[derive(Debug)]
pub struct Sequences {
    kv: Kv,
    /// Of each sequence and group.
    tables: Vec<Vec<Vec<u32>>>,
    lengths: Vec<usize>,
}

impl Sequences {
    /// Empty ones.
    pub fn new(shape: KvShape, count: usize, tokens_max: usize) -> Sequences {
        let blocks = tokens_max.div_ceil(BLOCK_TOKENS);
        let groups = shape.windows().len();
        let mut next = 0..;
        let tables =
            (0..count).map(|_| (0..groups).map(|_| next.by_ref().take(blocks).collect()).collect()).collect();
        Sequences { kv: Kv::new(shape, count * groups * blocks), tables, lengths: vec![0; count] }
    }

    /// Positions that a sequence has.
    pub fn length(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    /// A sequence begins anew.
    pub fn clear(&mut self, sequence: usize) {
        self.lengths[sequence] = 0;
    }

    /// A sequence is as if it had read so many tokens, which left nothing but zeros: to measure what a long context costs
    /// without reading one.
    ///
    /// # Panics
    /// When it has no room for them.
    pub fn pretend(&mut self, sequence: usize, tokens: usize) {
        let tables: Vec<Table<'_>> =
            self.tables[sequence].iter().map(|b| Table { first: 0, blocks: b }).collect();
        self.kv.provide(&tables, 0..tokens);
        self.lengths[sequence] = tokens;
    }

    /// Reads tokens of several sequences, (sequence, tokens, whether the logits after the last are wanted); see
    /// [`CpuModel::forward`].
    ///
    /// # Errors
    /// What `each_layer` gave.
    pub fn forward<E>(
        &mut self,
        model: &CpuModel,
        parts: &[(usize, &[u32], bool)],
        logits: &mut [f32],
        each_layer: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let tables: Vec<Vec<Table<'_>>> = parts
            .iter()
            .map(|(sequence, ..)| {
                self.tables[*sequence].iter().map(|b| Table { first: 0, blocks: b }).collect()
            })
            .collect();
        let spans: Vec<Span<'_>> = parts
            .iter()
            .zip(&tables)
            .map(|(&(sequence, tokens, wants_logits), tables)| Span {
                position: self.lengths[sequence],
                tokens,
                tables,
                wants_logits,
            })
            .collect();
        model.forward(&spans, &mut self.kv, logits, each_layer)?;
        for (sequence, tokens, _) in parts {
            self.lengths[*sequence] += tokens.len();
        }
        Ok(())
    }
}
