//! What a step tells the kernels: tokens, where they are, and whose they are. One upload for each step.

use gpt_oss_model::rope::Rotation;

use crate::model::Span;
use crate::ops::attention::{self, QUERIES};
use crate::plan::BLOCK_TOKENS;

/// A token that is not known yet: the other bits are the number of the draw of the pass before that chooses it.
pub(crate) const CHOSEN: u32 = 1 << 31;

/// A step as the device is told it. Numbers that end in `_at` are places in `words`. Everything but the words is what launches
/// depend on, and mostly the same from one step to the next.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) words: Vec<u32>,
    pub(crate) tokens: usize,
    pub(crate) tokens_at: u32,
    pub(crate) positions_at: u32,
    pub(crate) rows_at: u32,
    pub(crate) turns_at: u32,
    /// Tokens that attend alone, and those that do with others of their sequence: pairs of the first, and how many.
    pub(crate) single: (u32, usize),
    pub(crate) tiles: (u32, usize),
    /// Tokens whose logits are wanted.
    pub(crate) wanted: (u32, usize),
    pub(crate) groups: Vec<GroupStep>,
}

/// The tables of a group of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupStep {
    pub(crate) slots_at: u32,
    pub(crate) starts_at: u32,
    pub(crate) firsts_at: u32,
    pub(crate) tables_at: u32,
    /// Parts that contexts are cut into.
    pub(crate) parts: usize,
}

impl Step {
    /// `windows`: of each group, as [`crate::KvGroups`] has them.
    ///
    /// # Panics
    /// When a table lacks a block: the caller's mistake.
    pub(crate) fn of(
        rotation: &Rotation,
        windows: &[Option<usize>],
        kv_heads: usize,
        spans: &[Span<'_>],
    ) -> Step {
        let mut step = Step::default();
        let (mut positions, mut rows, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        let (mut single, mut tiles, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        let (mut tokens, mut context) = (Vec::new(), 0);
        for (row, span) in spans.iter().enumerate() {
            let at = tokens.len();
            for (i, &token) in span.tokens.iter().enumerate() {
                let position = word(span.position + i);
                tokens.push(span.chosen_by.map_or(token, |draw| CHOSEN | draw));
                positions.push(position);
                rows.push(word(row));
                let (cosines, sines) = rotation.at(position);
                turns.extend(cosines.into_iter().chain(sines).map(f32::to_bits));
            }
            if span.tokens.len() == 1 {
                single.extend([word(at), 1]);
            } else {
                for first in (0..span.tokens.len()).step_by(QUERIES) {
                    tiles.extend([word(at + first), word(QUERIES.min(span.tokens.len() - first))]);
                }
            }
            if span.wants_logits {
                wanted.push(word(tokens.len() - 1));
            }
            context = context.max(span.position + span.tokens.len());
        }
        step.tokens = tokens.len();
        step.single.1 = single.len() / 2;
        step.tiles.1 = tiles.len() / 2;
        step.wanted.1 = wanted.len();
        step.tokens_at = step.place(&tokens);
        step.positions_at = step.place(&positions);
        step.rows_at = step.place(&rows);
        step.turns_at = step.place(&turns);
        step.single.0 = step.place(&single);
        step.tiles.0 = step.place(&tiles);
        step.wanted.0 = step.place(&wanted);
        for (group, window) in windows.iter().enumerate() {
            let (mut slots, mut starts, mut firsts, mut tables) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for span in spans {
                let table = &span.tables[group];
                for position in span.position..span.position + span.tokens.len() {
                    let block = table.blocks[position / BLOCK_TOKENS - table.first];
                    slots.push(block * BLOCK_TOKENS as u32 + word(position % BLOCK_TOKENS));
                }
                starts.push(word(tables.len()));
                firsts.push(word(table.first));
                tables.extend_from_slice(table.blocks);
            }
            let group = GroupStep {
                slots_at: step.place(&slots),
                starts_at: step.place(&starts),
                firsts_at: step.place(&firsts),
                tables_at: step.place(&tables),
                parts: if step.tiles.1 > 0 {
                    1
                } else {
                    attention::parts(step.tokens, kv_heads, window.map_or(context, |w| w.min(context)))
                },
            };
            step.groups.push(group);
        }
        step
    }

    fn place(&mut self, words: &[u32]) -> u32 {
        let at = word(self.words.len());
        self.words.extend_from_slice(words);
        at
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("numbers of a step are far below 2^32")
}
