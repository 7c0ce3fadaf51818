//! The block tables of sequences: found again, grown, published, trimmed, let go.
//!
//! **What a reused prefix of n blocks needs.** Of every full group all n blocks; of every sliding group those that the
//! next row looks at, which are the blocks of the window before the prefix's end. Whatever lies before a window is never
//! looked at again. So the longest prefix is sought whose full blocks are all there and whose last windows are, too; at
//! least one token of the prompt stays to be read, because only reading gives logits.

use super::{
    BlockId, BlockTable, KvLayout,
    pool::BlockPool,
    prefix::{BlockHash, PrefixIndex},
};

/// The blocks that one sequence holds, one table for each group.
#[derive(Debug, Default)]
pub struct SequenceKv {
    tables: Vec<Table>,
    /// Whole blocks that are in the index already.
    published: u32,
}

#[derive(Debug, Clone, Default)]
struct Table {
    first: u32,
    blocks: Vec<BlockId>,
}

impl Table {
    /// Number of the first block it does not have.
    fn end(&self) -> u32 {
        self.first + u32::try_from(self.blocks.len()).expect("a table is shorter than the context")
    }
}

impl SequenceKv {
    pub fn tables(&self) -> impl ExactSizeIterator<Item = BlockTable<'_>> {
        self.tables.iter().map(|t| BlockTable { first: t.first, blocks: &t.blocks })
    }

    pub fn blocks(&self) -> u64 {
        self.tables.iter().map(|t| t.blocks.len() as u64).sum()
    }
}

/// All blocks of a model.
#[derive(Debug)]
pub struct KvCache {
    layout: KvLayout,
    pool: BlockPool,
    prefixes: PrefixIndex,
    /// Kept blocks that were taken for something else.
    evicted: u64,
}

impl KvCache {
    pub fn new(layout: KvLayout) -> KvCache {
        KvCache { pool: BlockPool::new(layout.blocks), layout, prefixes: PrefixIndex::default(), evicted: 0 }
    }

    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Kept blocks that were taken for something else, since the load.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// How many of the blocks of `chain` can be used again.
    pub fn prefix(&self, chain: &[BlockHash]) -> u32 {
        let has = |group: usize, hash: &BlockHash| self.prefixes.find(index(group), *hash).is_some();
        let groups = || self.layout.groups.iter().enumerate();
        let whole = chain
            .iter()
            .position(|hash| groups().any(|(g, group)| group.window.is_none() && !has(g, hash)))
            .unwrap_or(chain.len());
        let windows_are_there = |blocks: usize| {
            groups().filter(|(_, group)| group.window.is_some()).all(|(g, group)| {
                let next = blocks as u32 * self.layout.block_tokens;
                let first = group.first_seen(next, self.layout.block_tokens) as usize;
                chain[first.min(blocks)..blocks].iter().all(|hash| has(g, hash))
            })
        };
        (1..=whole).rev().find(|&blocks| windows_are_there(blocks)).map_or(0, index)
    }

    /// The tables of a sequence that goes on behind the first `blocks` blocks of `chain`, as [`KvCache::prefix`] found
    /// them.
    ///
    /// # Panics
    /// When it did not.
    pub fn adopt(&mut self, chain: &[BlockHash], blocks: u32) -> SequenceKv {
        let next = blocks * self.layout.block_tokens;
        let mut tables = Vec::with_capacity(self.layout.groups.len());
        for (g, group) in self.layout.groups.iter().enumerate() {
            let first = group.first_seen(next, self.layout.block_tokens).min(blocks);
            let mut table = Table { first, blocks: Vec::new() };
            for hash in &chain[first as usize..blocks as usize] {
                let block = self.prefixes.find(index(g), *hash).expect("prefix has found it");
                self.pool.share(block);
                table.blocks.push(block);
            }
            tables.push(table);
        }
        SequenceKv { tables, published: blocks }
    }

    /// Blocks that are missing for `tokens` positions.
    pub fn missing(&self, kv: &SequenceKv, tokens: u32) -> u64 {
        let end = tokens.div_ceil(self.layout.block_tokens);
        kv.tables.iter().map(|t| u64::from(end.saturating_sub(t.end()))).sum()
    }

    /// Blocks that the sequence may still take on its way to `tokens` positions, read token by token.
    pub fn outstanding(&self, kv: &SequenceKv, tokens: u32) -> u64 {
        let each = self.layout.groups.iter().zip(&kv.tables);
        each.map(|(group, table)| {
            group.blocks_held(tokens, self.layout.block_tokens).saturating_sub(table.blocks.len() as u64)
        })
        .sum()
    }

    /// Gives the sequence room for `tokens` positions; false, and nothing has changed, where blocks are lacking.
    pub fn grow(&mut self, kv: &mut SequenceKv, tokens: u32) -> bool {
        if self.missing(kv, tokens) > self.pool.available() {
            return false;
        }
        let end = tokens.div_ceil(self.layout.block_tokens);
        for table in &mut kv.tables {
            while table.end() < end {
                let taken = self.pool.take().expect("there are as many as are missing");
                if taken.was_kept {
                    self.prefixes.forget(taken.block);
                    self.evicted += 1;
                }
                table.blocks.push(taken.block);
            }
        }
        true
    }

    /// The first `tokens` positions are in the blocks now: whole blocks can be found by others, and what is behind every
    /// window is let go. `chain` has at least the hashes of all whole blocks.
    pub fn commit(&mut self, kv: &mut SequenceKv, chain: &[BlockHash], tokens: u32) {
        let whole = tokens / self.layout.block_tokens;
        for number in kv.published..whole {
            let hash = chain[number as usize];
            for (g, table) in kv.tables.iter().enumerate() {
                self.prefixes.insert(index(g), hash, table.blocks[(number - table.first) as usize]);
            }
        }
        kv.published = whole.max(kv.published);
        for (group, table) in self.layout.groups.iter().zip(&mut kv.tables) {
            let first = group.first_seen(tokens, self.layout.block_tokens);
            let gone = first.saturating_sub(table.first).min(table.end() - table.first);
            for block in table.blocks.drain(..gone as usize) {
                let keep = self.prefixes.contains(block);
                self.pool.release(block, keep);
            }
            table.first += gone;
        }
    }

    /// Lets all blocks of a sequence go, the last ones first: they are the least likely to be wanted again.
    pub fn release(&mut self, kv: SequenceKv) {
        let longest = kv.tables.iter().map(Table::end).max().unwrap_or(0);
        for number in (0..longest).rev() {
            for table in &kv.tables {
                let at = number.checked_sub(table.first).map(|at| at as usize);
                if let Some(&block) = at.and_then(|at| table.blocks.get(at)) {
                    let keep = self.prefixes.contains(block);
                    self.pool.release(block, keep);
                }
            }
        }
    }

    /// Nothing in the blocks can be trusted any more. Sequences that hold blocks still have to let them go.
    pub fn forget(&mut self) {
        self.prefixes.clear();
        self.pool.drop_kept();
    }
}

fn index(number: usize) -> u32 {
    u32::try_from(number).expect("groups and blocks of a context are few")
}

#[cfg(test)]
mod tests;
