//! Matrices of the whole layer: every row of weights times every token.

use std::ops::Range;

use gpt_oss_model::Bf16;

use crate::kernel::bf16::{self, GROUP};
use crate::kernel::{
    Activations, Chooser, Form, Isa, Order, Rows, multiply, quantized, quantized::panels_min, split,
    split_len,
};
use crate::pool::Pool;

/// Weights of one task. Small enough to share out evenly, large enough that claiming a task costs nothing.
pub(crate) const TASK_BYTES: usize = 256 << 10;
/// Tokens that pass through a task's weights together: their vectors stay in the second cache.
pub(crate) const TOKEN_BLOCK: usize = 64;
/// Tasks for each thread at least: the last ones are as long as all threads but one may wait.
const TASKS_A_THREAD: usize = 4;
/// Bytes of a task's weights as bf16, which stay in the second cache beside the tokens they meet.
const PANEL_BYTES: usize = 288 << 10;

/// Rows of which kernels for many quantized tokens take multiples, and multiples in a task at most: 160 rows of 2,880
/// columns are 506 KiB as panels, which stay in the second cache.
const PANEL_ROWS: usize = 32;
const PANELS_MAX: usize = 5;

/// How the work is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compute<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    pub(crate) order: Order,
    /// As [`Activations::with`] has it for `isa` and `order`.
    pub(crate) activations: Activations,
}

impl Compute<'_> {
    pub(crate) fn chooser(&self) -> Chooser {
        Chooser { isa: self.isa, order: self.order, activations: self.activations }
    }
}

/// Vectors of several tokens, ready to be multiplied.
#[derive(Debug)]
pub(crate) enum Inputs {
    Split(SplitRows),
    Rounded(RoundedRows),
    Quantized(QuantizedRows),
}

impl Inputs {
    /// `plain` is (tokens, width); `eight_bits`: for weights of eight bits and not bf16 ones.
    pub(crate) fn new(compute: Compute<'_>, plain: &[f32], width: usize, eight_bits: bool) -> Inputs {
        let tokens = plain.len() / width;
        Inputs::made(compute, tokens, width, eight_bits, |token, row| {
            row.copy_from_slice(&plain[token * width..][..width])
        })
    }

    /// `make` writes the vector of a token, `width` long, on some thread.
    pub(crate) fn made(
        compute: Compute<'_>,
        tokens: usize,
        width: usize,
        eight_bits: bool,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Inputs {
        match compute.chooser().matrix(tokens, eight_bits) {
            Form::Quantized => Inputs::Quantized(QuantizedRows::made(compute, tokens, width, make)),
            Form::Rounded => Inputs::Rounded(RoundedRows::made(compute, tokens, width, make)),
            Form::Split => Inputs::Split(SplitRows::made(compute, tokens, width, make)),
        }
    }

    pub(crate) fn tokens(&self) -> usize {
        match self {
            Inputs::Split(rows) => rows.tokens(),
            Inputs::Rounded(rows) => rows.tokens(),
            Inputs::Quantized(rows) => rows.tokens(),
        }
    }
}

/// Vectors of several tokens that rows of weights are multiplied with a few at a time.
pub(crate) trait Vectors: Sync {
    type Number: Sync;

    /// How many pass through a task's weights together.
    const TOGETHER: usize;

    fn tokens(&self) -> usize;

    fn row(&self, token: usize) -> &[Self::Number];

    /// Rows of weights that make a task of `rows` of so many bytes, which meet so many vectors; `eight_bits`: they are, and
    /// not of four or 16.
    fn rows_a_task(
        compute: Compute<'_>,
        rows: usize,
        row_bytes: usize,
        _vectors: usize,
        _eight_bits: bool,
    ) -> usize {
        rows_shared(compute, rows, row_bytes, 8)
    }

    /// `out(row, vector, products)` gets those of some rows, from `row` on.
    fn multiply(
        compute: Compute<'_>,
        weights: Rows<'_>,
        vectors: &[&[Self::Number]],
        out: &mut dyn FnMut(usize, usize, &[f32]),
    );
}

/// Vectors of several tokens in split order.
#[derive(Debug, Default)]
pub(crate) struct SplitRows {
    data: Vec<f32>,
    length: usize,
}

impl SplitRows {
    /// See [`Inputs::made`].
    fn made(
        compute: Compute<'_>,
        tokens: usize,
        width: usize,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) -> SplitRows {
        let length = split_len(width);
        let mut data = vec![0.0; tokens * length];
        compute.pool.tiles(&mut data, length, &token_ends(tokens, width), length, |tile| {
            let mut plain = vec![0.0; width];
            for row in tile.rows() {
                make(row, &mut plain);
                split(&plain, tile.row(row));
            }
        });
        SplitRows { data, length }
    }

