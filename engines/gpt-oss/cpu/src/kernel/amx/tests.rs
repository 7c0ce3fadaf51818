//! Tiles against f64. The kernel's place among the others is tested with them: [`crate::kernel::bf16`].

use super::*;
use crate::kernel::tests::noise;

/// Words of two numbers of random bf16.
fn words(seed: u32, count: usize) -> Vec<u32> {
    noise(seed)
        .take(2 * count)
        .collect::<Vec<_>>()
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[a, b]| a.to_bits() >> 16 | b.to_bits() & 0xffff_0000)
        .collect()
}

fn halves(word: u32) -> [f64; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)].map(f64::from)
}

fn check(rows: usize, words_of_row: usize, groups: usize) {
    if state() != Amx::Works {
        println!("skipped: {:?}", state());
        return;
    }
    let weights = words(rows as u32, rows * words_of_row);
    let packed = words(100 + groups as u32, groups * words_of_row * GROUP);
    // Weights are aligned to nothing.
    let mut bytes = vec![0u8];
    bytes.extend(weights.iter().flat_map(|word| word.to_le_bytes()));
    let mut out = vec![f32::NAN; rows * groups * GROUP + 1];
    let (end, panel) = (out.len() - 1, Panel { bytes: &bytes[1..], rows, words: words_of_row });
    product(panel, &packed, &mut out[..end]);
    assert!(out[end].is_nan(), "written behind the end");
    for (at, got) in out[..end].iter().enumerate() {
        let (row, token) = (at / (groups * GROUP), at % (groups * GROUP));
        let terms = || {
            (0..words_of_row).flat_map(|word| {
                let weight = halves(weights[row * words_of_row + word]);
                let token = halves(packed[(token / GROUP * words_of_row + word) * GROUP + token % GROUP]);
                [weight[0] * token[0], weight[1] * token[1]]
            })
        };
        let exact: f64 = terms().sum();
        // A sum of n products in any order is off by at most n + 2 roundings of the sum of magnitudes.
        let bound =
            (2 * words_of_row + 2) as f64 * f64::from(f32::EPSILON) * terms().map(f64::abs).sum::<f64>();
        let close = (f64::from(*got) - exact).abs() <= bound;
        assert!(
            close,
            "({rows} x {words_of_row} words) x {groups}, row {row} token {token}: {got}, not {exact}"
        );
    }
}

#[test]
fn one_tile() {
    check(16, 16, 1);
}

#[test]
fn every_rest_of_rows_and_groups() {
    for rows in [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 96, 113] {
        for groups in 1..=5 {
            check(rows, 32, groups);
        }
    }
}

#[test]
fn many_columns() {
    check(35, 1440, 3);
}

/// A thread that has done its work has no tiles: neither configured, nor in what the system saves.
#[cfg(target_os = "linux")]
#[test]
fn tiles_are_released() {
    if state() != Amx::Works {
        println!("skipped: {:?}", state());
        return;
    }
    check(17, 16, 3);
    assert!(!emulated::is_configured(), "tiles are still configured");
}
