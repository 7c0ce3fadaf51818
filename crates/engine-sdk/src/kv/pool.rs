//! Which blocks are free, which are in use and by how many, and which of the rest is the coldest.
//!
//! A block is in one of three states: *free* (holds nothing), *used* (by one or several sequences), *kept* (by nobody, but
//! what it holds may be wanted again). Kept blocks count as available: the one that was let go longest ago is taken when
//! no free one is left.

use std::collections::BTreeMap;

use super::BlockId;

#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    /// By the time they were let go; the first is the coldest.
    kept: BTreeMap<u64, BlockId>,
    /// Counts what was let go: the pool's own time.
    time: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    users: u32,
    /// Its key in `kept`.
    kept_since: Option<u64>,
}

/// A block that was taken from the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub block: BlockId,
    /// It was kept until now: what it held is lost.
    pub was_kept: bool,
}

impl BlockPool {
    pub fn new(blocks: u32) -> BlockPool {
        BlockPool {
            blocks: vec![Block::default(); blocks as usize],
            // Low numbers are taken first: a device that makes its blocks at their first use then has few.
            free: (0..blocks).rev().map(BlockId).collect(),
            kept: BTreeMap::new(),
            time: 0,
        }
    }

    /// Blocks that can be taken.
    pub fn available(&self) -> u64 {
        (self.free.len() + self.kept.len()) as u64
    }

    pub fn free(&self) -> u64 {
        self.free.len() as u64
    }

    pub fn kept(&self) -> u64 {
        self.kept.len() as u64
    }

    pub fn used(&self) -> u64 {
        self.blocks.len() as u64 - self.available()
    }

    /// A block for one user: a free one, else the coldest of the kept ones; none when all are in use.
    pub fn take(&mut self) -> Option<Taken> {
        let (block, was_kept) = match self.free.pop() {
            Some(block) => (block, false),
            None => (self.kept.pop_first()?.1, true),
        };
        self.blocks[block.index()] = Block { users: 1, kept_since: None };
        Some(Taken { block, was_kept })
    }

    /// One user more for a block that is used or kept.
    ///
    /// # Panics
    /// When the block is free.
    pub fn share(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        match entry.kept_since.take() {
            Some(since) => {
                self.kept.remove(&since);
            }
            None => assert!(entry.users > 0, "block {} is free and shared", block.0),
        }
        entry.users += 1;
    }

    /// One user less. After the last one the block is kept or free, as `keep` says.
    ///
    /// # Panics
    /// When nobody uses it.
    pub fn release(&mut self, block: BlockId, keep: bool) {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.users > 0, "block {} is let go and nobody has it", block.0);
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        if keep {
            self.time += 1;
            entry.kept_since = Some(self.time);
            self.kept.insert(self.time, block);
        } else {
            self.free.push(block);
        }
    }

    /// Frees every kept block.
    pub fn drop_kept(&mut self) {
        for block in std::mem::take(&mut self.kept).into_values() {
            self.blocks[block.index()].kept_since = None;
            self.free.push(block);
        }
    }
}

#[cfg(test)]
mod tests;
