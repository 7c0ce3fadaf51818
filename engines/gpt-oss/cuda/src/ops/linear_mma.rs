//! A matrix of bf16 times many tokens, on tensor cores.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::linear_gemv::{LinearGemvArgs, bench_linear, check_linear};
use crate::ops::{Size, launch};
use crate::testing::{Bench, Failure};

/// Rows, and tokens, of a block.
pub const TILE: usize = 64;

arguments! {
    pub struct LinearMmaArgs {
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

impl LinearMmaArgs {
    pub fn launch(&self) -> Launch {
        let blocks = [self.rows as usize, self.tokens as usize].map(|n| n.div_ceil(TILE));
        launch("linear_mma", [blocks[0], blocks[1], 1], 128, self)
    }
}

/// The same product, this way.
impl From<&LinearGemvArgs> for LinearMmaArgs {
    fn from(a: &LinearGemvArgs) -> LinearMmaArgs {
        let LinearGemvArgs { weight, bias, t, out, rows, columns, tokens, add } = *a;
        LinearMmaArgs { weight, bias, t, out, rows, columns, tokens, add }
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let shape = size.of([[8, 64, 64], [64, 128, 2880], [13, 40, 224], [130, 72, 96]]);
    check_linear(device, seed, shape, |a| LinearMmaArgs::from(a).launch())
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    bench_linear(device, tokens, |a| LinearMmaArgs::from(a).launch()).map(Some)
}
