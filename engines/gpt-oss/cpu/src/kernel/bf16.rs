//! Products of stored weights with many tokens whose activations are rounded to bf16.
//!
//! A word is two neighbouring columns, the even one in its low half; rows are padded with zeros to whole blocks of 32
//! columns. **Packed** tokens come in groups of 16, a group is (words, 16): one vector is a pair of columns of 16
//! tokens, a weight's word goes to all its lanes, and nothing has to be summed across lanes in the end. Products and
//! sums are f32; numbers below the smallest normal one count as 0, as `vdpbf16ps` has it.

use std::cell::RefCell;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
#[cfg(target_arch = "x86_64")]
use super::avx512bf16 as vector;
use super::{Isa, Rows, Swiglu, split_len};

/// Tokens of a group.
pub const GROUP: usize = 16;
/// Groups that pass through weights together: 64 tokens of 2,880 columns are 360 KiB, and the weights of a task as much
/// again, of a second cache of 1 MiB.
const BLOCK_GROUPS: usize = 4;

/// Rows of bf16 weights, two columns in a word; aligned to nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) rows: usize,
    /// Words of a row.
    pub(super) words: usize,
}

/// What a thread keeps from task to task: memory that is asked for anew has to be cleared first.
#[derive(Default)]
struct Scratch {
    /// Weights as bf16, (rows, words).
    panel: Vec<u8>,
    /// (rows, tokens of a block)
    products: Vec<f32>,
    /// (tokens of a block, rows)
    turned: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Words of a row of so many columns.
pub fn words(columns: usize) -> usize {
    split_len(columns) / 2
}

/// Rounds a row to the nearest bf16 numbers, ties to even; `out` has [`words`].
pub fn round(plain: &[f32], out: &mut [u32]) {
    vector::round(plain, out);
}

/// Rounded words as f32 in split order; `out` has two floats for each.
pub fn split(words: &[u32], out: &mut [f32]) {
    const UPPER: u32 = 0xffff_0000;
    assert_eq!(out.len(), 2 * words.len());
    for (words, out) in words.as_chunks::<GROUP>().0.iter().zip(out.as_chunks_mut::<{ 2 * GROUP }>().0) {
        for (lane, word) in words.iter().enumerate() {
            out[lane] = f32::from_bits(word << 16);
            out[GROUP + lane] = f32::from_bits(word & UPPER);
        }
    }
}

/// Makes a group, (words, 16), of up to 16 rounded rows.
pub fn pack(rows: &[&[u32]], out: &mut [u32]) {
    vector::pack(rows, out);
}

/// Multiplies all rows with all groups of `packed`; `each` gets the products, some groups at a time.
///
/// # Panics
/// When `packed` is not of whole groups, or the processor lacks `isa`, which is [`Isa::Amx`] or [`Isa::Avx512Bf16`].
pub fn multiply(isa: Isa, rows: Rows<'_>, packed: &[u32], mut each: impl FnMut(Products<'_>)) {
    let product: fn(Panel<'_>, &[u32], &mut [f32]) = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => amx::product,
        _ => vector::product,
    };
    let (count, words) = (rows.count(), words(rows.columns()));
    assert!(packed.len().is_multiple_of(words * GROUP), "packed tokens are whole groups");
    SCRATCH.with_borrow_mut(|Scratch { panel, products, turned }| {
        let bytes = match rows {
            // Used as they lie: a copy of them gains nothing.
            Rows::Bf16 { bytes, columns } if columns == 2 * words => bytes,
            _ => {
                panel.resize(count * words * size_of::<u32>(), 0);
                vector::decode(rows, panel);
                panel
            }
        };
        for (block, packed) in packed.chunks(BLOCK_GROUPS * words * GROUP).enumerate() {
            let stride = packed.len() / words;
            products.resize(count * stride, 0.0);
            product(Panel { bytes, rows: count, words }, packed, products);
            each(Products { first: block * BLOCK_GROUPS, rows: count, stride, values: products, turned });
        }
    });
}

/// All rows times some groups of tokens.
#[derive(Debug)]
pub struct Products<'a> {
    /// The first of the groups.
    first: usize,
    rows: usize,
    /// Tokens, those that fill up the last group included.
    stride: usize,
    /// (rows, stride)
    values: &'a [f32],
    turned: &'a mut Vec<f32>,
}

impl Products<'_> {
    /// Numbers of the groups.
    pub fn groups(&self) -> Range<usize> {
        self.first..self.first + self.stride / GROUP
    }

    /// Gives `out(token, products)` the product of every row with each token below `tokens`.
    pub fn each_token(self, tokens: usize, mut out: impl FnMut(usize, &[f32])) {
        let first = self.first * GROUP;
        self.turned.resize((tokens - first).min(self.stride) * self.rows, 0.0);
        vector::turn(self.values, self.stride, self.rows, self.turned);
        for (t, products) in self.turned.chunks_exact(self.rows).enumerate() {
            out(first + t, products);
        }
    }

    /// The activations of a group, (rows / 4, 16) words, when rows are gates and ups in turn; `bias` is added to them.
    pub fn activate(&self, group: usize, bias: &[f32], swiglu: Swiglu, out: &mut [u32]) {
        let values = &self.values[(group - self.first) * GROUP..];
        vector::activate(values, self.stride, bias, swiglu, out);
    }
}

/// Without such a processor there is nothing to call: `Isa::Avx512Bf16` cannot be had.
#[cfg(not(target_arch = "x86_64"))]
mod vector {
    use super::{Panel, Rows, Swiglu};

    pub(super) fn round(_: &[f32], _: &mut [u32]) {
        unreachable!("no such processor");
    }

    pub(super) fn pack(_: &[&[u32]], _: &mut [u32]) {
        unreachable!("no such processor");
    }

    pub(super) fn decode(_: Rows<'_>, _: &mut [u8]) {
        unreachable!("no such processor");
    }

    pub(super) fn product(panel: Panel<'_>, _: &[u32], _: &mut [f32]) {
        let _ = (panel.bytes, panel.rows, panel.words);
        unreachable!("no such processor");
    }

    pub(super) fn turn(_: &[f32], _: usize, _: usize, _: &mut [f32]) {
        unreachable!("no such processor");
    }

    pub(super) fn activate(_: &[f32], _: usize, _: &[f32], _: Swiglu, _: &mut [u32]) {
        unreachable!("no such processor");
    }
}

#[cfg(test)]
mod tests;
