use super::*;

#[test]
fn the_published_test_vector_decodes() {
    let mut bytes = [0u8; 16];
    bytes[0] = 0x21;
    bytes[3] = 0xF8;
    let values = decode_block(&bytes, 122);
    assert_eq!(values[..2], [0.015625, 0.03125]);
    assert_eq!(values[6].to_bits(), (-0.0f32).to_bits());
    assert_eq!(values[7], -0.1875);
}

#[test]
fn every_scale_is_its_power_of_two() {
    for s in 0..=254u8 {
        assert_eq!(f64::from(scale_value(s)), 2f64.powi(i32::from(s) - 127), "{s}");
    }
    assert!(scale_value(255).is_nan());
}

#[test]
fn every_code_in_every_place() {
    for code in 0..16u8 {
        let even = decode_block(&[code; 16], 128);
        let odd = decode_block(&[code << 4; 16], 128);
        for j in 0..16 {
            assert_eq!(even[2 * j], 2.0 * VALUES[usize::from(code)]);
            assert_eq!(even[2 * j + 1], 0.0);
            assert_eq!(odd[2 * j + 1], 2.0 * VALUES[usize::from(code)]);
        }
    }
}

#[test]
fn rows_are_blocks_one_after_another() {
    let blocks: Vec<u8> = (0..48).collect();
    let mut out = vec![9.0; 96];
    decode_row(&blocks, &[127, 128, 0], &mut out);
    assert_eq!(out[0..2], [0.0, 0.0]);
    assert_eq!(out[32..34], [0.0, 1.0]);
    assert_eq!(out[95], 1.0 * scale_value(0));
}

#[test]
#[should_panic(expected = "different rows")]
fn lengths_that_do_not_belong_together_are_our_mistake() {
    decode_row(&[0; 16], &[1, 2], &mut [0.0; 64]);
}

#[test]
fn bf16_is_the_upper_half_of_f32() {
    assert_eq!(bf16_to_f32(0x3F80), 1.0);
    assert_eq!(bf16_to_f32(0xC0E0), -7.0);
}
