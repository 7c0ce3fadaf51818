//! Products of stored weights of four or eight bits with activations of eight bits.
//!
//! A **quantized row** is words: its numbers, signed bytes in split order, padded with zeros to whole 64 columns; then
//! for every block of 32 columns a scale, f32, the largest magnitude of the block divided by 127; then for every block
//! four sums, times -16: of the first and the fifth word of its numbers, of the second and the sixth, and so on; then for
//! every block the total of the four. On x86 the numbers, scales and totals of 16 blocks at a time stand in front of all
//! this once more, turned: see [`blocks`].
//!
//! Units multiply unsigned bytes by signed ones, so weights are taken 16 too large (MXFP4, as twice their value, -12 to
//! 12) or 128 too large (eight bits), and the sums make up for it. The dot product of a block is a whole number without
//! error; then it is multiplied by both scales and added up as f32. [`Order::Invariant`] does so for each row and vector
//! in an order that does not depend on how many others there are; with [`Order::Fastest`] and VNNI one vector, a few and
//! many are added up in three.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod avx512vnni;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod blocks;
#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "vector loads take pointers, and instructions without intrinsics")]
mod neon;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads take pointers")]
mod panel;
mod scalar;

use model_formats::mxfp4::{BLOCK, VALUES};

use super::{Isa, Order, Rows, split};
use crate::math::ROUND;

/// Columns to whole multiples of which rows are padded: a vector of bytes, and what shares a scale in
/// [`crate::int8`].
const PADDED: usize = 64;
/// Words of a block's numbers.
const NUMBERS: usize = BLOCK / 4;
/// Sums of a block.
const SUMS: usize = 4;
/// Words of a block in all, the turned ones apart.
const BLOCK_WORDS: usize = NUMBERS + 1 + SUMS + 1;
/// Words of a vector of AVX-512, and blocks that are turned together.
const LANES: usize = 16;
/// Vectors of 16 turned blocks: their numbers, their scales, their totals.
const TURNED_LINES: usize = NUMBERS + 2;
/// Words of 16 turned blocks; no kernel of another processor takes them.
const TURNED_WORDS: usize = if cfg!(target_arch = "x86_64") { TURNED_LINES * LANES } else { 0 };
/// How much larger than twice its value a code of MXFP4 is taken.
const OFFSET: i8 = 16;
/// Vectors from which on weights of eight bits, or of four, are brought into panels for them, with VNNI. Seen on a Zen 4, one
/// thread, Gop/s in panels and without: eight bits, 6 vectors 113 and 87, 8 vectors 142 and 96 (medians of three turns); four
/// bits in the cache, 8 vectors 153 and 166, 12 vectors 167 and 161, 64 vectors 201 and 166.
pub(crate) const fn panels_min(eight_bits: bool) -> usize {
    if eight_bits { 6 } else { 10 }
}
/// Largest number.
const MOST: f32 = 127.0;

/// Twice the value of each code, and [`OFFSET`] more.
const DOUBLED: [u8; 16] = {
    let mut doubled = [0; 16];
    let mut code = 0;
    while code < 16 {
        doubled[code] = ((2.0 * VALUES[code]) as i8 + OFFSET) as u8;
        code += 1;
    }
    doubled
};

/// Blocks of a quantized row of so many columns.
fn blocks(columns: usize) -> usize {
    columns.next_multiple_of(PADDED) / BLOCK
}

/// Words of a quantized row of so many columns.
pub fn words(columns: usize) -> usize {
    let blocks = blocks(columns);
    (blocks.div_ceil(LANES) * TURNED_WORDS + blocks * BLOCK_WORDS).next_multiple_of(LANES)
}

/// The parts of a quantized row.
#[derive(Debug, Clone, Copy)]
struct Vector<'a> {
    numbers: &'a [u32],
    scales: &'a [u32],
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "for x86's products of unsigned by signed")
    )]
    sums: &'a [u32],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "as the sums"))]
    totals: &'a [u32],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for AVX-512"))]
    turned: &'a [u32],
}

