//! The kernels of [`super::bf16`] in AVX-512 with `vdpbf16ps`: one vector is a pair of columns of 16 tokens.

use std::arch::x86_64::*;
use std::mem::transmute;

use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, SCALES, VALUES, bf16_to_f32};

use super::bf16::{GROUP, Panel};
use super::transpose::transpose;
use super::{Isa, Rows, Swiglu};
use crate::int8::{SCALE_COLUMNS, numbers_bytes, scales_bytes};
use crate::math::sigmoid;

/// Rows of a tile: 6 times 4 vectors are 24 accumulators; with the vectors and a weight that is 29 of the 32 registers.
const TILE_ROWS: usize = 6;
/// Groups of tokens in a tile.
const TILE_GROUPS: usize = 4;
/// Bytes of a word.
const WORD: usize = 4;

/// The 16 values of each scale as bf16, twice: the permutation looks at five bits of an index, and the fifth is one of
/// the neighbour's. All products of a value and a scale are bf16 numbers, infinities and NaN where f32 has them.
static TABLE: [[u16; 2 * VALUES.len()]; 256] = {
    let mut table = [[0; 2 * VALUES.len()]; 256];
    let mut at = 0;
    while at < table.len() * 2 * VALUES.len() {
        let (scale, value) = (at / (2 * VALUES.len()), at % (2 * VALUES.len()));
        table[scale][value] = ((VALUES[value % VALUES.len()] * SCALES[scale]).to_bits() >> 16) as u16;
        at += 1;
    }
    table
};

/// `out`, (rows, 16 * groups), = weights times `packed`, (groups, words, 16).
pub(super) fn product(panel: Panel<'_>, packed: &[u32], out: &mut [f32]) {
    let Panel { bytes, rows, words } = panel;
    let groups = packed.len() / (words * GROUP);
    assert_available();
    assert_eq!(bytes.len(), rows * words * WORD);
    assert_eq!(packed.len(), groups * words * GROUP);
    assert_eq!(out.len(), rows * groups * GROUP);
    let mut done = 0;
    // As even as can be: five groups are three and two, for one alone waits for its weights.
    let blocks = groups.div_ceil(TILE_GROUPS);
    for block in 0..blocks {
        let width = (groups - done).div_ceil(blocks - block);
        for row in (0..rows).step_by(TILE_ROWS) {
            let place = Place {
                weights: bytes[row * words * WORD..].as_ptr(),
                words,
                packed: packed[done * words * GROUP..].as_ptr(),
                out: out[row * groups * GROUP + done * GROUP..].as_mut_ptr(),
                stride: groups * GROUP,
            };
            let height = (rows - row).min(TILE_ROWS);
            // SAFETY: the processor can, as asserted; from `row` and `done` on there are as many rows and groups as the
            // tile has, by the lengths asserted above.
            unsafe {
                match width {
                    1 => tile_of::<1>(height, place),
                    2 => tile_of::<2>(height, place),
                    3 => tile_of::<3>(height, place),
                    _ => tile_of::<TILE_GROUPS>(height, place),
                }
            }
        }
        done += width;
    }
}

/// Where a tile reads and writes.
#[derive(Clone, Copy)]
struct Place {
    weights: *const u8,
    /// Words of a row.
    words: usize,
    packed: *const u32,
    out: *mut f32,
    /// Floats from one row of `out` to the next.
    stride: usize,
}

/// # Safety
/// As for [`tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn tile_of<const G: usize>(rows: usize, place: Place) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows {
            1 => tile::<1, G>(place),
            2 => tile::<2, G>(place),
            3 => tile::<3, G>(place),
            4 => tile::<4, G>(place),
            5 => tile::<5, G>(place),
            _ => tile::<TILE_ROWS, G>(place),
        }
    }
}

