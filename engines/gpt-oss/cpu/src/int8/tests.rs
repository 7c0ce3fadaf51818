//! Eight bits against the bf16 they are made of.

use super::*;

/// Gaussian noise of standard deviation 0.02, rounded to bf16.
fn gaussian(seed: u32, count: usize) -> Vec<u16> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    let one = |_| {
        let sum: f32 = (0..12).map(|_| uniform()).sum();
        (((sum - 6.0) * 0.02).to_bits() >> 16) as u16
    };
    (0..count).map(one).collect()
}

fn encode(row: &[u16]) -> (Vec<u8>, Vec<u8>) {
    let bytes: Vec<u8> = row.iter().flat_map(|n| n.to_le_bytes()).collect();
    let (mut numbers, mut scales) = (vec![9; numbers_bytes(row.len())], vec![9; scales_bytes(row.len())]);
    encode_row(&bytes, &mut numbers, &mut scales);
    (numbers, scales)
}

/// In plain order, with what is behind the last column.
fn decode(numbers: &[u8], scales: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; numbers.len()];
    for (i, out) in out.iter_mut().enumerate() {
        let at = i / BLOCK * BLOCK + i % BLOCK / 2 + i % 2 * (BLOCK / 2);
        let s = i / SCALE_COLUMNS * 2;
        let scale = bf16_to_f32(u16::from_le_bytes([scales[s], scales[s + 1]]));
        *out = f32::from(numbers[at] as i8) * scale;
    }
    out
}

#[test]
fn every_number_is_within_half_a_step_of_its_block() {
    for columns in [1, 2, 31, 33, 64, 65, 95, 2880, 2881] {
        let row = gaussian(columns as u32, columns);
        let (numbers, scales) = encode(&row);
        let decoded = decode(&numbers, &scales);
        for (i, (bits, got)) in row.iter().zip(&decoded).enumerate() {
            let block = &row[i / SCALE_COLUMNS * SCALE_COLUMNS..];
            let block = &block[..block.len().min(SCALE_COLUMNS)];
            let largest = block.iter().map(|b| bf16_to_f32(*b).abs()).fold(0.0, f32::max);
            // A scale is rounded up by at most 2^-7 of itself, and products are rounded once.
            let bound = largest / 127.0 * (0.5 + 1.0 / 256.0) * 1.001;
            let exact = bf16_to_f32(*bits);
            assert!((got - exact).abs() <= bound, "{columns} columns, {i}: {got}, not {exact} ± {bound}");
        }
        assert!(decoded[columns..].iter().all(|n| *n == 0.0), "{columns} columns: padding is not 0");
    }
}

/// The bound that the README states: the root of the mean square error is below 0.65 % of the weights'.
#[test]
fn gaussian_weights_are_off_by_less_than_the_bound() {
    let row = gaussian(1, 64 * 2880);
    let (numbers, scales) = encode(&row);
    let (mut error, mut size) = (0.0, 0.0);
    for (bits, got) in row.iter().zip(decode(&numbers, &scales)) {
        let exact = f64::from(bf16_to_f32(*bits));
        error += (f64::from(got) - exact).powi(2);
        size += exact.powi(2);
    }
    let relative = (error / size).sqrt();
    println!("relative error {relative:.5}");
    assert!((0.004..0.0065).contains(&relative), "{relative}");
}

#[test]
fn zeros_tiny_numbers_and_what_is_not_finite() {
    let (numbers, scales) = encode(&[0; 64]);
    assert!(decode(&numbers, &scales).iter().all(|n| n.to_bits() == 0));
    // Smallest subnormal and smallest normal: nothing to divide by, so 0.
    for tiny in [1, 0x80] {
        let (numbers, scales) = encode(&[tiny; 64]);
        assert!(decode(&numbers, &scales).iter().all(|n| *n == 0.0), "{tiny:#x}");
    }
    // Smallest that has a scale, and the largest number there is.
    for bits in [0x0480, 0x7f7f, 0xff7f] {
        let (numbers, scales) = encode(&[bits; 64]);
        for got in decode(&numbers, &scales) {
            let exact = bf16_to_f32(bits);
            assert!((got / exact - 1.0).abs() < 0.01, "{bits:#x}: {got}, not {exact}");
        }
    }
    // Infinity and what is no number make their block nothing, and no other.
    for bits in [0x7f80, 0xff80, 0x7fc0, 0xffff] {
        let mut row = [0x3f80; 128];
        row[70] = bits;
        let (numbers, scales) = encode(&row);
        let decoded = decode(&numbers, &scales);
        assert!(decoded[..64].iter().all(|n| (n - 1.0).abs() < 0.01), "{bits:#x}");
        assert!(decoded[64..].iter().all(|n| n.is_nan()), "{bits:#x}");
    }
}
