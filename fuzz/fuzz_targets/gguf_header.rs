//! Any bytes as the head of a GGUF file: an answer, the same one for more of the same file, and arrays that lie inside it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_formats::gguf::{GgufError, GgufModel, Metadata, Value};

fuzz_target!(|data: &[u8]| {
    // As given, and behind what every file begins with, so that the rest is reached.
    check(data);
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend_from_slice(data);
    check(&file);
});

fn check(file: &[u8]) {
    let bytes = file.len() as u64;
    let whole = Metadata::parse("file", file, bytes);
    // Of a file that is whole nothing more can come.
    assert!(!matches!(whole, Err(GgufError::Incomplete { .. })));
    // Half of it says the same as far as it goes, or asks for more.
    match (Metadata::parse("file", &file[..file.len() / 2], bytes), &whole) {
        // As text: a number may be NaN, which equals nothing.
        (Ok(half), Ok(whole)) => assert_eq!(format!("{half:?}"), format!("{whole:?}")),
        (Ok(_), Err(error)) => panic!("half a file is better than the whole: {error}"),
        (Err(_), _) => {}
    }
    let Ok(metadata) = whole else { return };
    for value in metadata.values.values() {
        if let Value::Array(array) = value {
            assert!(array.len() <= bytes);
            assert!(array.integers().len() as u64 <= array.len());
            assert!(array.texts().count() as u64 <= array.len());
            assert!(array.text(array.len()).is_none());
        }
    }
    let _ = GgufModel::of("file", &metadata);
}