impl<'a> Vector<'a> {
    fn of(row: &'a [u32], columns: usize) -> Vector<'a> {
        let blocks = blocks(columns);
        let (turned, rest) = row.split_at(blocks.div_ceil(LANES) * TURNED_WORDS);
        let (numbers, rest) = rest.split_at(blocks * NUMBERS);
        let (scales, rest) = rest.split_at(blocks);
        let (sums, rest) = rest.split_at(blocks * SUMS);
        let totals = &rest[..blocks];
        Vector { numbers, scales, sums, totals, turned }
    }
}

/// Makes a quantized row; `out` has [`words`]. A block with a number that is not finite gets a scale that is none
/// either, and one without a number above 1e-30 counts as zeros.
///
/// # Panics
/// When `out` is of another length.
pub fn quantize(plain: &[f32], out: &mut [u32]) {
    assert_eq!(out.len(), words(plain.len()), "a quantized row of another length");
    let (chunks, blocks) = (plain.chunks(BLOCK), blocks(plain.len()));
    #[cfg(target_arch = "x86_64")]
    if avx512vnni::is_available() {
        return avx512vnni::quantize(chunks, blocks, out, split);
    }
    quantize_blocks(chunks, blocks, out, split);
}

/// The same of a row in split order.
///
/// # Panics
/// When `out` is of another length, or `row` not of whole blocks.
pub fn quantize_split(row: &[f32], out: &mut [u32]) {
    assert_eq!(out.len(), words(row.len()), "a quantized row of another length");
    assert!(row.len().is_multiple_of(BLOCK), "split order is of whole blocks");
    let (chunks, blocks) = (row.chunks(BLOCK), blocks(row.len()));
    let copy = |row: &[f32], block: &mut [f32]| block.copy_from_slice(row);
    #[cfg(target_arch = "x86_64")]
    if avx512vnni::is_available() {
        return avx512vnni::quantize(chunks, blocks, out, copy);
    }
    quantize_blocks(chunks, blocks, out, copy);
}

/// `bring(chunk, block)` fills a block from a chunk.
#[inline(always)]
fn quantize_blocks<'a>(
    mut chunks: impl Iterator<Item = &'a [f32]>,
    blocks: usize,
    out: &mut [u32],
    bring: impl Fn(&[f32], &mut [f32]),
) {
    let (turned, rest) = out.split_at_mut(blocks.div_ceil(LANES) * TURNED_WORDS);
    let (numbers, rest) = rest.split_at_mut(blocks * NUMBERS);
    let (scales, rest) = rest.split_at_mut(blocks);
    let (sums, rest) = rest.split_at_mut(blocks * SUMS);
    let totals = &mut rest[..blocks];
    turned.fill(0);
    let sums = sums.as_chunks_mut().0.iter_mut().zip(totals);
    let outputs = numbers.as_chunks_mut::<NUMBERS>().0.iter_mut().zip(scales).zip(sums);
    for (at, ((numbers, scale), (sums, total))) in outputs.enumerate() {
        let mut block = [0.0; BLOCK];
        if let Some(chunk) = chunks.next() {
            bring(chunk, &mut block);
        }
        let (factor, found) = scale_of(&block);
        *scale = found.to_bits();
        let mut found = [0; SUMS];
        for (w, (word, four)) in numbers.iter_mut().zip(block.as_chunks::<4>().0).enumerate() {
            let bytes = four.map(|x| (x * factor + ROUND).to_bits() as i8);
            found[w % SUMS] -= i32::from(OFFSET) * bytes.iter().map(|n| i32::from(*n)).sum::<i32>();
            *word = u32::from_le_bytes(bytes.map(|n| n as u8));
        }
        *sums = found.map(i32::cast_unsigned);
        *total = found.iter().sum::<i32>().cast_unsigned();
        if TURNED_WORDS > 0 {
            let lines = turned[at / LANES * TURNED_WORDS..].as_chunks_mut::<LANES>().0;
            let lane = turned_lane(at % LANES);
            // The k-th words of even columns and of odd ones follow one another.
            for (w, word) in numbers.iter().enumerate() {
                lines[w % (NUMBERS / 2) * 2 + w / (NUMBERS / 2)][lane] = *word;
            }
            lines[NUMBERS][lane] = *scale;
            lines[NUMBERS + 1][lane] = *total;
        }
    }
}

