//! A matrix of bf16 times one to eight tokens.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, F32_STEP, Failure, compare, shape, widen};

/// Beyond that [`crate::ops::linear_mma`] reads weights less often.
pub const TOKENS_MAX: usize = 8;
/// Rows of a block.
const ROWS: usize = 8;

arguments! {
    pub struct LinearGemvArgs {
        pub weight: Address,
        pub bias: Address,
        pub t: Address,
        pub out: Address,
        pub rows: u32,
        pub columns: u32,
        pub tokens: u32,
        pub add: u32,
    }
}

impl LinearGemvArgs {
    /// # Panics
    /// For more than [`TOKENS_MAX`] tokens.
    pub fn launch(&self) -> Launch {
        let kernel = match self.tokens {
            1 => "linear_gemv_1",
            2 => "linear_gemv_2",
            3..=4 => "linear_gemv_4",
            5..=8 => "linear_gemv_8",
            tokens => panic!("{tokens} tokens are not a matrix-vector product"),
        };
        launch(kernel, [(self.rows as usize).div_ceil(ROWS), 1, 1], 128, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let (from, to) = size.of([(1, 2), (1, 4), (5, 7), (3, 8)]);
    for tokens in from..=to {
        check_linear(device, seed, [tokens, size.of([8, 40, 21, 16]), size.of([32, 2880, 1056, 64])], |a| {
            a.launch()
        })?;
    }
    Ok(())
}

/// For both kernels of a matrix, whose arguments are alike. `shape`: tokens, rows, columns.
pub(super) fn check_linear(
    device: &dyn Device,
    seed: u64,
    shape: [usize; 3],
    launch: impl Fn(&LinearGemvArgs) -> Launch,
) -> Result<(), Failure> {
    let [tokens, rows, columns] = shape;
    let mut bed = Bed::new(device, seed);
    let weight = bed.bf16s(rows * columns, 0.1);
    let bias = bed.bf16s(rows, 1.0);
    let t = bed.bf16s(tokens * columns, 1.0);
    let before = bed.floats(tokens * rows, 1.0);
    let (weight_at, bias_at, t_at) = (bed.put_bf16(&weight)?, bed.put_bf16(&bias)?, bed.put_bf16(&t)?);
    for (has_bias, adds) in [(true, false), (false, false), (true, true)] {
        let out = bed.put_f32(&before)?;
        let arguments = LinearGemvArgs {
            weight: weight_at,
            bias: if has_bias { bias_at } else { Address::NULL },
            t: t_at,
            out,
            rows: rows as u32,
            columns: columns as u32,
            tokens: tokens as u32,
            add: u32::from(adds),
        };
        device.launch(&launch(&arguments))?;
        let wide = |&x: &u16| f64::from(widen(x));
        let want: Vec<_> = (0..tokens * rows)
            .map(|i| {
                let (token, row) = (i / rows, i % rows);
                let terms = weight[row * columns..][..columns].iter().map(wide);
                let terms = terms.zip(t[token * columns..][..columns].iter().map(wide));
                let bias = if has_bias { wide(&bias[row]) } else { 0.0 };
                let before = if adds { f64::from(before[i]) } else { 0.0 };
                let mut want = Expected::dot(terms, bias + before);
                want.bound += (bias.abs() + before.abs()) * 2.0 * F32_STEP;
                want
            })
            .collect();
        compare(&format!("out of {shape:?}"), &bed.get_f32(out, tokens * rows)?, &want)?;
    }
    Ok(())
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    if tokens > TOKENS_MAX {
        return Ok(None);
    }
    bench_linear(device, tokens, |a| a.launch()).map(Some)
}

/// The four matrices of a pass outside of experts.
pub(super) fn bench_linear(
    device: &dyn Device,
    tokens: usize,
    launch: impl Fn(&LinearGemvArgs) -> Launch,
) -> Result<Bench, Failure> {
    let bed = Bed::new(device, 0);
    let query = shape::HEADS * 64;
    let matrices = [
        (shape::QKV, shape::HIDDEN),
        (shape::HIDDEN, query),
        (shape::EXPERTS, shape::HIDDEN),
        (shape::VOCABULARY, shape::HIDDEN),
    ];
    let mut bench = Bench { launches: Vec::new(), bytes: 0, operations: 0 };
    for (rows, columns) in matrices {
        let arguments = LinearGemvArgs {
            weight: bed.room(2 * rows * columns)?,
            bias: bed.room(2 * rows)?,
            t: bed.room(2 * tokens * columns)?,
            out: bed.room(4 * tokens * rows)?,
            rows: rows as u32,
            columns: columns as u32,
            tokens: tokens as u32,
            add: 0,
        };
        bench.launches.push(launch(&arguments));
        bench.bytes += (2 * rows * columns + 2 * rows + 2 * tokens * columns + 4 * tokens * rows) as u64;
        bench.operations += (2 * tokens * rows * columns) as u64;
    }
    Ok(bench)
}
