use proptest::prelude::*;

use super::*;

fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
    Header::parse("a.safetensors", bytes, bytes.len() as u64)
}

fn refuse(json: &str, data: usize) -> String {
    let error = parse(&file(json, data)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("a.safetensors"), "does not name the file: {text}");
    text
}

#[test]
fn a_plain_file_is_read() {
    let json = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}   "#;
    let header = parse(&file(json, 7)).unwrap();
    let start = 8 + json.len() as u64;
    assert_eq!(header.metadata, [("format".to_owned(), "pt".to_owned())]);
    assert_eq!(
        header.tensors["a"],
        Tensor { dtype: Dtype::BF16, shape: vec![2, 1], range: start..start + 4 }
    );
    assert_eq!(header.tensors["b"].range, start + 4..start + 7);
}

#[test]
fn a_file_without_tensors_and_empty_tensors_are_read() {
    assert!(parse(&file("{}", 0)).unwrap().tensors.is_empty());
    let json = r#"{"a":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    assert_eq!(parse(&file(json, 4)).unwrap().tensors["b"].byte_len(), 4);
}

#[test]
fn what_write_head_writes_is_read_back() {
    let mut bytes = write_head([("x\"y", Dtype::BF16, &[2u64, 3][..], 12), ("z", Dtype::U8, &[5][..], 5)]);
    assert!(bytes.len().is_multiple_of(8));
    bytes.resize(bytes.len() + 17, 1);
    let header = parse(&bytes).unwrap();
    assert_eq!(header.tensors["x\"y"].shape, [2, 3]);
    assert_eq!(header.tensors["z"].byte_len(), 5);
}

#[test]
fn an_empty_or_tiny_file_is_too_short() {
    for n in 0..8 {
        assert!(matches!(parse(&vec![0; n]), Err(HeaderError::TooShort { .. })), "{n}");
    }
}

#[test]
fn a_huge_header_is_refused_before_it_is_read() {
    let mut bytes = u64::MAX.to_le_bytes().to_vec();
    assert!(matches!(parse(&bytes), Err(HeaderError::HeaderTooLarge { .. })));
    bytes[..8].copy_from_slice(&(HEADER_BYTES_MAX + 1).to_le_bytes());
    assert!(matches!(
        Header::parse("a", &bytes, u64::MAX),
        Err(HeaderError::HeaderTooLarge { header, .. }) if header == HEADER_BYTES_MAX + 1
    ));
}

#[test]
fn a_header_longer_than_the_file_is_truncated() {
    let mut bytes = file("{}", 0);
    bytes[0] = 3;
    assert!(matches!(parse(&bytes), Err(HeaderError::HeaderTruncated { header: 3, file_bytes: 10, .. })));
}

#[test]
fn a_head_that_was_read_too_short_is_an_error_and_no_panic() {
    let bytes = file("{}", 100);
    assert!(matches!(
        Header::parse("a", &bytes[..9], bytes.len() as u64),
        Err(HeaderError::HeaderTruncated { .. })
    ));
}

#[test]
fn a_header_that_is_not_utf8_is_refused() {
    let mut bytes = file("{\"a\":1}", 0);
    bytes[10] = 0xff;
    assert!(matches!(parse(&bytes), Err(HeaderError::NotUtf8 { .. })));
}

#[test]
fn headers_that_are_no_json_object_are_refused() {
    for json in ["", "[]", "1", "null", "{", "{} x", "{}{}", "{\"a\":}"] {
        assert!(matches!(parse(&file(json, 0)), Err(HeaderError::NotJson { .. })), "{json}");
    }
}

#[test]
fn deep_nesting_is_refused_without_a_stack_overflow() {
    let json = format!("{{\"a\":{}", "[".repeat(1_000_000));
    assert!(matches!(
        parse(&file(&json, 0)),
        Err(HeaderError::NotJson { .. } | HeaderError::TensorEntry { .. })
    ));
    let json = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(&file(&json, 0)).is_err());
}

#[test]
fn a_tensor_that_is_there_twice_is_refused() {
    let json = r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let error = parse(&file(json, 1)).unwrap_err();
    let HeaderError::NotJson { source, .. } = error else { panic!("{error}") };
    assert!(source.to_string().contains("`w`"), "{source}");
}