/// The lane of a block among 16 turned ones: four vectors of four blocks each become vectors whose quarters have one block
/// of each.
fn turned_lane(block: usize) -> usize {
    block % 4 * 4 + block / 4
}

/// What a block's numbers are multiplied by, and its scale.
#[inline(always)]
fn scale_of(block: &[f32; BLOCK]) -> (f32, f32) {
    /// Below it the factor would not be finite.
    const LEAST: f32 = 1e-30;
    // Of magnitudes as bits, among which infinity and what is no number are the largest.
    let largest = block.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max);
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        (0.0, f32::NAN)
    } else if largest < LEAST {
        (0.0, 0.0)
    } else {
        (MOST / largest, largest / MOST)
    }
}

/// Multiplies every row with every quantized row; `out(row, vector, products)` gets those of some rows, from `row` on.
///
/// # Panics
/// When a vector is not as long as [`words`] of the columns, the rows are bf16, or the processor lacks `isa`.
pub fn multiply(
    isa: Isa,
    order: Order,
    rows: Rows<'_>,
    vectors: &[&[u32]],
    out: &mut dyn FnMut(usize, usize, &[f32]),
) {
    assert!(
        vectors.iter().all(|v| v.len() == words(rows.columns())),
        "vectors of another length than the rows"
    );
    assert!(isa.is_available(), "this processor has no {}", isa.as_str());
    let vectors: Vec<Vector<'_>> = vectors.iter().map(|row| Vector::of(row, rows.columns())).collect();
    let eight_bits = matches!(rows, Rows::Int8 { .. });
    match kernel(isa, order, eight_bits, vectors.len()) {
        Kernel::Scalar => drive::<scalar::Kernel>(rows, &vectors, out),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2 => drive::<avx2::Kernel>(rows, &vectors, out),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512Vnni if avx512vnni::permutes() => {
            drive::<avx512vnni::Kernel<avx512vnni::Permuted>>(rows, &vectors, out);
        }
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512Vnni => drive::<avx512vnni::Kernel<avx512vnni::Shuffled>>(rows, &vectors, out),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512VnniBlocks if avx512vnni::permutes() => {
            drive::<blocks::Kernel<avx512vnni::Permuted>>(rows, &vectors, out);
        }
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512VnniBlocks => drive::<blocks::Kernel<avx512vnni::Shuffled>>(rows, &vectors, out),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512VnniPanels => panel::multiply(rows, &vectors, out),
        #[cfg(target_arch = "aarch64")]
        Kernel::Neon => drive::<neon::Plain>(rows, &vectors, out),
        #[cfg(target_arch = "aarch64")]
        Kernel::NeonDot => drive::<neon::Dot>(rows, &vectors, out),
        #[cfg(target_arch = "aarch64")]
        Kernel::NeonPairs => drive::<neon::Pairs>(rows, &vectors, out),
    }
}

/// What multiplies quantized rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512VnniBlocks,
    #[cfg(target_arch = "x86_64")]
    Avx512VnniPanels,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    #[cfg(target_arch = "aarch64")]
    NeonPairs,
}

impl Kernel {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kernel::Scalar => "scalar int8",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => "avx2 int8",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512Vnni => "avx512 vnni",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512VnniBlocks => "avx512 vnni blocks",
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512VnniPanels => "avx512 vnni panels",
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => "neon int8",
            #[cfg(target_arch = "aarch64")]
            Kernel::NeonDot => "neon dotprod",
            #[cfg(target_arch = "aarch64")]
            Kernel::NeonPairs => "neon i8mm",
        }
    }
}

/// What multiplies so many quantized rows, with weights of eight bits or of four.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "kernels of other processors take both alike")
)]
pub(super) fn kernel(isa: Isa, order: Order, eight_bits: bool, vectors: usize) -> Kernel {
    match isa {
        Isa::Scalar => Kernel::Scalar,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx if avx512vnni::is_available() => match order {
            Order::Fastest if vectors >= panels_min(eight_bits) => Kernel::Avx512VnniPanels,
            Order::Fastest if vectors > 1 && !eight_bits => Kernel::Avx512VnniBlocks,
            _ => Kernel::Avx512Vnni,
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => Kernel::Avx2,
        // A vector alone takes the dot product.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon if order == Order::Fastest && vectors > 1 && neon::has_pairs() => Kernel::NeonPairs,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            if neon::has_dot() {
                Kernel::NeonDot
            } else {
                Kernel::Neon
            }
        }
        other => unreachable!("{} for {vectors} vectors, {order:?}, is of another processor", other.as_str()),
    }
}

