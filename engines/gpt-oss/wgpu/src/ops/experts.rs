//! The experts: gate and up with the clamped swiglu, down, and the weighted sum.

use std::ops::Range;

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, Tensor, word};
use crate::shaders::Form;
use crate::testing::{Bed, Expected, F32_STEP, Failure, compare, decode, widen};

/// Beyond that tokens are sorted by expert: then most experts have several of them.
const GEMV_TOKENS_MAX: usize = 4;
/// Rows of a workgroup of `experts_gemv`.
const GEMV_ROWS: usize = 4;
/// Rows and pairs of a tile.
const TILE: (usize, usize) = (64, 32);

/// A matrix of some experts: those from `first` on.
#[derive(Debug, Clone, Copy)]
pub struct ExpertMatrix {
    pub first: usize,
    pub experts: usize,
    pub blocks: Tensor,
    /// Bytes, a multiple of four, from the blocks of an expert to those of the next.
    pub blocks_stride: usize,
    pub scales: Tensor,
    pub bias: Tensor,
    /// A multiple of 4.
    pub rows: usize,
    /// A multiple of 32.
    pub columns: usize,
}

/// Arguments of all kernels of experts.
#[derive(Debug, Clone)]
pub struct Experts {
    /// Of all experts together.
    pub up: Vec<ExpertMatrix>,
    pub down: Vec<ExpertMatrix>,
    pub t: Slice,
    pub numbers: Slice,
    pub weights: Slice,
    pub lists: Slice,
    pub counts: Slice,
    pub act: Slice,
    pub y: Slice,
    pub x: Slice,
    pub experts: usize,
    pub chosen: usize,
    pub tokens: usize,
    /// Tokens that a list has room for.
    pub tokens_max: usize,
    pub limit: f32,
    pub alpha: f32,
}

impl Experts {
    /// All of it, with the kernels for so many tokens.
    pub fn launches(&self) -> Vec<Launch> {
        let mut launches = if self.tokens <= GEMV_TOKENS_MAX { self.gemv() } else { self.tile() };
        launches.push(self.combine());
        launches
    }

    fn gemv(&self) -> Vec<Launch> {
        let of = |kernel, matrix: &ExpertMatrix, from, to| Launch {
            kernel,
            grid: [word(matrix.rows / GEMV_ROWS), word(self.tokens * self.chosen), 1],
            bindings: vec![
                self.numbers,
                from,
                matrix.blocks.slice,
                matrix.scales.slice,
                matrix.bias.slice,
                to,
            ],
            arguments: self.arguments(matrix),
        };
        let up = self.up.iter().map(|matrix| of("experts_up_gemv", matrix, self.t, self.act));
        let down = self.down.iter().map(|matrix| of("experts_down_gemv", matrix, self.act, self.y));
        up.chain(down).collect()
    }

    fn tile(&self) -> Vec<Launch> {
        let sort = Launch {
            kernel: "experts_sort",
            grid: [word(self.experts), 1, 1],
            bindings: vec![self.numbers, self.lists, self.counts],
            arguments: vec![word(self.tokens * self.chosen), word(self.tokens_max)],
        };
        let of = |kernel, matrix: &ExpertMatrix, from, to| {
            let mut arguments = self.arguments(matrix);
            arguments.push(word(self.tokens_max));
            let tiles = [matrix.rows.div_ceil(TILE.0), self.tokens.div_ceil(TILE.1), matrix.experts];
            Launch {
                kernel,
                grid: tiles.map(word),
                bindings: vec![
                    self.lists,
                    self.counts,
                    from,
                    matrix.blocks.slice,
                    matrix.scales.slice,
                    matrix.bias.slice,
                    to,
                ],
                arguments,
            }
        };
        let up = self.up.iter().map(|matrix| of("experts_up_tile", matrix, self.t, self.act));
        let down = self.down.iter().map(|matrix| of("experts_down_tile", matrix, self.act, self.y));
        [sort].into_iter().chain(up).chain(down).collect()
    }

