//! Any bytes as a safetensors file: an answer, and tensors that lie inside the file without overlap.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_formats::Header;

fuzz_target!(|data: &[u8]| {
    // Whole inputs as a file, and the same bytes as the JSON of a file whose length fits.
    check(data);
    let mut file = (data.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(data);
    check(&file);
    file.resize(file.len() + 64, 0);
    check(&file);
});

fn check(file: &[u8]) {
    let Ok(header) = Header::parse("file", file, file.len() as u64) else { return };
    let mut ranges: Vec<_> = header.tensors.values().map(|t| t.range.clone()).collect();
    ranges.sort_by_key(|r| (r.start, r.end));
    for range in &ranges {
        assert!(range.start <= range.end && range.end <= file.len() as u64);
    }
    for pair in ranges.windows(2) {
        assert!(pair[0].end <= pair[1].start);
    }
}
