//! The operators: for each one file here, with the arguments of its kernels, how they are launched, and a check against
//! plain Rust. Names are those of the kernels.

pub mod attention;
pub mod embed;
pub mod experts;
pub mod linear;
pub mod peak;
pub mod rmsnorm;
pub mod rope_kv;
pub mod route;
pub mod sample;

use std::ops::Range;

use crate::device::{Gpu, Memory, Slice};
use crate::shaders::{Form, KERNELS, Kernel, Shape};
use crate::testing::Failure;

/// Sizes that a check runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As small as can be.
    OneGroup,
    ManyGroups,
    /// Nothing is a multiple of anything.
    RaggedTail,
    ManyTokens,
}

impl Size {
    pub const ALL: [Size; 4] = [Size::OneGroup, Size::ManyGroups, Size::RaggedTail, Size::ManyTokens];

    /// One of four, by size.
    pub fn of<T: Copy>(self, values: [T; 4]) -> T {
        values[self as usize]
    }
}

/// An operator as tests see it.
#[derive(Debug, Clone, Copy)]
pub struct Operator {
    pub name: &'static str,
    /// Runs its kernels on numbers by chance, from a seed, and compares with f64.
    pub check: fn(&mut Gpu, Size, u64) -> Result<(), Failure>,
}

impl Operator {
    /// Whether its kernels differ between two forms.
    pub fn differs(&self, one: Form, other: Form) -> bool {
        let shape = Shape { head_dim: 64, group: 8 };
        let of_it = |k: &&Kernel| k.name == self.name || k.entry == self.name;
        KERNELS.iter().filter(of_it).any(|k| k.source(shape, one) != k.source(shape, other))
    }
}

/// In the order of a pass, behind what a device can do at most.
pub const OPERATORS: &[Operator] = &[
    Operator { name: "peak", check: peak::check },
    Operator { name: "embed", check: embed::check },
    Operator { name: "rmsnorm", check: rmsnorm::check },
    Operator { name: "linear_gemv", check: linear::check_gemv },
    Operator { name: "linear_tile", check: linear::check_tile },
    Operator { name: "rope_kv", check: rope_kv::check },
    Operator { name: "attention_decode", check: attention::check_decode },
    Operator { name: "attention_prefill", check: attention::check_prefill },
    Operator { name: "route", check: route::check },
    Operator { name: "experts_gemv", check: experts::check_gemv },
    Operator { name: "experts_tile", check: experts::check_tile },
    Operator { name: "experts_combine", check: experts::check_combine },
    Operator { name: "sample", check: sample::check },
];

/// Whether matrices that subgroups multiply together give what plain Rust does: wgpu counts them as experimental.
///
/// # Errors
/// As the checks of the kernels with them.
pub(crate) fn check_matrices(gpu: &mut Gpu) -> Result<(), Failure> {
    const SEED: u64 = 0x3a7;
    linear::check_tile(gpu, Size::RaggedTail, SEED)?;
    experts::check_tile(gpu, Size::RaggedTail, SEED)
}

/// A tensor that may begin anywhere in a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    pub slice: Slice,
    /// Bytes of the slice before it; a multiple of four.
    base: u32,
}

impl Tensor {
    /// The one that a buffer is.
    pub fn whole(memory: Memory) -> Tensor {
        Tensor { slice: memory.whole(), base: 0 }
    }

    /// One that begins so many bytes, a multiple of four, behind the beginning of a buffer.
    pub fn at(memory: Memory, offset: u64) -> Tensor {
        let (slice, base) = memory.from(offset);
        Tensor { slice, base }
    }

    /// The same from so many bytes, a multiple of four, on.
    fn behind(self, bytes: u64) -> Tensor {
        let base = u64::from(self.base) + bytes;
        Tensor { slice: self.slice, base: u32::try_from(base).expect("kernels count bytes below 2^32") }
    }

    fn base_words(self) -> u32 {
        self.base / 4
    }

    fn base_bytes(self) -> u32 {
        self.base
    }
}

/// Rows of a tensor that is in one piece or in several, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Weight {
    pub(crate) pieces: Vec<Piece>,
    /// Read where its file is mapped: nothing is to be uploaded.
    pub(crate) in_place: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) rows: Range<usize>,
    pub(crate) memory: Memory,
    pub(crate) tensor: Tensor,
    /// Bytes from one row to the next: more than a row has where something lies between them.
    pub(crate) row_stride: u64,
}

impl Weight {
    /// Where the byte `at` of all pieces lies, and how many of its piece follow from there on.
    pub(crate) fn place(&self, at: u64) -> (Memory, u64, usize) {
        let mut within = at;
        for Piece { memory, .. } in &self.pieces {
            if within < memory.bytes {
                return (*memory, within, (memory.bytes - within) as usize);
            }
            within -= memory.bytes;
        }
        panic!("a tensor has more bytes than there is room for");
    }

    /// The rows of each launch that reads several tensors: none of them has a cut within.
    pub(crate) fn cuts(of: &[&Weight]) -> Vec<Range<usize>> {
        let mut ends: Vec<usize> = of.iter().flat_map(|weight| &weight.pieces).map(|p| p.rows.end).collect();
        ends.sort_unstable();
        ends.dedup();
        let begins = [0].into_iter().chain(ends.iter().copied());
        begins.zip(&ends).map(|(begin, end)| begin..*end).collect()
    }

    /// The tensor from a row on, up to the next cut, and the bytes from one row to the next.
    ///
    /// # Panics
    /// When it has no such row.
    pub(crate) fn from(&self, row: usize) -> (Tensor, usize) {
        let piece = self.pieces.iter().find(|piece| piece.rows.contains(&row)).expect("a row of this tensor");
        (piece.tensor.behind((row - piece.rows.start) as u64 * piece.row_stride), piece.row_stride as usize)
    }

    /// Of one that is never cut.
    pub(crate) fn only(&self) -> Tensor {
        assert_eq!(self.pieces.len(), 1, "a tensor in pieces where it has to be whole");
        self.pieces[0].tensor
    }
}

/// A number below 2^32, as kernels take them.
pub(crate) fn word(number: usize) -> u32 {
    u32::try_from(number).expect("sizes are far below 2^32")
}

/// Workgroups of a dimension at most, on every adapter.
const GRID_MAX: usize = 65_535;

/// So many workgroups along x, and along y where those are too many.
fn folded(groups: usize) -> [u32; 3] {
    let x = groups.clamp(1, GRID_MAX);
    [word(x), word(groups.div_ceil(x)), 1]
}