/// # Safety
/// At the place are `R` rows of weights and `G` groups of tokens, and room for their products.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn tile<const R: usize, const G: usize>(place: Place) {
    let Place { weights, words, packed, out, stride } = place;
    let mut sums = [[_mm512_setzero_ps(); G]; R];
    for word in 0..words {
        if word % GROUP == 0 {
            for r in 0..R {
                // The same place in the rows that come next: the hardware's own prefetch stops at every page.
                let ahead = ((R + r) * words + word) * WORD;
                _mm_prefetch::<_MM_HINT_T1>(weights.wrapping_add(ahead).cast());
            }
        }
        let mut tokens = [_mm512_setzero_si512(); G];
        for (g, tokens) in tokens.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *tokens = unsafe { _mm512_loadu_si512(packed.add((g * words + word) * GROUP).cast()) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = (r * words + word) * WORD;
            // SAFETY: the caller's promise.
            let weight = _mm512_set1_epi32(unsafe { weights.add(at).cast::<i32>().read_unaligned() });
            for (sum, tokens) in sums.iter_mut().zip(tokens) {
                *sum = _mm512_dpbf16_ps(*sum, bf16(tokens), bf16(weight));
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (g, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(out.add(r * stride + g * GROUP), *sum) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bf16(words: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes for which every pattern is a value.
    unsafe { transmute(words) }
}

/// Rows of any kind as bf16, (rows, words); what is behind the last column is 0.
pub(super) fn decode(rows: Rows<'_>, out: &mut [u8]) {
    assert_available();
    match rows {
        Rows::Bf16 { bytes, columns } => {
            let stride = out.len() / rows.count();
            for (row, out) in bytes.chunks_exact(2 * columns).zip(out.chunks_exact_mut(stride)) {
                out[..2 * columns].copy_from_slice(row);
                out[2 * columns..].fill(0);
            }
        }
        // SAFETY: the processor can, as asserted.
        Rows::Mxfp4 { blocks, scales, .. } => unsafe { decode_mxfp4(blocks, scales, out) },
        Rows::Int8 { numbers, scales, columns } => {
            let rows =
                numbers.chunks_exact(numbers_bytes(columns)).zip(scales.chunks_exact(scales_bytes(columns)));
            for ((numbers, scales), out) in rows.zip(out.chunks_exact_mut(2 * numbers_bytes(columns))) {
                // SAFETY: as above.
                unsafe { decode_int8(numbers, scales, out) }
            }
        }
    }
}

/// One row. Numbers times their scale are rounded to bf16, which is a third of what eight bits are off already.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn decode_int8(numbers: &[u8], scales: &[u8], out: &mut [u8]) {
    let blocks = numbers.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<{ 2 * BLOCK }>().0);
    for (at, (numbers, out)) in blocks.enumerate() {
        let scale = scales.as_chunks::<2>().0[at * BLOCK / SCALE_COLUMNS];
        let scale = bf16_to_f32(u16::from_le_bytes(scale));
        let (even, odd) = numbers.split_at(BLOCK / 2);
        for (lane, out) in out.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
            let value = |number: u8| nearest(f32::from(number as i8) * scale);
            *out = (value(even[lane]) | value(odd[lane]) << 16).to_le_bytes();
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn decode_mxfp4(blocks: &[u8], scales: &[u8], out: &mut [u8]) {
    assert_eq!(blocks.len(), scales.len() * BLOCK_BYTES);
    assert_eq!(out.len(), scales.len() * BLOCK * 2);
    for (at, scale) in scales.iter().enumerate() {
        // SAFETY: the lengths asserted above are those of so many blocks.
        unsafe {
            let bytes = _mm_loadu_si128(blocks.as_ptr().add(at * BLOCK_BYTES).cast());
            let values = decode_block(bytes, *scale);
            _mm512_storeu_si512(out.as_mut_ptr().add(at * BLOCK * 2).cast(), values);
        }
    }
}

/// The 32 bf16 numbers of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn decode_block(bytes: __m128i, scale: u8) -> __m512i {
    // A byte in each word: its low half becomes the index of the even column, its high half that of the odd one.
    let low = _mm512_cvtepu8_epi32(bytes);
    let codes = _mm512_or_si512(low, _mm512_slli_epi32::<12>(low));
    // SAFETY: a row of the table is 64 bytes.
    let table = unsafe { _mm512_loadu_si512(TABLE[usize::from(scale)].as_ptr().cast()) };
    _mm512_permutexvar_epi16(codes, table)
}

/// Rounds to the nearest bf16, ties to even; two columns to a word, 0 behind the last.
pub(super) fn round(plain: &[f32], out: &mut [u32]) {
    assert_available();
    assert_eq!(out.len(), plain.len().next_multiple_of(BLOCK) / 2);
    // SAFETY: the processor can, as asserted.
    unsafe { round_blocks(plain, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn round_blocks(plain: &[f32], out: &mut [u32]) {
    for (plain, out) in plain.chunks(BLOCK).zip(out.as_chunks_mut::<GROUP>().0) {
        let mut block = [0.0; BLOCK];
        block[..plain.len()].copy_from_slice(plain);
        // SAFETY: a block is two vectors of floats and becomes one of words.
        unsafe {
            let low = _mm512_loadu_ps(block.as_ptr());
            let high = _mm512_loadu_ps(block.as_ptr().add(GROUP));
            let words: __m512i = transmute(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), words);
        }
    }
}

/// Makes a group, (words, 16), of up to 16 rows; what is behind the last row is 0.
pub(super) fn pack(rows: &[&[u32]], out: &mut [u32]) {
    let words = out.len() / GROUP;
    assert_available();
    assert!(rows.len() <= GROUP && rows.iter().all(|row| row.len() == words) && words.is_multiple_of(GROUP));
    // SAFETY: the processor can, as asserted.
    unsafe { pack_blocks(rows, out) }
}

#[target_feature(enable = "avx512f")]
fn pack_blocks(rows: &[&[u32]], out: &mut [u32]) {
    for (block, out) in out.as_chunks_mut::<{ GROUP * GROUP }>().0.iter_mut().enumerate() {
        let mut vectors = [_mm512_setzero_si512(); GROUP];
        for (vector, row) in vectors.iter_mut().zip(rows) {
            let words = row[block * GROUP..][..GROUP].as_ptr();
            // SAFETY: these are the 16 words of the slice.
            *vector = unsafe { _mm512_loadu_si512(words.cast()) };
        }
        let vectors = transpose(vectors);
        for (vector, out) in vectors.iter().zip(out.as_chunks_mut::<GROUP>().0) {
            // SAFETY: these are the 16 words of the array.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), *vector) };
        }
    }
}

/// `products`, (rows, stride), to `out`, (tokens, rows).
pub(super) fn turn(products: &[f32], stride: usize, rows: usize, out: &mut [f32]) {
    let tokens = out.len() / rows;
    assert_available();
    assert_eq!(out.len(), tokens * rows);
    assert!(products.len() == rows * stride && tokens.next_multiple_of(GROUP) <= stride);
    // SAFETY: the processor can, as asserted.
    unsafe { turn_blocks(products, stride, rows, out) }
}

#[target_feature(enable = "avx512f")]
fn turn_blocks(products: &[f32], stride: usize, rows: usize, out: &mut [f32]) {
    let tokens = out.len() / rows;
    for row in (0..rows).step_by(GROUP) {
        let height = (rows - row).min(GROUP);
        let mask = u16::MAX >> (GROUP - height);
        for token in (0..tokens).step_by(GROUP) {
            let mut vectors = [_mm512_setzero_si512(); GROUP];
            for (r, vector) in vectors.iter_mut().take(height).enumerate() {
                let floats = products[(row + r) * stride + token..][..GROUP].as_ptr();
                // SAFETY: these are the 16 floats of the slice.
                *vector = unsafe { _mm512_loadu_si512(floats.cast()) };
            }
            let vectors = transpose(vectors);
            for (t, vector) in vectors.iter().take(tokens - token).enumerate() {
                let floats = out[(token + t) * rows + row..][..height].as_mut_ptr();
                // SAFETY: the mask has as many ones as the slice floats.
                unsafe { _mm512_mask_storeu_ps(floats, mask, _mm512_castsi512_ps(*vector)) };
            }
        }
    }
}

/// `out`, (words, 16), becomes the activations of 16 tokens whose products, (rows, stride), begin at `products`; rows are
/// gates and ups in turn, and `bias` is added to them.
pub(super) fn activate(products: &[f32], stride: usize, bias: &[f32], swiglu: Swiglu, out: &mut [u32]) {
    assert_available();
    assert_eq!(bias.len() * GROUP, out.len() * 4);
    // SAFETY: the processor can, as asserted.
    unsafe { activate_rows(products, stride, bias, swiglu, out) }
}

/// Plain loops over 16 tokens, which the compiler turns into vectors of the features named here.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn activate_rows(products: &[f32], stride: usize, bias: &[f32], swiglu: Swiglu, out: &mut [u32]) {
    let (limit, alpha) = (swiglu.limit, swiglu.alpha);
    let bias = bias.as_chunks::<4>().0;
    for (word, (bias, out)) in bias.iter().zip(out.as_chunks_mut::<GROUP>().0).enumerate() {
        let mut halves = [[0u32; GROUP]; 2];
        for (half, bits) in halves.iter_mut().enumerate() {
            let row = |r: usize| &products[(4 * word + 2 * half + r) * stride..][..GROUP];
            let (gates, ups) = (row(0), row(1));
            for lane in 0..GROUP {
                let gate = (gates[lane] + bias[2 * half]).min(limit);
                let up = (ups[lane] + bias[2 * half + 1]).clamp(-limit, limit);
                bits[lane] = nearest(gate * sigmoid(alpha * gate) * (up + 1.0));
            }
        }
        for lane in 0..GROUP {
            out[lane] = halves[0][lane] | halves[1][lane] << 16;
        }
    }
}

/// The bits of the nearest bf16, ties to even; NaN stays NaN as long as its upper half says so, as those of sums do.
#[inline(always)]
fn nearest(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (if x.is_nan() { bits } else { rounded }) >> 16
}

fn assert_available() {
    assert!(Isa::Avx512Bf16.is_available(), "this processor has no {}", Isa::Avx512Bf16.as_str());
}
