//! Every kernel against f64 over the numbers it is given, at sizes that leave every kind of rest.

use model_formats::mxfp4::{bf16_to_f32, decode_row};

use super::*;
use crate::int8::{SCALE_COLUMNS, numbers_bytes, scales_bytes};
use crate::kernel::tests::noise;

/// Vectors that meet weights of all kinds in panels.
const MANY: usize = panels_min(false);

/// What products go to.
type Out<'a> = &'a mut dyn FnMut(usize, usize, &[f32]);

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

pub(super) fn quantized_rows(columns: usize, count: usize) -> Vec<Vec<u32>> {
    let row = |token: usize| {
        // Blocks of unlike sizes.
        let plain: Vec<f32> = noise(77 + token as u32)
            .take(columns)
            .enumerate()
            .map(|(i, x)| x * (1 + i / BLOCK % 5) as f32)
            .collect();
        let mut row = vec![u32::MAX; words(columns)];
        quantize(&plain, &mut row);
        row
    };
    (0..count).map(row).collect()
}

/// What a quantized row stands for, in the order of its columns.
pub(super) fn plain(row: &[u32], columns: usize) -> Vec<f64> {
    let vector = Vector::of(row, columns);
    let column = |c: usize| {
        let place = c % BLOCK / 2 + c % 2 * BLOCK / 2;
        let word = vector.numbers[c / BLOCK * NUMBERS + place / 4];
        let number = word.to_le_bytes()[place % 4] as i8;
        f64::from(number) * f64::from(f32::from_bits(vector.scales[c / BLOCK]))
    };
    (0..columns).map(column).collect()
}

/// Sums of whole numbers are exact, so that a sum of n blocks in any order is off by at most n + 20 roundings of the sum
/// of magnitudes: 16 lanes are added up, and scales are multiplied. Weights of eight bits count 128 more, which other lanes
/// make up for.
fn check(rows: Rows<'_>, weights: &[f32], count: usize) {
    check_with(rows, weights, &quantized_rows(rows.columns(), count));
}

fn check_with(rows: Rows<'_>, weights: &[f32], inputs: &[Vec<u32>]) {
    let (columns, count) = (rows.columns(), inputs.len());
    let vectors: Vec<&[u32]> = inputs.iter().map(Vec::as_slice).collect();
    let more = if matches!(rows, Rows::Int8 { .. }) { 2.0 } else { 0.0 };
    let magnitudes = |input: &[f64], weights: &[f32]| -> f64 {
        let largest = more * f64::from(weights.iter().fold(0.0f32, |m, w| m.max(w.abs())));
        weights.iter().zip(input).map(|(w, x)| (f64::from(w.abs()) + largest) * x.abs()).sum()
    };
    let compare = |kernel: &str, multiply: &dyn Fn(Out<'_>)| {
        let mut out = vec![f32::NAN; rows.count() * count];
        multiply(&mut |first, t, values| {
            for (row, value) in (first..).zip(values) {
                let cell = &mut out[row * count + t];
                assert!(cell.is_nan(), "written twice");
                *cell = *value;
            }
        });
        for (t, input) in inputs.iter().enumerate() {
            let input = plain(input, columns);
            for (row, weights) in weights.chunks_exact(columns).enumerate() {
                let terms = || weights.iter().zip(&input).map(|(w, x)| f64::from(*w) * x);
                let roundings = (columns / BLOCK + 20) as f64;
                let bound = roundings * f64::from(f32::EPSILON) * magnitudes(&input, weights);
                let (exact, got) = (terms().sum::<f64>(), f64::from(out[row * count + t]));
                let close = (got - exact).abs() <= bound;
                assert!(
                    close,
                    "{kernel} ({} x {columns}) row {row} vector {t}: {got}, not {exact}",
                    rows.count()
                );
            }
        }
    };
    for isa in available() {
        for order in [Order::Fastest, Order::Invariant] {
            compare(&format!("{isa:?} {order:?}"), &|out| multiply(isa, order, rows, &vectors, out));
        }
    }
    #[cfg(target_arch = "x86_64")]
    if avx512vnni::is_available() {
        let vectors: Vec<Vector<'_>> = vectors.iter().map(|row| Vector::of(row, columns)).collect();
        compare("panels", &|out| panel::multiply(rows, &vectors, out));
        // Whatever is chosen: each that the processor has.
        use avx512vnni::Shuffled;
        compare("vpshufb", &|out| drive::<avx512vnni::Kernel<Shuffled>>(rows, &vectors, out));
        if matches!(rows, Rows::Mxfp4 { .. }) {
            compare("blocks, vpshufb", &|out| drive::<blocks::Kernel<Shuffled>>(rows, &vectors, out));
        }
        if !avx512vnni::permutes() {
            println!("skipped: no vpermb");
        } else if matches!(rows, Rows::Mxfp4 { .. }) {
            let blocks = |out: Out<'_>| drive::<blocks::Kernel<avx512vnni::Permuted>>(rows, &vectors, out);
            compare("blocks, vpermb", &blocks);
        }
    }
    // Whatever is chosen: each that the processor has.
    #[cfg(target_arch = "aarch64")]
    {
        let vectors: Vec<Vector<'_>> = vectors.iter().map(|row| Vector::of(row, columns)).collect();
        compare("smull", &|out| drive::<neon::Plain>(rows, &vectors, out));
        if neon::has_dot() {
            compare("sdot", &|out| drive::<neon::Dot>(rows, &vectors, out));
        } else {
            println!("skipped: no dot products");
        }
        if neon::has_pairs() {
            compare("smmla", &|out| drive::<neon::Pairs>(rows, &vectors, out));
        } else {
            println!("skipped: no products of pairs");
        }
    }
}

