//! Dot products of stored weights with activations, for whatever this processor can do best.
//!
//! **Split order.** Activations come in blocks of 32: the 16 even elements, then the 16 odd ones. A 32-bit lane then
//! holds two neighbouring bf16 weights, or one byte with two MXFP4 codes, and a shift or a mask is all it takes to
//! meet the right activations. Lengths are rounded up to a multiple of 32 with zeros ([`split`]).

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions without intrinsics, on pointers")]
mod amx;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod avx512;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod avx512bf16;
pub mod bf16;
mod choice;
#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod neon;
pub mod quantized;
mod scalar;
mod swiglu;
#[cfg(target_arch = "x86_64")]
mod transpose;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use model_formats::mxfp4::{VALUES, bf16_to_f32};

use crate::int8;
pub use choice::{Choice, TABLE_TOKENS, table};
pub(crate) use choice::{Chooser, Form};
pub use swiglu::Swiglu;

/// What the kernels are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, which the compiler turns into what every processor of a kind has, such as SSE2.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same, and `vdpbf16ps` for activations that are rounded to bf16 ([`bf16`]).
    Avx512Bf16,
    /// As `Avx512`, and AMX where several tokens meet weights: tiles of bf16 ([`bf16`]).
    Amx,
    /// NEON, which every 64-bit Arm has.
    Neon,
}

impl Isa {
    /// All of them, the simplest first.
    pub const ALL: [Isa; 6] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx, Isa::Neon];

    /// The best of this processor.
    pub fn detect() -> Isa {
        if Isa::Amx.is_available() {
            Isa::Amx
        } else if Isa::Avx512Bf16.is_available() && bf16_is_fast() {
            Isa::Avx512Bf16
        } else if Isa::Avx512.is_available() {
            Isa::Avx512
        } else if Isa::Avx2.is_available() {
            Isa::Avx2
        } else if Isa::Neon.is_available() {
            Isa::Neon
        } else {
            Isa::Scalar
        }
    }

    /// Why AMX is not taken though the processor has it.
    pub fn amx_refused() -> Option<&'static str> {
        #[cfg(target_arch = "x86_64")]
        return match amx::state() {
            amx::Amx::Works | amx::Amx::Absent => None,
            amx::Amx::NotPermitted => Some("the system does not give its tiles to this process"),
            amx::Amx::Wrong => Some("a small product came out wrong"),
        };
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            // What is not done in tiles takes the other's conversions.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Bf16.is_available() && amx::state() == amx::Amx::Works,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => false,
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon => false,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.as_str() == name)
    }
}

/// Whether `vdpbf16ps` does more in a second than multiplying as f32: AMD's (Zen 4) does twice the f32 rate, measured on
/// Intel's (Sapphire Rapids) it was half of it. Told by the maker and not by a measurement at start, which would differ
/// from start to start where other work runs.
#[cfg(target_arch = "x86_64")]
fn bf16_is_fast() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    let maker = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    maker.as_flattened() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_is_fast() -> bool {
    false
}

/// What activations are when they are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// Rounded to bf16 where several rows are multiplied at once, as the published model is defined; products and sums
    /// stay f32, and a row alone is not rounded.
    Bf16,
    F32,
    /// Whole numbers of eight bits with a scale for every 32 columns, as [`quantized`] has them, where they meet weights
    /// of four or eight bits; as with `Bf16` where they meet bf16.
    Int8,
}

impl Activations {
    /// All of them.
    pub const ALL: [Activations; 3] = [Activations::Bf16, Activations::F32, Activations::Int8];

    /// What they are with these kernels. Only [`Isa::Avx512Bf16`] and [`Isa::Amx`] gain by rounding them to bf16, and in
    /// the invariant order a row has to be the same whether it is alone or not, as a quantized one is.
    pub fn with(self, isa: Isa, order: Order) -> Activations {
        match (self, isa, order) {
            (Activations::Int8, ..) | (_, Isa::Avx512Bf16 | Isa::Amx, Order::Fastest) => self,
            _ => Activations::F32,
        }
    }

