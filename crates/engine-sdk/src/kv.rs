//! Keys and values in blocks: what a device says of its blocks, and who holds which.
//!
//! A block has room for [`KvLayout::block_tokens`] positions of the layers of one *group*. All blocks are of one size and
//! come from one pool, so what one kind of layer does not use another can have. A group is a set of equally many layers
//! that look back equally far; a model with 12 full and 12 sliding layers has two groups of 12. Each sequence has one
//! [`BlockTable`] for each group: of a full group all its blocks, of a sliding group those that its window still touches.
//!
//! Reading order: this file (what there is), [`pool`] (which blocks are in use), [`prefix`] (which block holds what text),
//! [`cache`] (the tables of a sequence, over both).
//!
//! **Invariant:** numbers only. No byte of a key or a value is here; devices have them, addressed by [`BlockId`].

pub mod cache;
pub mod pool;
pub mod prefix;

use crate::{Status, StatusCode, reason};

/// Groups of one model at most.
pub const GROUPS_MAX: usize = 1024;

/// A block of the device: an index below [`KvLayout::blocks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockId(pub u32);

impl BlockId {
    /// For arrays with one entry per block.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Layers that are stored together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroup {
    /// How many positions a row of these layers looks back at, its own included; none: all.
    pub window: Option<u32>,
}

/// Which memory blocks are in, for the code of `kv_full`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvMemory {
    Ram,
    Vram,
}

/// The paged KV of a loaded model. Does not change while it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    /// Positions of a block.
    pub block_tokens: u32,
    /// Bytes of a block on the device.
    pub block_bytes: u64,
    /// Blocks there are, for all groups together.
    pub blocks: u32,
    /// At least one.
    pub groups: Vec<KvGroup>,
    pub memory: KvMemory,
}

/// The blocks of one group of one sequence: block `i` of `blocks` holds the positions from
/// `(first + i) * block_tokens` on. Positions before `first * block_tokens` are gone, because no row looks at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockTable<'a> {
    pub first: u32,
    pub blocks: &'a [BlockId],
}

impl KvGroup {
    /// Number of the first block that a row at `position`, or any later one, looks at.
    pub fn first_seen(&self, position: u32, block_tokens: u32) -> u32 {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window) / block_tokens)
    }

    /// Blocks that a sequence of `tokens` positions holds at most, read token by token. A chunk of n positions in one
    /// step takes `n.div_ceil(block_tokens)` more in a sliding group.
    pub fn blocks_held(&self, tokens: u32, block_tokens: u32) -> u64 {
        let all = tokens.div_ceil(block_tokens);
        // Its window can begin anywhere in a block, and so can the place for the next token.
        let windowed = self.window.map_or(u32::MAX, |w| (w - 1).div_ceil(block_tokens).saturating_add(2));
        u64::from(all.min(windowed))
    }

    /// As [`KvGroup::blocks_held`], with the window where it lies: the blocks that `tokens` positions need when the last
    /// of them is read alone. What a sequence cannot do without.
    fn blocks_least(&self, tokens: u32, block_tokens: u32) -> u64 {
        let first = self.first_seen(tokens.saturating_sub(1), block_tokens);
        u64::from(tokens.div_ceil(block_tokens) - first)
    }
}

impl KvLayout {
    /// Blocks for one sequence of at most `tokens` positions, all groups together.
    pub fn blocks_per_sequence(&self, tokens: u32) -> u64 {
        self.groups.iter().map(|g| g.blocks_held(tokens, self.block_tokens)).sum()
    }

    /// Blocks that sliding groups take besides while a step reads `tokens` positions, over all sequences.
    pub fn blocks_per_step(&self, tokens: u32) -> u64 {
        let sliding = self.groups.iter().filter(|g| g.window.is_some()).count() as u64;
        sliding * u64::from(tokens.div_ceil(self.block_tokens))
    }

    /// The fewest blocks with which a sequence can get to `tokens` positions.
    pub(crate) fn blocks_least(&self, tokens: u32) -> u64 {
        let at = |tokens: u32| -> u64 {
            self.groups.iter().map(|g| g.blocks_least(tokens, self.block_tokens)).sum()
        };
        // A window takes most when it begins at the end of a block, which may have been before the last token.
        (tokens.saturating_sub(self.block_tokens)..=tokens).map(at).max().unwrap_or(0)
    }

    /// The status of a sequence that does not fit, whatever else ends.
    pub(crate) fn full(&self, tokens: u32) -> Status {
        let needed = self.blocks_least(tokens).saturating_mul(self.block_bytes);
        let available = u64::from(self.blocks).saturating_mul(self.block_bytes);
        let code = match self.memory {
            KvMemory::Ram => StatusCode::OomRam,
            KvMemory::Vram => StatusCode::OomVram,
        };
        let message = format!(
            "a sequence of {tokens} tokens needs {needed} bytes of KV, and there are {available} for all sequences; \
             send a shorter prompt, ask for fewer tokens, or load the model with more KV"
        );
        Status::new(code, reason::KV_FULL, message).with_numbers(needed, available)
    }

    /// # Errors
    /// `INTERNAL` when the layout cannot be, or holds not even the shortest sequence.
    pub(crate) fn check(&self) -> Result<(), Status> {
        let sound = self.block_tokens > 0
            && (1..=GROUPS_MAX).contains(&self.groups.len())
            && self.groups.iter().all(|g| g.window != Some(0))
            && self.blocks_least(2) <= u64::from(self.blocks);
        if sound {
            Ok(())
        } else {
            Err(Status::internal(reason::INTERNAL, format!("the engine has {self:?}")))
        }
    }
}

#[cfg(test)]
mod tests;
