//! What counts as a control token, and what is refused.

use super::*;

#[test]
fn special_added_tokens_are_control_tokens_and_bracketed_ones_markers() {
    let json = br#"{"added_tokens": [
        {"id": 1, "content": "<s>", "special": true},
        {"id": 2, "content": "<think>", "special": false},
        {"id": 3, "content": "<s>", "special": true},
        {"id": 4, "content": "", "special": true},
        {"id": 5, "content": "[INST]", "special": true},
        {"id": 6, "content": "   ", "special": false}
    ], "model": {"vocab": {"a": 0}}}"#;
    let tokens = ControlTokens::from_tokenizer_json(json).unwrap();
    assert_eq!(tokens.spellings(), ["<s>", "[INST]"]);
    assert_eq!(tokens.markers(), ["<think>"]);
}

#[test]
fn a_tokenizer_without_added_tokens_has_no_control_tokens() {
    assert_eq!(ControlTokens::from_tokenizer_json(b"{}").unwrap().spellings(), [""; 0]);
}

#[test]
fn what_is_not_a_tokenizer_is_an_error() {
    assert!(matches!(ControlTokens::from_tokenizer_json(b"[1"), Err(ControlTokensError::Json(_))));
    assert!(matches!(
        ControlTokens::from_tokenizer_json(b"{\"added_tokens\": 3}"),
        Err(ControlTokensError::Json(_))
    ));
}

#[test]
fn a_spelling_of_a_megabyte_is_refused() {
    let json = format!(
        r#"{{"added_tokens": [{{"id": 9, "content": "{}", "special": true}}]}}"#,
        "x".repeat(1 << 20)
    );
    let error = ControlTokens::from_tokenizer_json(json.as_bytes()).unwrap_err();
    assert!(matches!(error, ControlTokensError::LongSpelling { id: 9, .. }), "{error}");
}

#[test]
fn a_million_control_tokens_are_refused() {
    let items: Vec<String> =
        (0..100_000).map(|i| format!(r#"{{"id": {i}, "content": "<{i}>", "special": true}}"#)).collect();
    let json = format!(r#"{{"added_tokens": [{}]}}"#, items.join(","));
    let error = ControlTokens::from_tokenizer_json(json.as_bytes()).unwrap_err();
    assert!(matches!(error, ControlTokensError::TooMany { count: 100_000, .. }), "{error}");
}

#[test]
fn the_longest_of_several_spellings_is_found() {
    let finder = Finder::new(["<|a|>", "<|a|><|b|>", "é|"]);
    let found: Vec<_> = finder.find_all("x<|a|><|b|>é|<|a|>").collect();
    assert_eq!(found, [(1, "<|a|><|b|>"), (11, "é|"), (14, "<|a|>")]);
}