    fn combine(&self) -> Launch {
        Launch {
            kernel: "experts_combine",
            grid: [word(self.tokens), 1, 1],
            bindings: vec![self.y, self.weights, self.x],
            arguments: vec![word(self.down[0].rows), word(self.chosen)],
        }
    }

    fn arguments(&self, matrix: &ExpertMatrix) -> Vec<u32> {
        vec![
            word(matrix.rows),
            word(matrix.columns),
            word(self.chosen),
            matrix.blocks.base_words(),
            matrix.scales.base_bytes(),
            matrix.bias.base_words(),
            self.limit.to_bits(),
            self.alpha.to_bits(),
            word(matrix.first),
            word(matrix.experts),
            word(matrix.blocks_stride / 4),
        ]
    }
}

pub(super) fn check_gemv(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    for tokens in 1..=size.of([1, 4, 3, 2]) {
        check(gpu, size, seed, tokens, Experts::gemv)?;
    }
    Ok(())
}

pub(super) fn check_tile(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    check(gpu, size, seed, size.of([1, 33, 7, 150]), Experts::tile)
}

/// Numbers, bytes and scales of one matrix by chance.
struct Stored {
    experts: usize,
    blocks: Vec<u8>,
    scales: Vec<u8>,
    bias: Vec<u16>,
    rows: usize,
    columns: usize,
}

impl Stored {
    fn new(bed: &mut Bed<'_>, experts: usize, rows: usize, columns: usize) -> Stored {
        let (blocks, scales) = bed.mxfp4(experts * rows * columns / 32);
        Stored { experts, blocks, scales, bias: bed.bf16s(experts * rows, 1.0), rows, columns }
    }

    /// In two pieces, cut before the expert `cut`; in one where that is the first. `apart`: bytes between the blocks of experts.
    fn put(&self, bed: &mut Bed<'_>, cut: usize, apart: usize) -> Result<Vec<ExpertMatrix>, Failure> {
        let one = self.rows * self.columns / 32;
        let blocks_stride = one * 16 + apart;
        // What lies between is no block of anything.
        let spread = |blocks: &[u8]| {
            blocks
                .chunks(one * 16)
                .flat_map(|expert| [expert, &vec![0x77; apart]].concat())
                .collect::<Vec<u8>>()
        };
        let pieces = [0..cut, cut..self.experts].into_iter().filter(|piece| !piece.is_empty());
        let put = |piece: Range<usize>| {
            Ok(ExpertMatrix {
                first: piece.start,
                experts: piece.len(),
                blocks: bed.tensor(&spread(&self.blocks[piece.start * one * 16..piece.end * one * 16]))?,
                blocks_stride,
                scales: bed.tensor(&self.scales[piece.start * one..piece.end * one])?,
                bias: bed.tensor_bf16(&self.bias[piece.start * self.rows..piece.end * self.rows])?,
                rows: self.rows,
                columns: self.columns,
            })
        };
        pieces.map(put).collect()
    }

    /// The product with the row of an expert, bias included.
    fn times(&self, form: Form, expert: usize, row: usize, t: &[f32]) -> Expected {
        let row = expert * self.rows + row;
        let weights = decode(&self.blocks, &self.scales, row, self.columns);
        let terms = weights.into_iter().zip(t.iter().copied());
        form.loosens(Expected::dot(terms.clone(), f64::from(widen(self.bias[row]))), terms)
    }
}

