use super::*;

fn parse(json: &str) -> Result<ShardIndex, IndexError> {
    ShardIndex::parse("i.json", json.as_bytes())
}

fn refuse(json: &str) -> String {
    let text = parse(json).unwrap_err().to_string();
    assert!(text.contains("i.json"), "does not name the file: {text}");
    text
}

#[test]
fn a_published_form_is_read() {
    let json = r#"{"metadata": {"total_size": 10}, "weight_map": {"b": "model-00001-of-00001.safetensors", "a": "model-00000-of-00001.safetensors", "c": "model-00000-of-00001.safetensors"}}"#;
    let index = parse(json).unwrap();
    assert_eq!(index.total_size, Some(10));
    let shards: Vec<&str> = index.shards().into_iter().collect();
    assert_eq!(shards, ["model-00000-of-00001.safetensors", "model-00001-of-00001.safetensors"]);
}

#[test]
fn odd_total_sizes_are_no_reason_to_refuse() {
    for metadata in ["{\"total_size\": 1e3}", "{}", "null", "{\"total_size\": \"x\"}", "[]"] {
        let json = format!(r#"{{"metadata": {metadata}, "weight_map": {{"a": "a.safetensors"}}}}"#);
        assert_eq!(parse(&json).unwrap().total_size, None, "{metadata}");
    }
}

#[test]
fn an_index_without_a_weight_map_is_refused() {
    assert!(refuse("{}").contains("weight_map is missing"));
    assert!(refuse(r#"{"weight_map":{}}"#).contains("empty"));
    assert!(refuse(r#"{"weight_map":[]}"#).contains("not an object"));
}

#[test]
fn what_is_no_json_is_refused() {
    for json in ["", "[]", "{", "{} {}", "7"] {
        refuse(json);
    }
    assert!(matches!(ShardIndex::parse("i", b"{\"\xff\":1}"), Err(IndexError::NotUtf8 { .. })));
}

#[test]
fn deep_nesting_is_refused_without_a_stack_overflow() {
    refuse(&format!("{{\"weight_map\":{}", "{\"a\":".repeat(500_000)));
}

#[test]
fn shard_names_that_leave_the_folder_are_refused() {
    for shard in [
        "../x.safetensors",
        "/x.safetensors",
        "a/../../x.safetensors",
        "c:x.safetensors",
        "a\\\\b.safetensors",
    ] {
        let error = parse(&format!(r#"{{"weight_map":{{"t":"{shard}"}}}}"#)).unwrap_err();
        assert!(matches!(error, IndexError::ShardName { .. }), "{shard}: {error}");
    }
}

#[test]
fn an_index_that_names_itself_is_refused() {
    let text = refuse(r#"{"weight_map":{"t":"model.safetensors.index.json"}}"#);
    assert!(text.contains("tensor t") && text.contains("model.safetensors.index.json"), "{text}");
}

#[test]
fn shards_of_other_kinds_name_the_tensor() {
    for shard in ["\"pytorch_model.bin\"", "\"\"", "1", "null", "[\"a.safetensors\"]"] {
        let text = refuse(&format!(r#"{{"weight_map":{{"some.tensor":{shard}}}}}"#));
        assert!(text.contains("some.tensor"), "{text}");
    }
}

#[test]
fn a_tensor_that_is_there_twice_is_refused() {
    let error = parse(r#"{"weight_map":{"t":"a.safetensors","t":"b.safetensors"}}"#).unwrap_err();
    let IndexError::WeightMap { source, .. } = error else { panic!("{error}") };
    assert!(source.to_string().contains("`t`"), "{source}");
}

#[test]
fn shards_that_differ_only_in_case_are_refused() {
    let error = parse(r#"{"weight_map":{"t":"a.safetensors","u":"A.safetensors"}}"#).unwrap_err();
    assert!(matches!(error, IndexError::ShardName { source: FileNameError::CaseCollision { .. }, .. }));
}

#[test]
fn too_many_shards_are_refused() {
    let entries: Vec<String> = (0..=SHARDS_MAX).map(|i| format!(r#""t{i}":"s{i}.safetensors""#)).collect();
    let json = format!(r#"{{"weight_map":{{{}}}}}"#, entries.join(","));
    assert!(refuse(&json).contains("10001 shards"));
}

#[test]
fn odd_tensor_names_are_refused() {
    for name in ["", "a\\nb", &"n".repeat(safetensors::TENSOR_NAME_BYTES_MAX + 1)] {
        refuse(&format!(r#"{{"weight_map":{{"{name}":"a.safetensors"}}}}"#));
    }
}

#[test]
fn a_missing_shard_is_named_with_a_tensor_of_it() {
    let index = parse(r#"{"weight_map":{"t":"a.safetensors","u":"b.safetensors"}}"#).unwrap();
    index.check_files("i.json", |_| true).unwrap();
    let text = index.check_files("i.json", |f| f == "a.safetensors").unwrap_err().to_string();
    assert_eq!(text, "i.json: shard b.safetensors, which tensor u is in, is missing");
}
