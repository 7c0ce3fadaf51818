//! A matrix of bf16 times tokens.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, Tensor, folded, word};
use crate::testing::{Bed, Expected, Failure, compare, widen};

/// Beyond that `linear_tile` reads weights less often.
const GEMV_TOKENS_MAX: usize = 4;
/// Rows of a workgroup of `linear_gemv`.
const GEMV_ROWS: usize = 4;
/// Rows and tokens of a tile.
const TILE: (usize, usize) = (64, 32);

/// Arguments of `linear_gemv` and `linear_tile`.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub t: Slice,
    pub out: Slice,
    pub rows: usize,
    /// Where these rows begin in `out`, which has `out_rows` of each token.
    pub first: usize,
    pub out_rows: usize,
    /// A multiple of 32.
    pub columns: usize,
    pub tokens: usize,
    /// Whether `out` is added to.
    pub adds: bool,
}

impl Linear {
    /// With the kernel for so many tokens.
    pub fn launch(&self) -> Launch {
        if self.tokens <= GEMV_TOKENS_MAX { self.gemv() } else { self.tile() }
    }

    fn gemv(&self) -> Launch {
        let kernel = if self.tokens == 1 { "linear_gemv_1" } else { "linear_gemv_4" };
        self.with(kernel, folded(self.rows.div_ceil(GEMV_ROWS)))
    }

    fn tile(&self) -> Launch {
        let grid = [word(self.rows.div_ceil(TILE.0)), word(self.tokens.div_ceil(TILE.1)), 1];
        self.with("linear_tile", grid)
    }

    fn with(&self, kernel: &'static str, grid: [u32; 3]) -> Launch {
        // Something has to be bound: without a bias, what is bound already.
        let bias = self.bias.unwrap_or(self.weight);
        Launch {
            kernel,
            grid,
            bindings: vec![self.weight.slice, bias.slice, self.t, self.out],
            arguments: vec![
                word(self.rows),
                word(self.columns),
                word(self.tokens),
                u32::from(self.adds),
                u32::from(self.bias.is_some()),
                self.weight.base_words(),
                bias.base_words(),
                grid[0],
                word(self.first),
                word(self.out_rows),
            ],
        }
    }
}

pub(super) fn check_gemv(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    for tokens in 1..=GEMV_TOKENS_MAX {
        let shape = [tokens, size.of([4, 40, 21, 16]), size.of([32, 2880, 1056, 64])];
        check(gpu, seed, shape, Linear::gemv)?;
    }
    Ok(())
}

pub(super) fn check_tile(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let shape = [size.of([5, 64, 33, 200]), size.of([4, 128, 91, 65]), size.of([32, 960, 96, 64])];
    check(gpu, seed, shape, Linear::tile)
}

/// `shape`: tokens, rows, columns.
fn check(gpu: &mut Gpu, seed: u64, shape: [usize; 3], launch: fn(&Linear) -> Launch) -> Result<(), Failure> {
    let [tokens, rows, columns] = shape;
    let form = gpu.adapter().form;
    let mut bed = Bed::new(gpu, seed);
    let (weight, bias) = (bed.bf16s(rows * columns, 0.1), bed.bf16s(rows, 1.0));
    let (t, before) = (bed.floats(tokens * columns, 1.0), bed.floats(tokens * rows, 1.0));
    let t_at = bed.put_f32(&t)?;
    // Whole, and in two pieces.
    for (has_bias, adds, cut) in [(true, false, 0), (false, false, rows / 3), (true, true, rows / 2)] {
        let out = bed.put_f32(&before)?;
        let mut launches = Vec::new();
        for piece in [0..cut, cut..rows].into_iter().filter(|piece| !piece.is_empty()) {
            let linear = Linear {
                weight: bed.tensor_bf16(&weight[piece.start * columns..piece.end * columns])?,
                bias: if has_bias { Some(bed.tensor_bf16(&bias[piece.clone()])?) } else { None },
                t: t_at.whole(),
                out: out.whole(),
                rows: piece.len(),
                first: piece.start,
                out_rows: rows,
                columns,
                tokens,
                adds,
            };
            launches.push(launch(&linear));
        }
        bed.run(&launches)?;
        let want: Vec<_> = (0..tokens * rows)
            .map(|i| {
                let (token, row) = (i / rows, i % rows);
                let weights = weight[row * columns..][..columns].iter().map(|&w| widen(w));
                let terms = weights.zip(t[token * columns..][..columns].iter().copied());
                let bias = if has_bias { f64::from(widen(bias[row])) } else { 0.0 };
                let exact =
                    Expected::dot(terms.clone(), bias + if adds { f64::from(before[i]) } else { 0.0 });
                form.loosens(exact, terms)
            })
            .collect();
        compare(&format!("out of {shape:?}"), &bed.get_f32(out, tokens * rows)?, &want)?;
    }
    Ok(())
}