#[test]
fn odd_tensor_names_are_refused() {
    for name in ["", "a\\u0000b", &"n".repeat(TENSOR_NAME_BYTES_MAX + 1)] {
        let json = format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        assert!(matches!(parse(&file(&json, 1)), Err(HeaderError::TensorName { .. })), "{name}");
    }
}

#[test]
fn entries_of_wrong_form_name_the_tensor() {
    for entry in [
        "1",
        "{}",
        r#"{"dtype":"BF17","shape":[1],"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","shape":1,"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","shape":[1],"data_offsets":[0]}"#,
        r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}"#,
        r#"{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}"#,
    ] {
        let text = refuse(&format!("{{\"some.weight\":{entry}}}"), 1);
        assert!(text.contains("some.weight"), "{text}");
    }
}

#[test]
fn a_wrong_dtype_for_the_size_names_both_sizes() {
    let text = refuse(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4);
    assert_eq!(text, "a.safetensors: tensor w: F32 [2] needs 8 bytes, its offsets 0..4 give 4");
}

#[test]
fn half_bytes_are_refused() {
    let text = refuse(r#"{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#, 2);
    assert!(text.contains("tensor w"), "{text}");
    parse(&file(r#"{"w":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}"#, 2)).unwrap();
}

#[test]
fn shapes_whose_product_overflows_are_refused() {
    let text = refuse(r#"{"w":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, 0);
    assert!(text.contains("tensor w") && text.contains("more bytes than a file"), "{text}");
    let text = refuse(r#"{"w":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}}"#, 0);
    assert!(text.contains("more bytes"), "{text}");
}

#[test]
fn too_many_dimensions_are_refused() {
    let text = refuse(r#"{"w":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#, 1);
    assert!(text.contains("9 dimensions"), "{text}");
}

#[test]
fn offsets_that_run_backwards_are_refused() {
    let text = refuse(r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}}"#, 2);
    assert!(text.contains("2..1 run backwards"), "{text}");
}

#[test]
fn offsets_near_the_end_of_u64_do_not_wrap() {
    let max = u64::MAX;
    let json = format!(r#"{{"w":{{"dtype":"U8","shape":[1],"data_offsets":[{},{max}]}}}}"#, max - 1);
    refuse(&json, 1);
}

#[test]
fn tensors_that_overlap_are_both_named() {
    let json = r#"{"one":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"two":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    let text = refuse(json, 6);
    assert!(text.contains("tensor two") && text.contains("overlap tensor one"), "{text}");
}

#[test]
fn two_tensors_on_the_same_bytes_overlap() {
    let json = r#"{"one":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"two":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    assert!(refuse(json, 4).contains("overlap"));
}

#[test]
fn holes_between_tensors_are_refused() {
    let json = r#"{"one":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"two":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#;
    assert!(refuse(json, 3).contains("bytes 1..2 before it belong to no tensor"));
}

#[test]
fn a_truncated_shard_names_the_tensor_that_is_cut() {
    let text = refuse(r#"{"w":{"dtype":"U8","shape":[10],"data_offsets":[0,10]}}"#, 9);
    assert!(text.contains("tensor w") && text.contains("truncated"), "{text}");
}

#[test]
fn bytes_behind_the_last_tensor_are_refused() {
    assert!(
        refuse(r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 3).contains("2 bytes at the end")
    );
}

#[test]
fn metadata_that_is_not_strings_is_refused() {
    for value in ["1", "{\"a\":1}", "[]", "{\"a\":\"1\",\"a\":\"2\"}"] {
        assert!(refuse(&format!("{{\"__metadata__\":{value}}}"), 0).contains("__metadata__"));
    }
}

proptest! {
    /// Whatever the bytes are, parsing answers; what passes lies inside the file.
    #[test]
    fn any_bytes_give_an_answer(json in "\\PC{0,200}", data in 0usize..64) {
        let _ = parse(&file(&json, data));
    }

    #[test]
    fn a_flipped_byte_never_yields_ranges_outside_the_file(at in 0usize..150, value: u8) {
        let json = r#"{"one":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"two":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}}"#;
        let mut bytes = file(json, 8);
        let at = at % bytes.len();
        bytes[at] = value;
        if let Ok(header) = parse(&bytes) {
            for tensor in header.tensors.values() {
                prop_assert!(tensor.range.start <= tensor.range.end);
                prop_assert!(tensor.range.end <= bytes.len() as u64);
            }
        }
    }
}