    /// Whether they may be rounded to bf16 where they meet bf16.
    pub(crate) fn rounds(self, isa: Isa, order: Order) -> bool {
        let gains = matches!(isa, Isa::Avx512Bf16 | Isa::Amx);
        self != Activations::F32 && gains && order == Order::Fastest
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Activations::Bf16 => "bf16",
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Activations> {
        Activations::ALL.into_iter().find(|activations| activations.as_str() == name)
    }
}

/// In which order products are added up, which decides the last bits of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Whatever is fastest for so many vectors.
    Fastest,
    /// The same for every vector, however many others there are.
    Invariant,
}

/// Rows of weights as they are stored.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// `columns` little-endian bf16 numbers a row.
    Bf16 { bytes: &'a [u8], columns: usize },
    /// 16 bytes and one scale for every 32 columns.
    Mxfp4 { blocks: &'a [u8], scales: &'a [u8], columns: usize },
    /// [`split_len`] signed bytes a row, in split order, and a little-endian bf16 scale for every 64 columns.
    Int8 { numbers: &'a [u8], scales: &'a [u8], columns: usize },
}

impl<'a> Rows<'a> {
    pub fn columns(&self) -> usize {
        match *self {
            Rows::Bf16 { columns, .. } | Rows::Mxfp4 { columns, .. } | Rows::Int8 { columns, .. } => columns,
        }
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        match *self {
            Rows::Bf16 { bytes, columns } => bytes.len() / (2 * columns),
            Rows::Mxfp4 { scales, columns, .. } => scales.len() / (columns / BLOCK),
            Rows::Int8 { numbers, columns, .. } => numbers.len() / int8::numbers_bytes(columns),
        }
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        match *self {
            Rows::Bf16 { columns, .. } => 2 * columns,
            Rows::Mxfp4 { columns, .. } => columns / BLOCK * (BLOCK_BYTES + 1),
            Rows::Int8 { columns, .. } => int8::numbers_bytes(columns) + int8::scales_bytes(columns),
        }
    }

    /// Some of the rows.
    pub fn slice(&self, rows: std::ops::Range<usize>) -> Rows<'a> {
        let cut = |bytes: &'a [u8], row: usize| &bytes[rows.start * row..rows.end * row];
        match *self {
            Rows::Bf16 { bytes, columns } => Rows::Bf16 { bytes: cut(bytes, 2 * columns), columns },
            Rows::Mxfp4 { blocks, scales, columns } => Rows::Mxfp4 {
                blocks: cut(blocks, columns / BLOCK * BLOCK_BYTES),
                scales: cut(scales, columns / BLOCK),
                columns,
            },
            Rows::Int8 { numbers, scales, columns } => Rows::Int8 {
                numbers: cut(numbers, int8::numbers_bytes(columns)),
                scales: cut(scales, int8::scales_bytes(columns)),
                columns,
            },
        }
    }
}

/// Multiplies every row with every vector; `out(row, vector, value)` gets the products.
///
/// # Panics
/// When a vector is not as long as [`split_len`] of the columns, or the processor lacks `isa`.
pub fn multiply(
    isa: Isa,
    order: Order,
    rows: Rows<'_>,
    vectors: &[&[f32]],
    out: &mut dyn FnMut(usize, usize, f32),
) {
    let length = split_len(rows.columns());
    assert!(vectors.iter().all(|v| v.len() == length), "vectors of another length than the rows");
    assert!(isa.is_available(), "this processor has no {}", isa.as_str());
    match isa {
        // Only AVX-512 has an order of its own for a single vector.
        Isa::Scalar => drive::<scalar::Kernel>(rows, vectors, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => drive::<avx2::Kernel>(rows, vectors, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => match order {
            Order::Fastest => drive::<avx512::Kernel<false>>(rows, vectors, out),
            Order::Invariant => drive::<avx512::Kernel<true>>(rows, vectors, out),
        },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => drive::<neon::Kernel>(rows, vectors, out),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
            unreachable!("asserted to be available above, for {order:?} too")
        }
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => unreachable!("asserted to be available above, for {order:?} too"),
    }
}

/// `R` rows times `T` vectors at once. The dot products of a tile share their loads.
trait Tiles {
    /// Whether wide tiles (8 rows, or 4 rows and 4 vectors) fit its registers.
    const WIDE: bool;

    /// `rows` has exactly `R` rows, `vectors` are as long as they have to be.
    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [&[f32]; T]) -> [[f32; T]; R];
}

