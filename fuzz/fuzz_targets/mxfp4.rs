//! Any bytes as an MXFP4 row: the numbers are those of the table, scaled.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_formats::mxfp4::{BLOCK, BLOCK_BYTES, VALUES, decode_row, scale_value};

fuzz_target!(|data: &[u8]| {
    let count = data.len() / (BLOCK_BYTES + 1);
    let (scales, rest) = data.split_at(count);
    let blocks = &rest[..count * BLOCK_BYTES];
    let mut out = vec![0.0; count * BLOCK];
    decode_row(blocks, scales, &mut out);
    for (i, value) in out.iter().enumerate() {
        let byte = blocks[i / 2];
        let code = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
        let expected = VALUES[usize::from(code)] * scale_value(scales[i / BLOCK]);
        assert!(value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan()));
    }
});
