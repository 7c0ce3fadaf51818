use super::*;

/// Value of a code, as the format's table has it.
const CODES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn value(code: u8, scale: u8) -> f32 {
    let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
    sign * CODES[usize::from(code & 7)] * 2f32.powi(i32::from(scale) - 127)
}

#[test]
fn mxfp4_blocks_have_the_same_numbers_in_the_other_order() {
    let codes: Vec<u8> = (0..4 * 16).map(|n| (n * 37 + 11) as u8).collect();
    let scales = [120, 121, 122, 123];
    // Two rows of two blocks: the odd one is blocks 2 and 3.
    let out = blocks::mxfp4(&codes, &scales, 2, Take::Odd);
    assert_eq!(out.len(), 2 * MXFP4_BLOCK_BYTES);
    for (n, block) in out.as_chunks::<MXFP4_BLOCK_BYTES>().0.iter().enumerate() {
        let published: &[u8; 16] = codes[(2 + n) * 16..][..16].try_into().unwrap();
        let expected = model_formats::mxfp4::decode_block(published, scales[2 + n]);
        for (element, expected) in expected.iter().enumerate() {
            let code = block[1 + element % 16] >> (element / 16 * 4) & 15;
            assert_eq!(value(code, block[0]), *expected, "block {n}, element {element}");
        }
    }
    let both = [Take::Even, Take::Odd].map(|take| blocks::mxfp4(&codes, &scales, 2, take)).concat();
    assert_eq!(both, blocks::mxfp4(&codes, &scales, 2, Take::All));
}

#[test]
fn q8_0_is_half_a_step_away_at_most() {
    let bits = (0..64u16).map(|n| (0x3c00 + n * 37) | (n % 3) << 15);
    let bytes: Vec<u8> = bits.flat_map(u16::to_le_bytes).collect();
    let out = blocks::q8_0(&bytes);
    let wanted: Vec<f32> = numbers(&bytes).collect();
    for (block, wanted) in out.as_chunks::<Q8_0_BLOCK_BYTES>().0.iter().zip(wanted.chunks(BLOCK)) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (byte, wanted) in block[2..].iter().zip(wanted) {
            let got = f32::from(*byte as i8) * scale;
            // Half a step, and what the half float of the scale is off, 2^-11 of 127 steps.
            assert!((got - wanted).abs() <= scale * (0.5 + 127.0 / 2048.0), "{got} for {wanted}");
        }
    }
    assert_eq!(blocks::q8_0(&[0; 64]), [0; 34]);
}

#[test]
fn the_file_has_what_its_head_promises() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nano.gguf");
    let config = GptOssConfig::parse(Shape::Nano.config().to_string().as_bytes()).unwrap();
    for dense in [Dense::Bf16, Dense::Q8_0] {
        write_gguf(Shape::Nano, 1, dense, &path, |_, _| {}).unwrap();
        let planned = plan(&config, dense);
        let vocabulary = Vocabulary::of_shape(Shape::Nano, config.vocabulary);
        let head = Head::new(&vocabulary, &config, dense, &planned).bytes;
        let file = std::fs::read(&path).unwrap();
        let tensors: u64 = planned.iter().map(|t| t.bytes().next_multiple_of(ALIGNMENT)).sum();
        assert_eq!(file.len() as u64, head.len() as u64 + tensors);
        assert!(file.starts_with(b"GGUF\x03\0\0\0"), "{dense:?}");
    }
}

#[test]
fn the_20b_plan_has_the_size_of_llama_cpp_own() {
    let config = GptOssConfig::parse(Shape::B20.config().to_string().as_bytes()).unwrap();
    let bytes = |dense| plan(&config, dense).iter().map(Planned::bytes).sum::<u64>();
    let two_wide = 2 * 201_088 * 2880 + 24 * 2880 * 2 * (4096 + 512);
    assert_eq!(bytes(Dense::Bf16) - bytes(Dense::Q8_0), two_wide * 2 - two_wide / 32 * 34);
}
