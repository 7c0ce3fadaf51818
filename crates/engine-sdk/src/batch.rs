//! The input of one forward pass, and where its logits go.

use crate::kv::{BlockId, BlockTable};

/// A place for one running sequence, `0..sequences_max`, from [`Model::start`](crate::Model::start) to
/// [`Model::end`](crate::Model::end); no two sequences hold the same slot at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl Slot {
    /// For arrays with one entry per slot.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Rows of several sequences that go through the model together. The tokens of all rows lie in one array, in row
/// order, as a device wants to upload them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    tables: Vec<TableSpan>,
    blocks: Vec<BlockId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    slot: Slot,
    position: u32,
    start: usize,
    end: usize,
    wants_logits: bool,
    chosen_by: Option<u32>,
    /// Of `Batch::tables`.
    first_table: usize,
}

/// A block table in `Batch::blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TableSpan {
    first: u32,
    start: usize,
    end: usize,
}

/// Consecutive tokens of one sequence: a chunk of its prompt, or the token chosen last.
///
/// Fields are only ever added, so it is built by [`Batch`] alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row<'a> {
    pub slot: Slot,
    /// Position in the sequence of `tokens[0]`. The KV holds the positions before it, as far as a row looks back.
    pub position: u32,
    /// Never empty.
    pub tokens: &'a [u32],
    /// Whether the logits after the last of `tokens` are wanted. Rows without it may skip the output matrix.
    pub wants_logits: bool,
    /// The one token of this row is not known yet, and 0 in `tokens`: it is what the step launched before chooses with the
    /// draw of this number. Only of models that run ahead, see [`Model::launch`](crate::Model::launch).
    pub chosen_by: Option<u32>,
    tables: &'a [TableSpan],
    blocks: &'a [BlockId],
}

impl<'a> Row<'a> {
    /// The blocks of one group of the model's [`KvLayout`](crate::kv::KvLayout): where the keys and values of `tokens` go,
    /// and where those of earlier positions are. Blocks that hold earlier positions may be shared with other sequences;
    /// those that `tokens` go to are this row's alone.
    ///
    /// # Panics
    /// When the model has no layout, or fewer groups.
    pub fn table(&self, group: usize) -> BlockTable<'a> {
        let table = &self.tables[group];
        BlockTable { first: table.first, blocks: &self.blocks[table.start..table.end] }
    }

    /// How many block tables it has: one for each group, none where the model has no layout.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Appends a row. A slot has at most one row in a batch.
    ///
    /// # Panics
    /// When `tokens` is empty or the slot has a row already: the caller's mistake.
    pub fn push(&mut self, slot: Slot, position: u32, tokens: &[u32], wants_logits: bool) {
        self.push_row(slot, position, tokens, wants_logits, None);
    }

    /// Appends a row of the token that the step launched before chooses with its draw number `draw`. Its logits are wanted.
    ///
    /// # Panics
    /// When the slot has a row already.
    pub fn push_chosen(&mut self, slot: Slot, position: u32, draw: u32) {
        self.push_row(slot, position, &[0], true, Some(draw));
    }

    fn push_row(
        &mut self,
        slot: Slot,
        position: u32,
        tokens: &[u32],
        wants_logits: bool,
        chosen_by: Option<u32>,
    ) {
        assert!(!tokens.is_empty(), "a row without tokens");
        assert!(self.spans.iter().all(|s| s.slot != slot), "two rows for slot {}", slot.0);
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let first_table = self.tables.len();
        self.spans.push(Span {
            slot,
            position,
            start,
            end: self.tokens.len(),
            wants_logits,
            chosen_by,
            first_table,
        });
    }

    /// The block tables of the row that was appended last, by group.
    pub fn push_tables<'a>(&mut self, tables: impl Iterator<Item = BlockTable<'a>>) {
        for table in tables {
            let start = self.blocks.len();
            self.blocks.extend_from_slice(table.blocks);
            self.tables.push(TableSpan { first: table.first, start, end: self.blocks.len() });
        }
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
        self.spans.clear();
        self.tables.clear();
        self.blocks.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Number of rows, which is the number of sequences.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row<'_>> + Clone {
        (0..self.spans.len()).map(|row| {
            let s = self.spans[row];
            let last_table = self.spans.get(row + 1).map_or(self.tables.len(), |next| next.first_table);
            Row {
                slot: s.slot,
                position: s.position,
                tokens: &self.tokens[s.start..s.end],
                wants_logits: s.wants_logits,
                chosen_by: s.chosen_by,
                tables: &self.tables[s.first_table..last_table],
                blocks: &self.blocks,
            }
        })
    }

    /// The tokens of all rows, in row order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many rows want logits: the number of rows of [`Logits`].
    pub fn logits_rows(&self) -> usize {
        self.spans.iter().filter(|s| s.wants_logits).count()
    }
}

/// Where a forward pass writes: `(logits_rows, vocabulary_size)`, row-major f32. Row `i` belongs to the `i`-th row of
/// the batch that wants logits. What was in it before is garbage.
#[derive(Debug)]
pub struct Logits<'a> {
    data: &'a mut [f32],
    vocabulary_size: usize,
}

impl<'a> Logits<'a> {
    /// # Panics
    /// When `data` is not a whole number of rows.
    pub fn new(data: &'a mut [f32], vocabulary_size: usize) -> Logits<'a> {
        assert!(vocabulary_size > 0 && data.len().is_multiple_of(vocabulary_size), "logits of broken rows");
        Logits { data, vocabulary_size }
    }

    pub fn rows(&self) -> usize {
        self.data.len() / self.vocabulary_size
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.vocabulary_size..(row + 1) * self.vocabulary_size]
    }

    /// All rows at once, for a device that writes them in one copy.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        self.data
    }
}