/// `R` rows times `T` vectors at once.
trait Tiles {
    /// Whether wide tiles (8 rows, or 4 rows and 4 vectors) fit its registers.
    const WIDE: bool;
    /// Whether three vectors are a tile, and not two and one.
    const THREE: bool;

    /// `rows` has exactly `R` rows, `vectors` are as long as they have to be.
    fn tile<const R: usize, const T: usize>(rows: Rows<'_>, vectors: [Vector<'_>; T]) -> [[f32; T]; R];

    /// All of them; `out` is (vectors, rows).
    fn rows_together(rows: Rows<'_>, vectors: &[Vector<'_>], out: &mut [f32])
    where
        Self: Sized,
    {
        rows_together::<Self>(rows, vectors, out);
    }
}

fn drive<K: Tiles>(rows: Rows<'_>, vectors: &[Vector<'_>], out: &mut dyn FnMut(usize, usize, &[f32])) {
    /// Rows whose products are handed on together: those of a tile alone are too few for the call.
    const ROWS: usize = 64;
    let count = rows.count();
    let mut products = vec![0.0; vectors.len() * ROWS.min(count)];
    for first in (0..count).step_by(ROWS) {
        let some = (count - first).min(ROWS);
        let products = &mut products[..vectors.len() * some];
        K::rows_together(rows.slice(first..first + some), vectors, products);
        for (t, products) in products.chunks_exact(some).enumerate() {
            out(first, t, products);
        }
    }
}

/// `out` is (vectors, rows).
fn rows_together<K: Tiles>(rows: Rows<'_>, vectors: &[Vector<'_>], out: &mut [f32]) {
    let count = rows.count();
    let mut row = 0;
    if K::WIDE && vectors.len() == 1 {
        while row + 8 <= count {
            tile::<K, 8, 1>(rows, row, vectors, 0, out);
            row += 8;
        }
    }
    while row + 4 <= count {
        vector_tiles::<K, 4>(rows, row, vectors, out);
        row += 4;
    }
    while row < count {
        vector_tiles::<K, 1>(rows, row, vectors, out);
        row += 1;
    }
}

/// `R` rows from `row` on and all vectors.
fn vector_tiles<K: Tiles, const R: usize>(
    rows: Rows<'_>,
    row: usize,
    vectors: &[Vector<'_>],
    out: &mut [f32],
) {
    let mut done = 0;
    while done < vectors.len() {
        done += match vectors.len() - done {
            // As even as can be: five are three and two, for one alone waits for its weights.
            3 | 5 | 6 if K::WIDE && K::THREE => tile::<K, R, 3>(rows, row, vectors, done, out),
            4.. if K::WIDE => tile::<K, R, 4>(rows, row, vectors, done, out),
            2.. => tile::<K, R, 2>(rows, row, vectors, done, out),
            _ => tile::<K, R, 1>(rows, row, vectors, done, out),
        };
    }
}

/// The products of `R` rows from `row` on with `T` vectors from `done` on; returns `T`.
fn tile<K: Tiles, const R: usize, const T: usize>(
    rows: Rows<'_>,
    row: usize,
    vectors: &[Vector<'_>],
    done: usize,
    out: &mut [f32],
) -> usize {
    let count = rows.count();
    let vectors = *vectors[done..].first_chunk::<T>().expect("as many vectors as the tile has");
    let products = K::tile::<R, T>(rows.slice(row..row + R), vectors);
    for (t, out) in out.chunks_exact_mut(count).skip(done).take(T).enumerate() {
        for (out, products) in out[row..row + R].iter_mut().zip(&products) {
            *out = products[t];
        }
    }
    T
}

#[cfg(test)]
mod tests;