fn drive<K: Tiles>(rows: Rows<'_>, vectors: &[&[f32]], out: &mut dyn FnMut(usize, usize, f32)) {
    let count = rows.count();
    let mut row = 0;
    // MXFP4 rows need more registers each.
    if K::WIDE && vectors.len() == 1 && !matches!(rows, Rows::Mxfp4 { .. }) {
        while row + 8 <= count {
            vector_tiles::<K, 8>(rows.slice(row..row + 8), row, vectors, out);
            row += 8;
        }
    }
    while row + 4 <= count {
        vector_tiles::<K, 4>(rows.slice(row..row + 4), row, vectors, out);
        row += 4;
    }
    while row < count {
        vector_tiles::<K, 1>(rows.slice(row..row + 1), row, vectors, out);
        row += 1;
    }
}

fn vector_tiles<K: Tiles, const R: usize>(
    rows: Rows<'_>,
    first_row: usize,
    vectors: &[&[f32]],
    out: &mut dyn FnMut(usize, usize, f32),
) {
    let mut done = 0;
    if K::WIDE && R <= 4 {
        done = equal_tiles::<K, R, 4>(rows, first_row, vectors, done, out);
    }
    done = equal_tiles::<K, R, 2>(rows, first_row, vectors, done, out);
    equal_tiles::<K, R, 1>(rows, first_row, vectors, done, out);
}

/// As many tiles of `T` vectors as there are; returns the number of vectors done.
fn equal_tiles<K: Tiles, const R: usize, const T: usize>(
    rows: Rows<'_>,
    first_row: usize,
    vectors: &[&[f32]],
    mut done: usize,
    out: &mut dyn FnMut(usize, usize, f32),
) -> usize {
    while let Some(tile) = vectors[done..].first_chunk::<T>() {
        for (r, products) in K::tile::<R, T>(rows, *tile).into_iter().enumerate() {
            for (t, product) in products.into_iter().enumerate() {
                out(first_row + r, done + t, product);
            }
        }
        done += T;
    }
    done
}

/// Halves of the bf16 form of each MXFP4 value by its code, for instructions that look bytes up.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const VALUES_HIGH: [u8; 16] = value_bytes(24);
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const VALUES_LOW: [u8; 16] = value_bytes(16);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const fn value_bytes(shift: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = (VALUES[code].to_bits() >> shift) as u8;
        code += 1;
    }
    bytes
}

/// Adds what is behind the last whole block of a row.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn add_bf16_tail<const T: usize>(row: &[u8], columns: usize, vectors: [&[f32]; T], out: &mut [f32; T]) {
    let start = columns / BLOCK * BLOCK;
    for (i, bytes) in row[2 * start..].as_chunks::<2>().0.iter().enumerate() {
        let weight = bf16_to_f32(u16::from_le_bytes(*bytes));
        for (out, vector) in out.iter_mut().zip(vectors) {
            *out += weight * vector[start + i % 2 * BLOCK / 2 + i / 2];
        }
    }
}

/// Length of a vector of `columns` elements in split order.
pub fn split_len(columns: usize) -> usize {
    columns.next_multiple_of(BLOCK)
}

/// Writes `plain` in split order; `out` is [`split_len`] long.
pub fn split(plain: &[f32], out: &mut [f32]) {
    assert_eq!(out.len(), split_len(plain.len()));
    for (plain, out) in plain.chunks(BLOCK).zip(out.as_chunks_mut::<BLOCK>().0) {
        let (even, odd) = out.split_at_mut(BLOCK / 2);
        for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
            *even = plain.get(2 * i).copied().unwrap_or(0.0);
            *odd = plain.get(2 * i + 1).copied().unwrap_or(0.0);
        }
    }
}

#[cfg(test)]
mod tests;
