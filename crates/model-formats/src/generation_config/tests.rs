use super::*;

fn ends(json: &str) -> Result<Vec<u32>, ConfigError> {
    GenerationConfig::parse(json.as_bytes()).map(|c| c.end_tokens)
}

#[test]
fn one_id_a_list_or_none() {
    assert_eq!(ends(r#"{"eos_token_id": 7}"#).unwrap(), [7]);
    assert_eq!(ends(r#"{"eos_token_id": [200002, 199999, 200012]}"#).unwrap(), [200002, 199999, 200012]);
    assert_eq!(ends(r#"{"eos_token_id": [5, 5, 6]}"#).unwrap(), [5, 6]);
    assert_eq!(ends(r#"{"eos_token_id": null}"#).unwrap(), [0u32; 0]);
    assert_eq!(ends("{}").unwrap(), [0u32; 0]);
}

#[test]
fn what_is_no_token_id_names_the_field() {
    for value in ["-1", "1.5", "\"7\"", "[[1]]", "[1,\"2\"]", "4294967296", "{}"] {
        let text = ends(&format!("{{\"eos_token_id\":{value}}}")).unwrap_err().to_string();
        assert!(text.contains("generation_config.json") && text.contains("eos_token_id"), "{text}");
    }
}

#[test]
fn too_many_ids_are_refused() {
    let list: Vec<String> = (0..=END_TOKENS_MAX).map(|i| i.to_string()).collect();
    assert!(ends(&format!("{{\"eos_token_id\":[{}]}}", list.join(","))).is_err());
}

#[test]
fn what_is_no_object_is_refused() {
    for json in ["", "[]", "3", "{"] {
        assert!(ends(json).is_err(), "{json}");
    }
}
