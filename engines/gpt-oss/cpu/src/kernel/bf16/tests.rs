//! Rounded activations against f64, at sizes that leave every kind of rest.

use model_formats::mxfp4::{bf16_to_f32, decode_row};

use super::*;
use crate::int8::{SCALE_COLUMNS, encode_row, numbers_bytes, scales_bytes};
use crate::kernel::Isa;
use crate::kernel::tests::noise;

/// Those that multiply so.
fn kernels() -> impl Iterator<Item = Isa> {
    [Isa::Avx512Bf16, Isa::Amx].into_iter().filter(|isa| isa.is_available())
}

fn available() -> bool {
    let there = Isa::Avx512Bf16.is_available();
    if !there {
        println!("skipped: no {}", Isa::Avx512Bf16.as_str());
    }
    there
}

/// The columns of words.
fn plain(words: &[u32]) -> Vec<f32> {
    words.iter().flat_map(|w| [bf16_to_f32(*w as u16), bf16_to_f32((*w >> 16) as u16)]).collect()
}

fn rounded_rows(columns: usize, tokens: usize) -> Vec<Vec<u32>> {
    let row = |token: usize| {
        let plain: Vec<f32> = noise(77 + token as u32).take(columns).collect();
        let mut row = vec![u32::MAX; words(columns)];
        round(&plain, &mut row);
        row
    };
    (0..tokens).map(row).collect()
}

fn packed(rows: &[Vec<u32>]) -> Vec<u32> {
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let mut packed = vec![u32::MAX; rows.len().div_ceil(GROUP) * GROUP * rows[0].len()];
    for (rows, out) in rows.chunks(GROUP).zip(packed.chunks_exact_mut(GROUP * rows[0].len())) {
        pack(rows, out);
    }
    packed
}

/// Compares with f64. A sum of n products in any order is off by at most n + 2 roundings of the sum of magnitudes.
fn check(rows: Rows<'_>, weights: &[f32], tokens: usize) {
    let (columns, count) = (rows.columns(), rows.count());
    let inputs = rounded_rows(columns, tokens);
    let packed = packed(&inputs);
    for isa in kernels() {
        let mut out = vec![f32::NAN; tokens * count];
        multiply(isa, rows, &packed, |products| {
            products.each_token(tokens, |token, products| {
                let out = &mut out[token * count..][..count];
                assert!(out[0].is_nan(), "written twice");
                out.copy_from_slice(products);
            });
        });
        check_products(isa, rows, weights, &inputs, &out);
    }
}

fn check_products(isa: Isa, rows: Rows<'_>, weights: &[f32], inputs: &[Vec<u32>], out: &[f32]) {
    let (columns, count, tokens) = (rows.columns(), rows.count(), inputs.len());
    for (input, out) in inputs.iter().zip(out.chunks_exact(count)) {
        let input = plain(input);
        for (row, (weights, got)) in weights.chunks_exact(columns).zip(out).enumerate() {
            let terms = || weights.iter().zip(&input).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let bound = (columns + 2) as f64 * f64::from(f32::EPSILON) * terms().map(f64::abs).sum::<f64>();
            let exact = terms().sum::<f64>();
            let close = (f64::from(*got) - exact).abs() <= bound;
            assert!(close, "{isa:?} ({count} x {columns}) x {tokens}, row {row}: {got}, not {exact}");
        }
    }
}

fn check_bf16(count: usize, columns: usize, tokens: usize) {
    if !available() {
        return;
    }
    let numbers: Vec<u16> = noise(5).take(count * columns).map(|x| (x.to_bits() >> 16) as u16).collect();
    // One byte in front: stored weights are aligned to nothing.
    let mut bytes = vec![0u8];
    bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    let weights: Vec<f32> = numbers.iter().map(|n| bf16_to_f32(*n)).collect();
    check(Rows::Bf16 { bytes: &bytes[1..], columns }, &weights, tokens);
}

fn check_mxfp4(count: usize, columns: usize, tokens: usize) {
    if !available() {
        return;
    }
    let mut blocks = vec![0u8];
    blocks.extend(noise(6).take(count * columns / 2).map(|x| (x * 128.0) as i8 as u8));
    let scales: Vec<u8> = noise(7).take(count * columns / 32).map(|x| (123.0 + 5.0 * x) as u8).collect();
    let mut weights = vec![0.0; count * columns];
    decode_row(&blocks[1..], &scales, &mut weights);
    check(Rows::Mxfp4 { blocks: &blocks[1..], scales: &scales, columns }, &weights, tokens);
}

/// Rows of eight bits become bf16 numbers, each at most half a unit of its last place off.
#[test]
fn eight_bits_are_decoded_to_the_nearest() {
    if !available() {
        return;
    }
    for columns in [1, 31, 32, 64, 70, 130, 320] {
        let bf16: Vec<u8> =
            noise(3).take(2 * columns).flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let (mut numbers, mut scales) =
            (vec![0; 2 * numbers_bytes(columns)], vec![0; 2 * scales_bytes(columns)]);
        let rows = numbers
            .chunks_exact_mut(numbers_bytes(columns))
            .zip(scales.chunks_exact_mut(scales_bytes(columns)));
        for ((numbers, scales), bf16) in rows.zip(bf16.chunks_exact(2 * columns)) {
            encode_row(bf16, numbers, scales);
        }
        let mut panel = vec![9; 2 * words(columns) * 4];
        vector::decode(Rows::Int8 { numbers: &numbers, scales: &scales, columns }, &mut panel);
        for (row, panel) in panel.chunks_exact(words(columns) * 4).enumerate() {
            for (column, got) in panel.as_chunks::<2>().0.iter().enumerate() {
                let place = column / 32 * 32 + column % 2 * 16 + column % 32 / 2;
                let number = numbers[row * numbers_bytes(columns) + place] as i8;
                let scale = &scales[row * scales_bytes(columns)..].as_chunks::<2>().0[column / SCALE_COLUMNS];
                let exact = f32::from(number) * bf16_to_f32(u16::from_le_bytes(*scale));
                let got = bf16_to_f32(u16::from_le_bytes(*got));
                assert!((got - exact).abs() <= exact.abs() / 256.0, "column {column}: {got}, not {exact}");
                assert!(column < columns || got == 0.0);
            }
        }
    }
}