    /// Takes rows that are in split order already.
    pub(crate) fn from_split(data: Vec<f32>, length: usize) -> SplitRows {
        SplitRows { data, length }
    }
}

impl Vectors for SplitRows {
    type Number = f32;

    const TOGETHER: usize = TOKEN_BLOCK;

    fn tokens(&self) -> usize {
        self.data.len() / self.length
    }

    fn row(&self, token: usize) -> &[f32] {
        &self.data[token * self.length..][..self.length]
    }

    fn multiply(
        compute: Compute<'_>,
        weights: Rows<'_>,
        vectors: &[&[f32]],
        out: &mut dyn FnMut(usize, usize, &[f32]),
    ) {
        multiply(compute.isa, compute.order, weights, vectors, &mut |row, t, product| {
            out(row, t, &[product])
        });
    }
}

/// Quantized rows of several tokens.
#[derive(Debug)]
pub(crate) struct QuantizedRows {
    /// (tokens, words), from `first` on.
    data: Vec<u32>,
    /// Where a line of the cache begins.
    first: usize,
    tokens: usize,
    words: usize,
}

impl QuantizedRows {
    /// See [`Inputs::made`].
    pub(crate) fn made(
        compute: Compute<'_>,
        tokens: usize,
        width: usize,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) -> QuantizedRows {
        let mut rows = QuantizedRows::empty(tokens, quantized::words(width));
        let words = rows.words;
        compute.pool.tiles(rows.words_mut(), words, &token_ends(tokens, width), words, |tile| {
            let mut plain = vec![0.0; width];
            for row in tile.rows() {
                make(row, &mut plain);
                quantized::quantize(&plain, tile.row(row));
            }
        });
        rows
    }

    pub(crate) fn of(compute: Compute<'_>, rows: &SplitRows) -> QuantizedRows {
        let (tokens, words) = (rows.tokens(), quantized::words(rows.length));
        let mut out = QuantizedRows::empty(tokens, words);
        let ends = token_ends(tokens, rows.length);
        compute.pool.tiles(out.words_mut(), words, &ends, words, |tile| {
            for row in tile.rows() {
                quantized::quantize_split(rows.row(row), tile.row(row));
            }
        });
        out
    }

    fn empty(tokens: usize, words: usize) -> QuantizedRows {
        const LINE: usize = 64;
        let data = vec![0; tokens * words + LINE / size_of::<u32>()];
        let first = data.as_ptr().align_offset(LINE).min(LINE / size_of::<u32>());
        QuantizedRows { data, first, tokens, words }
    }

    fn words_mut(&mut self) -> &mut [u32] {
        &mut self.data[self.first..][..self.tokens * self.words]
    }
}

impl Vectors for QuantizedRows {
    type Number = u32;

    const TOGETHER: usize = 4 * TOKEN_BLOCK;

    fn rows_a_task(
        compute: Compute<'_>,
        rows: usize,
        row_bytes: usize,
        vectors: usize,
        eight_bits: bool,
    ) -> usize {
        if vectors < panels_min(eight_bits) {
            return rows_shared(compute, rows, row_bytes, 8);
        }
        let even = rows.div_ceil(compute.pool.threads() * TASKS_A_THREAD).next_multiple_of(PANEL_ROWS);
        even.min(PANELS_MAX * PANEL_ROWS)
    }

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn row(&self, token: usize) -> &[u32] {
        &self.data[self.first + token * self.words..][..self.words]
    }