/// Blocks, scales and weights of random MXFP4 rows; one byte in front, for stored weights are aligned to nothing.
pub(super) fn mxfp4(rows: usize, columns: usize) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let mut blocks = vec![0u8];
    blocks.extend(noise(6).take(rows * columns / 2).map(|x| (x * 128.0) as i8 as u8));
    let scales: Vec<u8> = noise(7).take(rows * columns / BLOCK).map(|x| (123.0 + 5.0 * x) as u8).collect();
    let mut weights = vec![0.0; rows * columns];
    decode_row(&blocks[1..], &scales, &mut weights);
    (blocks, scales, weights)
}

fn check_mxfp4(rows: usize, columns: usize, vectors: usize) {
    let (blocks, scales, weights) = mxfp4(rows, columns);
    check(Rows::Mxfp4 { blocks: &blocks[1..], scales: &scales, columns }, &weights, vectors);
}

/// Numbers in split order, scales and weights of random rows of eight bits; one byte in front.
pub(super) fn eight_bits(rows: usize, columns: usize) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let (mut numbers, mut scales, mut weights) = (vec![0u8], vec![0u8], Vec::new());
    for r in 0..rows as u32 {
        let plain: Vec<f32> = noise(8 + r).take(columns).map(|x| (x * 127.9).trunc()).collect();
        let bits: Vec<u16> = noise(900 + r)
            .take(columns.div_ceil(SCALE_COLUMNS))
            .map(|x| (x.to_bits() >> 16) as u16)
            .collect();
        weights.extend(plain.iter().enumerate().map(|(c, n)| n * bf16_to_f32(bits[c / SCALE_COLUMNS])));
        let mut out = vec![0.0; numbers_bytes(columns)];
        split(&plain, &mut out);
        numbers.extend(out.iter().map(|n| *n as i8 as u8));
        scales.extend(bits.iter().flat_map(|s| s.to_le_bytes()));
    }
    assert_eq!(scales.len() - 1, rows * scales_bytes(columns));
    (numbers, scales, weights)
}

