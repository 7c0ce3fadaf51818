//! The operators: for each one file here and one in `kernels/`, of one name, with the kernel's argument struct, how it is
//! launched, a check against plain Rust, and what to measure it with.

pub mod attention_combine;
pub mod attention_decode;
pub mod attention_prefill;
pub mod embed;
pub mod experts_combine;
pub mod experts_down_gemv;
pub mod experts_down_mma;
pub mod experts_sort;
pub mod experts_up_gemv;
pub mod experts_up_mma;
pub mod linear_gemv;
pub mod linear_mma;
pub mod peak;
pub mod rmsnorm;
pub mod rope_kv;
pub mod route;
pub mod sample;

use crate::arguments::Arguments;
use crate::device::{Device, Launch};
use crate::testing::{Bench, Failure};

/// Sizes that a check runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As small as can be.
    OneBlock,
    ManyBlocks,
    /// Nothing is a multiple of anything.
    RaggedTail,
    ManyTokens,
}

impl Size {
    pub const ALL: [Size; 4] = [Size::OneBlock, Size::ManyBlocks, Size::RaggedTail, Size::ManyTokens];

    /// One of four, by size.
    pub fn of<T: Copy>(self, values: [T; 4]) -> T {
        values[self as usize]
    }
}

/// An operator as tests and benchmarks see it.
#[derive(Debug, Clone, Copy)]
pub struct Operator {
    pub name: &'static str,
    /// Runs it on random numbers and compares with f64.
    pub check: fn(&dyn Device, Size, u64) -> Result<(), Failure>,
    /// In the shape of gpt-oss-20b, for so many tokens; none where it is not used for as many.
    pub bench: fn(&dyn Device, usize) -> Result<Option<Bench>, Failure>,
}

/// In the order of a pass, behind what a device can do at most.
pub const OPERATORS: &[Operator] = &[
    Operator { name: "peak", check: peak::check, bench: peak::bench },
    Operator { name: "embed", check: embed::check, bench: embed::bench },
    Operator { name: "rmsnorm", check: rmsnorm::check, bench: rmsnorm::bench },
    Operator { name: "linear_gemv", check: linear_gemv::check, bench: linear_gemv::bench },
    Operator { name: "linear_mma", check: linear_mma::check, bench: linear_mma::bench },
    Operator { name: "rope_kv", check: rope_kv::check, bench: rope_kv::bench },
    Operator { name: "attention_decode", check: attention_decode::check, bench: attention_decode::bench },
    Operator { name: "attention_combine", check: attention_combine::check, bench: attention_combine::bench },
    Operator { name: "attention_prefill", check: attention_prefill::check, bench: attention_prefill::bench },
    Operator { name: "route", check: route::check, bench: route::bench },
    Operator { name: "experts_sort", check: experts_sort::check, bench: experts_sort::bench },
    Operator { name: "experts_up_gemv", check: experts_up_gemv::check, bench: experts_up_gemv::bench },
    Operator { name: "experts_down_gemv", check: experts_down_gemv::check, bench: experts_down_gemv::bench },
    Operator { name: "experts_up_mma", check: experts_up_mma::check, bench: experts_up_mma::bench },
    Operator { name: "experts_down_mma", check: experts_down_mma::check, bench: experts_down_mma::bench },
    Operator { name: "experts_combine", check: experts_combine::check, bench: experts_combine::bench },
    Operator { name: "sample", check: sample::check, bench: sample::bench },
];

fn launch(kernel: &'static str, grid: [usize; 3], threads: u32, arguments: &dyn Arguments) -> Launch {
    let grid = grid.map(|n| u32::try_from(n).expect("grids are far below 2^31"));
    Launch { kernel, grid, threads, arguments: arguments.bytes() }
}

#[cfg(test)]
mod tests;
