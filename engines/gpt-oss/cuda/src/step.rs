//! What a step tells the kernels: tokens, where they are, and whose they are. One upload for each step, to one place, so
//! that a recorded step reads what is there by then.

use gpt_oss_model::GptOssConfig;

use crate::model::Span;
use crate::ops::sample::{CHANGE_WORDS, CHANGES_MAX, ROW_WORDS, Requests, mask_words};
use crate::plan::{BLOCK_TOKENS, Bounds, KvGroups};

/// Tokens of a sequence that `attention_prefill.cu` takes together.
const TILE: usize = 16;
/// Position of a token that is there to fill up.
const NOBODY: u32 = u32::MAX;

/// Places of the parts, in words of 32 bits. The block tables, the changes of logits and the masks are last, and uploaded as far
/// as they go.
#[derive(Debug, Clone, Copy)]
pub struct StepLayout {
    pub tokens: usize,
    pub positions: usize,
    /// Of each token, its span.
    pub rows: usize,
    /// Tokens that attend alone.
    pub entries: usize,
    /// See `attention_prefill.cu`.
    pub tiles: usize,
    /// Tokens whose logits are wanted.
    pub wanted: usize,
    /// See `sample.cu`.
    pub samples: usize,
    slots: usize,
    starts: usize,
    firsts: usize,
    pub tables: usize,
    /// Changes of logits, of all rows.
    pub changes_max: usize,
    words: usize,
    /// Words from group to group, in `slots`, and in `starts` and `firsts`.
    tokens_max: usize,
    rows_max: usize,
}

impl StepLayout {
    pub fn of(config: &GptOssConfig, bounds: Bounds) -> StepLayout {
        let groups = KvGroups::of(config).windows.len();
        let tokens_max = bounds.tokens();
        let rows_max = bounds.sequences_max.next_power_of_two();
        // Every row has its share, and one may change every token that there is.
        let changes_max = rows_max * CHANGES_MAX + config.vocabulary;
        let mut end = 0;
        let mut place = |words: usize| {
            let at = end;
            // 16 bytes, as everything that may be read in pieces of that size.
            end = (at + words).next_multiple_of(4);
            at
        };
        StepLayout {
            tokens: place(tokens_max),
            positions: place(tokens_max),
            rows: place(tokens_max),
            entries: place(rows_max),
            tiles: place(4 * (tokens_max / TILE + rows_max)),
            wanted: place(rows_max),
            samples: place(rows_max * ROW_WORDS),
            slots: place(groups * tokens_max),
            starts: place(groups * rows_max),
            firsts: place(groups * rows_max),
            tables: place(groups * rows_max * bounds.table()),
            changes_max,
            words: end + changes_max * CHANGE_WORDS + rows_max * mask_words(config.vocabulary),
            tokens_max,
            rows_max,
        }
    }

    pub fn words(&self) -> usize {
        self.words
    }

    pub fn slots(&self, group: usize) -> usize {
        self.slots + group * self.tokens_max
    }

    pub fn starts(&self, group: usize) -> usize {
        self.starts + group * self.rows_max
    }

    pub fn firsts(&self, group: usize) -> usize {
        self.firsts + group * self.rows_max
    }
}

/// A step as the device is told it.
#[derive(Debug)]
pub struct Step {
    pub words: Vec<u32>,
    pub tokens: usize,
    pub entries: usize,
    pub tiles: usize,
    pub wanted: usize,
    /// Place of the changes, which `samples` names by number.
    pub changes: usize,
    /// The same of the masks.
    pub masks: usize,
    /// One token of every sequence, logits wanted of all: what is recorded.
    pub is_decode: bool,
}

impl Step {
    /// # Panics
    /// When spans are more or longer than the bounds say, or a table lacks a block: the caller's mistake.
    pub fn of(layout: &StepLayout, groups: usize, spans: &[Span<'_>], requests: &Requests) -> Step {
        let is_decode = spans.iter().all(|s| s.tokens.len() == 1 && s.wants_logits);
        let count: usize = spans.iter().map(|s| s.tokens.len()).sum();
        let tokens = if is_decode { count.next_power_of_two() } else { count };
        assert!(tokens <= layout.tokens_max && spans.len() <= layout.rows_max, "a step beyond its bounds");
        let mut words = vec![0; layout.tables];
        let (mut entries, mut tiles, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = 0;
        for (row, span) in spans.iter().enumerate() {
            for (i, &token) in span.tokens.iter().enumerate() {
                let position = span.position + i;
                words[layout.tokens + at + i] = token;
                words[layout.positions + at + i] = word(position);
                words[layout.rows + at + i] = word(row);
                for group in 0..groups {
                    let (first, blocks) = span.tables[group];
                    let block = blocks[position / BLOCK_TOKENS - first];
                    words[layout.slots(group) + at + i] =
                        block * BLOCK_TOKENS as u32 + word(position % BLOCK_TOKENS);
                }
            }
            if span.tokens.len() == 1 {
                entries.push(word(at));
            } else {
                for first in (0..span.tokens.len()).step_by(TILE) {
                    let length = TILE.min(span.tokens.len() - first);
                    tiles.extend([word(at + first), word(length), word(row), 0]);
                }
            }
            at += span.tokens.len();
            if span.wants_logits {
                wanted.push(word(at - 1));
            }
            for group in 0..groups {
                let (first, blocks) = span.tables[group];
                words[layout.starts(group) + row] = word(words.len() - layout.tables);
                words[layout.firsts(group) + row] = word(first);
                words.extend_from_slice(blocks);
            }
        }
        let changes = words.len();
        words.extend_from_slice(&requests.changes);
        let masks = words.len();
        words.extend_from_slice(&requests.masks);
        assert!(words.len() <= layout.words, "tables, changes or masks beyond their bounds");
        words[layout.samples..][..requests.rows.len()].copy_from_slice(&requests.rows);
        for filler in count..tokens {
            words[layout.positions + filler] = NOBODY;
            entries.push(word(filler));
            wanted.push(word(filler));
        }
        words[layout.entries..][..entries.len()].copy_from_slice(&entries);
        words[layout.tiles..][..tiles.len()].copy_from_slice(&tiles);
        words[layout.wanted..][..wanted.len()].copy_from_slice(&wanted);
        let (entries, tiles, wanted) = (entries.len(), tiles.len() / 4, wanted.len());
        Step { words, tokens, entries, tiles, wanted, changes, masks, is_decode }
    }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("numbers of a step are far below 2^32")
}