fn check_int8(rows: usize, columns: usize, vectors: usize) {
    let (numbers, scales, weights) = eight_bits(rows, columns);
    check(Rows::Int8 { numbers: &numbers[1..], scales: &scales[1..], columns }, &weights, vectors);
}

#[test]
fn one_block() {
    check_mxfp4(1, 32, 1);
    check_int8(1, 32, 1);
    check_int8(1, 64, 1);
}

#[test]
fn many_blocks() {
    check_mxfp4(16, 2880, 1);
    check_int8(16, 2880, 1);
}

#[test]
fn ragged_tail() {
    for columns in (32..=544).step_by(32) {
        check_mxfp4(9, columns, 1);
        check_mxfp4(5, columns, 3);
    }
    for columns in [1, 31, 32, 33, 63, 65, 96, 97, 1023, 1024, 1056, 1057, 2881] {
        check_int8(9, columns, 1);
        check_int8(5, columns, 3);
    }
}

#[test]
fn every_rest_of_rows_and_vectors() {
    for rows in 1..=19 {
        for vectors in 1..=9 {
            check_mxfp4(rows, 96, vectors);
            check_int8(rows, 160, vectors);
        }
    }
}

/// Panels of 16 rows are taken four, two and one at a time, with every number of vectors up to six.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_rest_of_panels() {
    for rows in [31, 33, 48, 64, 79, 112] {
        for vectors in 1..=13 {
            check_mxfp4(rows, 160, vectors);
            check_int8(rows, 97, vectors);
        }
    }
    for columns in (32..=1120).step_by(32) {
        check_mxfp4(17, columns, 7);
        check_int8(17, columns - 1, 7);
    }
}

#[test]
fn every_code_and_scale() {
    let blocks: Vec<u8> = (0..=255).flat_map(|b: u8| [b; 16]).collect();
    let scales: Vec<u8> = (0..=255u8).map(|s| s.clamp(30, 200)).collect();
    let mut weights = vec![0.0; 256 * 32];
    decode_row(&blocks, &scales, &mut weights);
    for vectors in [1, 6] {
        check(Rows::Mxfp4 { blocks: &blocks, scales: &scales, columns: 32 }, &weights, vectors);
    }
}

