//! Every kernel against f64, at sizes that leave every kind of rest.

use model_formats::mxfp4::{bf16_to_f32, decode_row};

use super::*;

/// Deterministic noise in -1..1.
pub(super) fn noise(seed: u32) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    })
}

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| {
        let there = isa.is_available();
        if !there {
            println!("skipped: no {}", isa.as_str());
        }
        there
    })
}

/// Compares with f64. A sum of n products in any order is off by at most n + 2 roundings of the sum of magnitudes.
fn check(rows: Rows<'_>, weights: &[f32], vectors: usize) {
    let (columns, count) = (rows.columns(), rows.count());
    let plain: Vec<Vec<f32>> = (0..vectors).map(|t| noise(77 + t as u32).take(columns).collect()).collect();
    let splits: Vec<Vec<f32>> = plain
        .iter()
        .map(|p| {
            let mut out = vec![0.0; split_len(columns)];
            split(p, &mut out);
            out
        })
        .collect();
    let splits: Vec<&[f32]> = splits.iter().map(Vec::as_slice).collect();
    for (isa, order) in available().flat_map(|isa| [(isa, Order::Fastest), (isa, Order::Invariant)]) {
        let mut out = vec![f32::NAN; count * vectors];
        multiply(isa, order, rows, &splits, &mut |row, t, value| {
            let cell = &mut out[row * vectors + t];
            assert!(cell.is_nan(), "written twice");
            *cell = value;
        });
        for row in 0..count {
            let weights = &weights[row * columns..][..columns];
            for t in 0..vectors {
                let terms = || weights.iter().zip(&plain[t]).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let bound =
                    (columns + 2) as f64 * f64::from(f32::EPSILON) * terms().map(f64::abs).sum::<f64>();
                let (exact, got) = (terms().sum::<f64>(), f64::from(out[row * vectors + t]));
                assert!(
                    (got - exact).abs() <= bound,
                    "{isa:?} ({count} x {columns}) row {row} vector {t}: {got}, not {exact}"
                );
            }
        }
    }
}

fn check_bf16(count: usize, columns: usize, vectors: usize) {
    let numbers: Vec<u16> = noise(5).take(count * columns).map(|x| (x.to_bits() >> 16) as u16).collect();
    // One byte in front: stored weights are aligned to nothing.
    let mut bytes = vec![0u8];
    bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    let weights: Vec<f32> = numbers.iter().map(|n| bf16_to_f32(*n)).collect();
    check(Rows::Bf16 { bytes: &bytes[1..], columns }, &weights, vectors);
}

fn check_mxfp4(count: usize, columns: usize, vectors: usize) {
    let mut blocks = vec![0u8];
    blocks.extend(noise(6).take(count * columns / 2).map(|x| (x * 128.0) as i8 as u8));
    let scales: Vec<u8> = noise(7).take(count * columns / 32).map(|x| (123.0 + 5.0 * x) as u8).collect();
    let mut weights = vec![0.0; count * columns];
    decode_row(&blocks[1..], &scales, &mut weights);
    check(Rows::Mxfp4 { blocks: &blocks[1..], scales: &scales, columns }, &weights, vectors);
}

#[test]
fn bf16_one_block() {
    check_bf16(1, 32, 1);
}

#[test]
fn bf16_many_blocks() {
    check_bf16(16, 2880, 1);
}

#[test]
fn bf16_ragged_tail() {
    for columns in [1, 2, 31, 33, 63, 95, 2881] {
        check_bf16(5, columns, 3);
    }
}

#[test]
fn bf16_every_rest_of_rows_and_vectors() {
    for count in 1..=19 {
        for vectors in 1..=9 {
            check_bf16(count, 64, vectors);
        }
    }
}

#[test]
fn bf16_many_tokens() {
    check_bf16(12, 160, 67);
}

#[test]
fn mxfp4_one_block() {
    check_mxfp4(1, 32, 1);
}

#[test]
fn mxfp4_many_blocks() {
    check_mxfp4(16, 2880, 1);
}

#[test]
fn mxfp4_every_rest_of_rows_and_vectors() {
    for count in 1..=19 {
        for vectors in 1..=9 {
            check_mxfp4(count, 96, vectors);
        }
    }
}