#[test]
fn every_rest_of_rows_and_tokens() {
    for count in 1..=17 {
        for tokens in 1..=70 {
            check_bf16(count, 32, tokens);
            check_mxfp4(count, 32, tokens);
        }
    }
}

#[test]
fn many_blocks() {
    check_bf16(50, 2880, 33);
    check_mxfp4(50, 2880, 33);
}

#[test]
fn many_tokens() {
    check_bf16(48, 96, 300);
    check_mxfp4(48, 96, 300);
}

#[test]
fn ragged_tail() {
    for columns in [1, 2, 31, 33, 63, 95, 130, 2881] {
        check_bf16(5, columns, 19);
    }
}

/// Bit for bit: every product of a value and a scale is a bf16 number, or infinite, or NaN.
#[test]
fn every_code_and_scale_is_decoded_exactly() {
    if !available() {
        return;
    }
    for scale in 0..=255 {
        let blocks: Vec<u8> = (0..=255).collect();
        let scales = [scale; 16];
        let mut expected = vec![0.0; 512];
        decode_row(&blocks, &scales, &mut expected);
        let mut panel = vec![9; 1024];
        vector::decode(Rows::Mxfp4 { blocks: &blocks, scales: &scales, columns: 512 }, &mut panel);
        for (got, expected) in panel.as_chunks::<2>().0.iter().zip(&expected) {
            let got = bf16_to_f32(u16::from_le_bytes(*got));
            let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(same, "scale {scale}: {got}, not {expected}");
        }
    }
}

#[test]
fn rounding_is_to_nearest_and_ties_go_to_even() {
    if !available() {
        return;
    }
    let cases = [
        (0x3f80_0000, 0x3f80),
        (0x3f80_7fff, 0x3f80),
        (0x3f80_8000, 0x3f80),
        (0x3f80_8001, 0x3f81),
        (0x3f81_8000, 0x3f82),
        (0xbf81_8000, 0xbf82),
        (0x7f7f_ffff, 0x7f80),
        (0xff80_0000, 0xff80),
        (0x8000_0000, 0x8000),
    ];
    let plain: Vec<f32> = cases.iter().map(|(from, _)| f32::from_bits(*from)).collect();
    let mut out = [u32::MAX; 16];
    round(&plain, &mut out);
    for (i, (from, to)) in cases.iter().enumerate() {
        assert_eq!(out[i / 2] >> (i % 2 * 16) & 0xffff, *to, "{from:#x}");
    }
    assert!(out[5..].iter().all(|word| *word == 0));
}

/// Against the definition in f64; an activation is rounded to 8 bits.
#[test]
fn activations_of_every_rest_of_groups() {
    if !available() {
        return;
    }
    let swiglu = Swiglu { alpha: 1.702, limit: 0.4 };
    let (columns, count) = (64, 48);
    let numbers: Vec<u16> = noise(5).take(count * columns).map(|x| (x.to_bits() >> 16) as u16).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let weights: Vec<f32> = numbers.iter().map(|n| bf16_to_f32(*n)).collect();
    let bias: Vec<f32> = noise(8).take(count).collect();
    for (isa, tokens) in kernels().flat_map(|isa| [1, 16, 17, 40, 64, 65, 100, 150].map(|t| (isa, t))) {
        let inputs = rounded_rows(columns, tokens);
        let packed = packed(&inputs);
        let mut acts = vec![u32::MAX; packed.len() / words(columns) * count / 4];
        multiply(isa, Rows::Bf16 { bytes: &bytes, columns }, &packed, |products| {
            for group in products.groups() {
                let out = &mut acts[group * count / 4 * GROUP..][..count / 4 * GROUP];
                products.activate(group, &bias, swiglu, out);
            }
        });
        for (token, input) in inputs.iter().enumerate() {
            let input = plain(input);
            let product = |row: usize| {
                let weights = &weights[row * columns..][..columns];
                let terms = weights.iter().zip(&input).map(|(w, x)| f64::from(*w) * f64::from(*x));
                terms.sum::<f64>() + f64::from(bias[row])
            };
            for act in 0..count / 2 {
                let limit = f64::from(swiglu.limit);
                let gate = product(2 * act).min(limit);
                let up = product(2 * act + 1).clamp(-limit, limit);
                let exact = gate / (1.0 + (-f64::from(swiglu.alpha) * gate).exp()) * (up + 1.0);
                let word = acts[(token / GROUP * count / 4 + act / 2) * GROUP + token % GROUP];
                let got = f64::from(bf16_to_f32((word >> (act % 2 * 16)) as u16));
                assert!(
                    (got - exact).abs() <= exact.abs() / 256.0 + 1e-5,
                    "{isa:?} {tokens}: {got}, not {exact}"
                );
            }
        }
    }
}