    fn multiply(
        compute: Compute<'_>,
        weights: Rows<'_>,
        vectors: &[&[u32]],
        out: &mut dyn FnMut(usize, usize, &[f32]),
    ) {
        quantized::multiply(compute.isa, compute.order, weights, vectors, out);
    }
}

/// Vectors of several tokens rounded to bf16, two columns to a word.
#[derive(Debug)]
pub(crate) struct RoundedRows {
    /// (tokens, words)
    data: Vec<u32>,
    words: usize,
    /// All of them in groups.
    packed: Vec<u32>,
}

impl RoundedRows {
    /// See [`Inputs::made`].
    fn made(
        compute: Compute<'_>,
        tokens: usize,
        width: usize,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) -> RoundedRows {
        let words = bf16::words(width);
        let mut data = vec![0; tokens * words];
        compute.pool.tiles(&mut data, words, &token_ends(tokens, width), words, |tile| {
            let mut plain = vec![0.0; width];
            for row in tile.rows() {
                make(row, &mut plain);
                bf16::round(&plain, tile.row(row));
            }
        });
        let mut rows = RoundedRows { data, words, packed: Vec::new() };
        let all: Vec<usize> = (0..tokens).collect();
        rows.packed = rows.pack(compute, all.chunks(GROUP));
        rows
    }

    /// Groups, (groups, words, 16), each of the tokens that are named for it.
    pub(crate) fn pack<'a>(
        &self,
        compute: Compute<'_>,
        groups: impl ExactSizeIterator<Item = &'a [usize]>,
    ) -> Vec<u32> {
        let groups: Vec<&[usize]> = groups.collect();
        let width = self.words * GROUP;
        let mut packed = vec![0; groups.len() * width];
        let ends: Vec<usize> = (1..=groups.len()).collect();
        compute.pool.tiles(&mut packed, width, &ends, width, |tile| {
            let group = tile.group();
            let rows: Vec<&[u32]> = groups[group].iter().map(|token| self.row(*token)).collect();
            bf16::pack(&rows, tile.row(group));
        });
        packed
    }

    /// The same numbers in split order.
    pub(crate) fn split(&self, compute: Compute<'_>) -> SplitRows {
        let length = 2 * self.words;
        let mut data = vec![0.0; self.tokens() * length];
        compute.pool.tiles(&mut data, length, &token_ends(self.tokens(), length), length, |tile| {
            for row in tile.rows() {
                bf16::split(self.row(row), tile.row(row));
            }
        });
        SplitRows { data, length }
    }

    fn row(&self, token: usize) -> &[u32] {
        &self.data[token * self.words..][..self.words]
    }

    /// Words of a row.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    fn tokens(&self) -> usize {
        self.data.len() / self.words
    }
}

/// Ends of blocks of tokens for work that is done number by number, `width` of them for a token.
pub(crate) fn token_ends(tokens: usize, width: usize) -> Vec<usize> {
    const TOKENS_A_TASK: usize = 8;
    /// Some microseconds: less is done before another thread has begun, and one task is done where it is.
    const NUMBERS_A_TASK: usize = 16 << 10;
    let step = TOKENS_A_TASK.max(NUMBERS_A_TASK / width);
    (1..=tokens.div_ceil(step)).map(|i| (i * step).min(tokens)).collect()
}

/// Rows of weights that make a task.
pub(crate) fn rows_a_task(row_bytes: usize, multiple_of: usize) -> usize {
    (TASK_BYTES / row_bytes).max(1).next_multiple_of(multiple_of)
}

/// The same of so many `rows`, but fewer where threads would be idle.
pub(crate) fn rows_shared(compute: Compute<'_>, rows: usize, row_bytes: usize, multiple_of: usize) -> usize {
    let even = rows.div_ceil(compute.pool.threads() * TASKS_A_THREAD).next_multiple_of(multiple_of);
    rows_a_task(row_bytes, multiple_of).min(even)
}

/// Rows of weights that make a task with packed tokens, when there are `rows` of `words` in all: as many as fit, fewer
/// when threads would be idle.
pub(crate) fn panel_rows(compute: Compute<'_>, rows: usize, words: usize) -> usize {
    /// Kernels take six rows at a time, activations are made of four, and 16 are turned together.
    const MULTIPLE_OF: usize = 48;
    /// Four tiles.
    const MULTIPLE_OF_TILES: usize = 64;
    /// Products of more rows than that would take more memory than their weights.
    const ROWS_MAX: usize = 10 * MULTIPLE_OF;
    let multiple_of = if compute.isa == Isa::Amx { MULTIPLE_OF_TILES } else { MULTIPLE_OF };
    let most = PANEL_BYTES / (words * size_of::<u32>()) / multiple_of * multiple_of;
    let even = rows.div_ceil(compute.pool.threads() * TASKS_A_THREAD).next_multiple_of(multiple_of);
    even.clamp(multiple_of, most.clamp(multiple_of, ROWS_MAX))
}