#[test]
fn mxfp4_many_tokens() {
    check_mxfp4(12, 160, 67);
}

#[test]
fn mxfp4_every_code_and_scale() {
    let blocks: Vec<u8> = (0..=255).flat_map(|b: u8| [b; 16]).collect();
    let scales: Vec<u8> = (0..=255u8).map(|s| s.clamp(30, 200)).collect();
    let mut weights = vec![0.0; 256 * 32];
    decode_row(&blocks, &scales, &mut weights);
    check(Rows::Mxfp4 { blocks: &blocks, scales: &scales, columns: 32 }, &weights, 1);
}

#[test]
fn split_order_is_evens_then_odds() {
    let plain: Vec<f32> = (0..35).map(|i| i as f32).collect();
    let mut out = vec![9.0; 64];
    split(&plain, &mut out);
    assert_eq!((out[0], out[1], out[15], out[16], out[31]), (0.0, 2.0, 30.0, 1.0, 31.0));
    assert_eq!((out[32], out[33], out[34], out[48], out[49]), (32.0, 34.0, 0.0, 33.0, 0.0));
}

fn check_int8(count: usize, columns: usize, vectors: usize) {
    let row = split_len(columns);
    // Behind the last column are zeros.
    let plain: Vec<Vec<f32>> = (0..count)
        .map(|r| noise(8 + r as u32).take(columns).map(|x| (x * 127.9).trunc()).collect())
        .collect();
    let mut numbers = vec![0u8];
    for plain in &plain {
        let mut out = vec![0.0; row];
        split(plain, &mut out);
        numbers.extend(out.iter().map(|n| *n as i8 as u8));
    }
    let groups = columns.div_ceil(int8::SCALE_COLUMNS);
    let scale_bits: Vec<u16> = noise(9).take(count * groups).map(|x| (x.to_bits() >> 16) as u16).collect();
    let mut scales = vec![0u8];
    scales.extend(scale_bits.iter().flat_map(|s| s.to_le_bytes()));
    let weights: Vec<f32> = plain
        .iter()
        .zip(scale_bits.chunks(groups))
        .flat_map(|(plain, scales)| {
            plain.iter().enumerate().map(|(i, n)| n * bf16_to_f32(scales[i / int8::SCALE_COLUMNS]))
        })
        .collect();
    check(Rows::Int8 { numbers: &numbers[1..], scales: &scales[1..], columns }, &weights, vectors);
}

#[test]
fn int8_one_block() {
    check_int8(1, 64, 1);
}

#[test]
fn int8_many_blocks() {
    check_int8(16, 2880, 1);
}

#[test]
fn int8_ragged_tail() {
    for columns in [1, 31, 32, 33, 63, 65, 96, 97, 1023, 1024, 1056, 1057, 2881] {
        check_int8(5, columns, 3);
    }
}

#[test]
fn int8_every_rest_of_rows_and_vectors() {
    for count in 1..=19 {
        for vectors in 1..=9 {
            check_int8(count, 160, vectors);
        }
    }
}

#[test]
fn int8_many_tokens() {
    check_int8(12, 160, 67);
}

/// Whatever `order` says: a row of eight bits has one order.
#[test]
fn int8_has_the_same_bits_however_many_vectors_there_are() {
    let columns = 160;
    let numbers: Vec<u8> = noise(10).take(19 * columns).map(|x| (x * 127.0) as i8 as u8).collect();
    let scales = [0x12, 0x3c].repeat(19 * 3);
    let vectors: Vec<Vec<f32>> = (0..9).map(|t| noise(40 + t).take(columns).collect()).collect();
    let vectors: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
    let rows = Rows::Int8 { numbers: &numbers, scales: &scales, columns };
    for isa in available() {
        for (t, vector) in vectors.iter().enumerate() {
            let mut alone = [0.0; 19];
            multiply(isa, Order::Fastest, rows, &[vector], &mut |row, _, value| alone[row] = value);
            let mut beside = [0.0; 19];
            multiply(isa, Order::Fastest, rows, &vectors, &mut |row, other, value| {
                if other == t {
                    beside[row] = value;
                }
            });
            assert_eq!(alone.map(f32::to_bits), beside.map(f32::to_bits), "{isa:?} vector {t}");
        }
    }
}
