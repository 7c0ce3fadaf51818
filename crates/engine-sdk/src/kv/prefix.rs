//! Which block holds which text: blocks by the hash of everything up to their end.
//!
//! The hash of a block is SHA-256 over the hash of the block before it and its own tokens; the chain begins with the
//! caller's salt. So equal hashes mean equal salt and equal tokens from the first on, and nobody can make two texts that
//! meet. Position needs no place in it: it follows from the chain's length, which the equal text has too.

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use super::BlockId;

/// Of everything up to the end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// Before the first block.
    pub fn root(salt: u64) -> BlockHash {
        BlockHash(Sha256::digest(salt.to_le_bytes()).into())
    }

    /// Of the block with `tokens`, behind the block of `self`.
    #[must_use]
    pub fn then(&self, tokens: &[u32]) -> BlockHash {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        for token in tokens {
            hasher.update(token.to_le_bytes());
        }
        BlockHash(hasher.finalize().into())
    }
}

/// The hashes of the whole blocks of a sequence, as far as they have been asked for.
#[derive(Debug)]
pub struct Chain {
    root: BlockHash,
    hashes: Vec<BlockHash>,
}

impl Chain {
    pub fn new(salt: u64) -> Chain {
        Chain { root: BlockHash::root(salt), hashes: Vec::new() }
    }

    /// The hashes of the first `blocks` blocks of `tokens`, which only ever grow at their end.
    pub fn up_to(&mut self, blocks: usize, tokens: &[u32], block_tokens: u32) -> &[BlockHash] {
        let done = self.hashes.len();
        let mut last = self.hashes.last().copied().unwrap_or(self.root);
        for tokens in tokens.chunks_exact(block_tokens as usize).take(blocks).skip(done) {
            last = last.then(tokens);
            self.hashes.push(last);
        }
        &self.hashes[..blocks.min(self.hashes.len())]
    }
}

/// Block of a group by hash, and back.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    blocks: HashMap<(u32, BlockHash), BlockId>,
    keys: HashMap<BlockId, (u32, BlockHash)>,
}

impl PrefixIndex {
    pub fn find(&self, group: u32, hash: BlockHash) -> Option<BlockId> {
        self.blocks.get(&(group, hash)).copied()
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.keys.contains_key(&block)
    }

    /// Notes what a block holds. Where another block holds the same, that one stays and this is not noted.
    pub fn insert(&mut self, group: u32, hash: BlockHash, block: BlockId) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.blocks.entry((group, hash)) {
            entry.insert(block);
            self.keys.insert(block, (group, hash));
        }
    }

    pub fn forget(&mut self, block: BlockId) {
        if let Some(key) = self.keys.remove(&block) {
            self.blocks.remove(&key);
        }
    }

    pub fn clear(&mut self) {
        self.blocks.clear();
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests;