/// A matrix, and what is added to its products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affine<'a> {
    pub(crate) weights: Rows<'a>,
    pub(crate) bias: Option<Bf16<'a>>,
}

impl<'a> Affine<'a> {
    /// Those of `matrices`, one beside the other, that have a part in these rows: where their part begins, counted from
    /// the first of the rows, their rows, and the biases of these.
    fn within(
        matrices: &'a [Affine<'a>],
        rows: Range<usize>,
    ) -> impl Iterator<Item = (usize, Rows<'a>, Option<Vec<f32>>)> {
        let starts = matrices.iter().scan(0, |end, matrix| {
            let start = *end;
            *end += matrix.weights.count();
            Some(start)
        });
        matrices.iter().zip(starts).filter_map(move |(matrix, start)| {
            let end = start + matrix.weights.count();
            let (from, to) = (rows.start.max(start), rows.end.min(end));
            let own = (from < to).then(|| from - start..to - start)?;
            let bias = matrix.bias.map(|bias| own.clone().map(|row| bias.get(row)).collect());
            Some((from - rows.start, matrix.weights.slice(own), bias))
        })
    }
}

/// `out`, (tokens, rows of all matrices), = `tokens` times the matrices, plus the biases, plus what was in `out` when `add`.
/// All matrices have the same columns and lie in the same form.
pub(crate) fn linear(
    compute: Compute<'_>,
    matrices: &[Affine<'_>],
    tokens: &Inputs,
    add: bool,
    out: &mut [f32],
) {
    match tokens {
        Inputs::Split(tokens) => linear_vectors(compute, matrices, tokens, add, out),
        Inputs::Quantized(tokens) => linear_vectors(compute, matrices, tokens, add, out),
        Inputs::Rounded(tokens) => linear_packed(compute, matrices, tokens, add, out),
    }
}

fn linear_vectors<V: Vectors>(
    compute: Compute<'_>,
    matrices: &[Affine<'_>],
    tokens: &V,
    add: bool,
    out: &mut [f32],
) {
    let count = tokens.tokens();
    let vectors: Vec<&[V::Number]> = (0..count).map(|t| tokens.row(t)).collect();
    let rows: usize = matrices.iter().map(|m| m.weights.count()).sum();
    let columns = {
        let weights = matrices[0].weights;
        let eight_bits = matches!(weights, Rows::Int8 { .. });
        V::rows_a_task(compute, rows, weights.row_bytes(), count, eight_bits)
    };
    compute.pool.tiles(out, rows, &[count], columns, |tile| {
        for (start, weights, bias) in Affine::within(matrices, tile.columns()) {
            for (block, vectors) in vectors.chunks(V::TOGETHER).enumerate() {
                V::multiply(compute, weights, vectors, &mut |row, t, products| {
                    let out = &mut tile.row(block * V::TOGETHER + t)[start + row..][..products.len()];
                    put(products, bias.as_ref().map(|bias| &bias[row..]), add, out);
                });
            }
        }
    });
}

fn linear_packed(
    compute: Compute<'_>,
    matrices: &[Affine<'_>],
    tokens: &RoundedRows,
    add: bool,
    out: &mut [f32],
) {
    let count = tokens.tokens();
    let rows: usize = matrices.iter().map(|m| m.weights.count()).sum();
    let columns = panel_rows(compute, rows, tokens.words());
    compute.pool.tiles(out, rows, &[count], columns, |tile| {
        for (start, weights, bias) in Affine::within(matrices, tile.columns()) {
            bf16::multiply(compute.isa, weights, &tokens.packed, |products| {
                products.each_token(count, |token, products| {
                    let out = &mut tile.row(token)[start..][..products.len()];
                    put(products, bias.as_deref(), add, out);
                });
            });
        }
    });
}

/// `out` becomes the products plus the biases, plus what was in it when `add`.
fn put(products: &[f32], bias: Option<&[f32]>, add: bool, out: &mut [f32]) {
    match (bias, add) {
        (None, false) => out.copy_from_slice(products),
        (Some(bias), false) => {
            for ((out, product), bias) in out.iter_mut().zip(products).zip(bias) {
                *out = product + bias;
            }
        }
        (bias, true) => {
            for (i, (out, product)) in out.iter_mut().zip(products).enumerate() {
                *out += product + bias.map_or(0.0, |bias| bias[i]);
            }
        }
    }
}