fn check(
    gpu: &mut Gpu,
    size: Size,
    seed: u64,
    tokens: usize,
    launches: fn(&Experts) -> Vec<Launch>,
) -> Result<(), Failure> {
    let (hidden, width) = (size.of([32, 256, 96, 64]), size.of([32, 96, 160, 224]));
    let (experts, chosen) = (size.of([1, 8, 5, 3]), size.of([1, 4, 2, 3]));
    let (limit, alpha, form) = (2.0, 1.702, gpu.adapter().form);
    let mut bed = Bed::new(gpu, seed);
    let up = Stored::new(&mut bed, experts, 2 * width, hidden);
    let down = Stored::new(&mut bed, experts, hidden, width);
    let t = bed.floats(tokens * hidden, 3.0);
    let mut numbers = Vec::new();
    for _ in 0..tokens {
        let first = bed.below(experts);
        numbers.extend((0..chosen).map(|c| word((first + c) % experts)));
    }
    let pairs = numbers.len();
    let (act, y) = (bed.room(pairs * width)?, bed.room(pairs * hidden)?);
    let experts_of = Experts {
        up: up.put(&mut bed, experts / 3, size.of([0, 48, 0, 16]))?,
        down: down.put(&mut bed, experts / 2, size.of([0, 0, 272, 16]))?,
        t: bed.put_f32(&t)?.whole(),
        numbers: bed.put(&numbers)?.whole(),
        weights: bed.room(pairs)?.whole(),
        lists: bed.room(experts * (tokens + 3))?.whole(),
        counts: bed.room(experts)?.whole(),
        act: act.whole(),
        y: y.whole(),
        x: bed.room(tokens * hidden)?.whole(),
        experts,
        chosen,
        tokens,
        tokens_max: tokens + 3,
        limit,
        alpha,
    };
    bed.run(&launches(&experts_of))?;
    let mut want = Vec::new();
    for pair in 0..pairs {
        let t = &t[pair / chosen * hidden..][..hidden];
        for i in 0..width {
            let row = |r: usize| up.times(form, numbers[pair] as usize, r, t);
            let (gate, other) = (row(2 * i), row(2 * i + 1));
            let (g, u) =
                (gate.value.min(f64::from(limit)), other.value.clamp(-f64::from(limit), f64::from(limit)));
            let value = g / (1.0 + (-f64::from(alpha) * g).exp()) * (u + 1.0);
            // Swish is at most 1.1 times as steep as its argument; the exponential is off by some steps itself.
            let bound = gate.bound * 1.2 * (u + 1.0).abs() + g.abs() * (other.bound + 64.0 * F32_STEP * 3.0);
            want.push(Expected { value, bound: bound + 1e-6 });
        }
    }
    let act = bed.get_f32(act, want.len())?;
    compare(&format!("act of {tokens} tokens"), &act, &want)?;
    let want: Vec<_> = (0..pairs * hidden)
        .map(|i| {
            let act = &act[i / hidden * width..][..width];
            down.times(form, numbers[i / hidden] as usize, i % hidden, act)
        })
        .collect();
    compare(&format!("y of {tokens} tokens"), &bed.get_f32(y, want.len())?, &want)
}

pub(super) fn check_combine(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let (hidden, chosen, tokens) =
        (size.of([32, 2880, 96, 64]), size.of([1, 4, 2, 8]), size.of([1, 4, 7, 130]));
    let mut bed = Bed::new(gpu, seed);
    let (y, weights) = (bed.floats(tokens * chosen * hidden, 1.0), bed.floats(tokens * chosen, 1.0));
    let before = bed.floats(tokens * hidden, 1.0);
    let (y_at, weights_at) = (bed.put_f32(&y)?.whole(), bed.put_f32(&weights)?.whole());
    let x = bed.put_f32(&before)?;
    let combine = Launch {
        kernel: "experts_combine",
        grid: [word(tokens), 1, 1],
        bindings: vec![y_at, weights_at, x.whole()],
        arguments: vec![word(hidden), word(chosen)],
    };
    bed.run(&[combine])?;
    let want: Vec<_> = (0..tokens * hidden)
        .map(|i| {
            let pairs = i / hidden * chosen..(i / hidden + 1) * chosen;
            Expected::dot(pairs.map(|p| (weights[p], y[p * hidden + i % hidden])), f64::from(before[i]))
        })
        .collect();
    compare("x", &bed.get_f32(x, want.len())?, &want)
}