/// The largest numbers there are, of one sign and of both: sums of products in sixteen bits would saturate or wrap where
/// four of them were added, or a weight of eight bits were taken 128 too large (`vpmaddubsw`, `smull`).
#[test]
fn the_largest_numbers_saturate_nowhere() {
    const COLUMNS: usize = 192;
    const ROWS: usize = 5;
    let signs: [fn(usize) -> f32; 4] =
        [|_| 1.0, |_| -1.0, |c| [1.0, -1.0][c % 2], |c| [1.0, 1.0, -1.0, -1.0][c % 4]];
    for (activation_sign, weight_sign) in signs.into_iter().flat_map(|a| signs.map(|w| (a, w))) {
        let numbers: Vec<f32> = (0..COLUMNS).map(|c| 127.0 * activation_sign(c)).collect();
        let mut row = vec![u32::MAX; words(COLUMNS)];
        quantize(&numbers, &mut row);
        assert_eq!(plain(&row, COLUMNS), numbers.iter().map(|n| f64::from(*n)).collect::<Vec<_>>());
        for count in [1, 4, MANY + 6] {
            let inputs = vec![row.clone(); count];
            // -6 is code 15, 6 is code 7; the scale 127 is 1.
            let codes: Vec<u8> = (0..COLUMNS).map(|c| if weight_sign(c) < 0.0 { 15 } else { 7 }).collect();
            let blocks: Vec<u8> =
                codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4).collect();
            let sixes: Vec<f32> = (0..COLUMNS).map(|c| 6.0 * weight_sign(c)).collect();
            let (blocks, scales) = (blocks.repeat(ROWS), vec![127; ROWS * COLUMNS / BLOCK]);
            let rows = Rows::Mxfp4 { blocks: &blocks, scales: &scales, columns: COLUMNS };
            check_with(rows, &sixes.repeat(ROWS), &inputs);
            // Also the one that no copy of weights has.
            for most in [127.0, 128.0] {
                let weights: Vec<f32> = (0..COLUMNS).map(|c| (most * weight_sign(c)).min(127.0)).collect();
                let mut split_weights = vec![0.0; COLUMNS];
                split(&weights, &mut split_weights);
                let bytes: Vec<u8> = split_weights.iter().map(|w| *w as i8 as u8).collect();
                let (bytes, scales) =
                    (bytes.repeat(ROWS), [0x80, 0x3f].repeat(ROWS * COLUMNS / SCALE_COLUMNS));
                let rows = Rows::Int8 { numbers: &bytes, scales: &scales, columns: COLUMNS };
                check_with(rows, &weights.repeat(ROWS), &inputs);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_however_many_others_there_are() {
    let (blocks, scales, _) = mxfp4(19, 352);
    let (numbers, number_scales, _) = eight_bits(19, 352);
    let inputs = quantized_rows(352, MANY + 1);
    let vectors: Vec<&[u32]> = inputs.iter().map(Vec::as_slice).collect();
    for rows in [
        Rows::Mxfp4 { blocks: &blocks[1..], scales: &scales, columns: 352 },
        Rows::Int8 { numbers: &numbers[1..], scales: &number_scales[1..], columns: 352 },
    ] {
        for isa in available() {
            for (t, vector) in vectors.iter().enumerate() {
                let (mut alone, mut beside) = ([0.0; 19], [0.0; 19]);
                let order = Order::Invariant;
                multiply(isa, order, rows, &[vector], &mut |row, _, some| {
                    alone[row..row + some.len()].copy_from_slice(some);
                });
                multiply(isa, order, rows, &vectors, &mut |row, other, some| {
                    if other == t {
                        beside[row..row + some.len()].copy_from_slice(some);
                    }
                });
                assert_eq!(alone.map(f32::to_bits), beside.map(f32::to_bits), "{isa:?} vector {t}");
            }
        }
    }
}

/// Each number is off by at most half a step, a step being a 127th of the largest of its block.
#[test]
fn quantizing_is_to_the_nearest() {
    for columns in [1, 31, 32, 33, 64, 65, 130] {
        let numbers: Vec<f32> = noise(3).take(columns).map(|x| x * 40.0).collect();
        let mut row = vec![u32::MAX; words(columns)];
        quantize(&numbers, &mut row);
        let got = plain(&row, columns);
        for (block, got) in numbers.chunks(BLOCK).zip(got.chunks(BLOCK)) {
            let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (x, got) in block.iter().zip(got) {
                let off = (f64::from(*x) - got).abs();
                assert!(off <= f64::from(largest) / 127.0 * 0.500_01, "{columns} columns: {got}, not {x}");
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_none_and_tiny_blocks_are_zero() {
    for (x, expected) in [(f32::NAN, None), (f32::INFINITY, None), (1e-31, Some(0.0)), (0.0, Some(0.0))] {
        let mut numbers = [0.5; 64];
        numbers[..32].fill(0.0);
        numbers[7] = x;
        let mut row = vec![0; words(64)];
        quantize(&numbers, &mut row);
        let (numbers, scales, _) = eight_bits(1, 64);
        let rows = Rows::Int8 { numbers: &numbers[1..], scales: &scales[1..], columns: 64 };
        for isa in available() {
            for vectors in [&[&row[..]; 1][..], &[&row[..]; MANY]] {
                multiply(isa, Order::Fastest, rows, vectors, &mut |_, _, values| {
                    let right = values.iter().all(|value| value.is_nan() == expected.is_none());
                    assert!(right, "{isa:?}: {x} makes {values:?}");
                });
            }
        }
    }
}
