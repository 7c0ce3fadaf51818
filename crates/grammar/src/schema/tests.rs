use super::*;

/// `Some(words)`: refused, with each of them in the message.
fn check_is(schema: &str, refused: Option<&[&str]>) {
    match (check(schema), refused) {
        (Ok(()), None) => {}
        (Err(error), Some(words)) => {
            let message = error.to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{schema}: {message}");
            assert!(!message.contains('\n'), "one line: {message}");
        }
        (result, expected) => panic!("{schema}: {result:?}, expected {expected:?}"),
    }
}

#[test]
fn what_schemas_say_about_shape_is_kept_to() {
    check_is(r#"{"type": "object"}"#, None);
    check_is(
        r##"{"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}"##,
        None,
    );
    check_is(r#"{"anyOf": [{"type": "null"}, {"enum": ["a", 1]}], "description": "x"}"#, None);
}

#[test]
fn a_keyword_that_cannot_be_kept_to_is_named() {
    check_is(r#"{"type": "array", "uniqueItems": true}"#, Some(&["uniqueItems"]));
    check_is(r#"{"not": {"type": "string"}}"#, Some(&["not"]));
    check_is(r#"{"x-guidance": {"lenient": true}, "not": {}}"#, Some(&["x-guidance"]));
}

#[test]
fn what_is_no_schema_is_refused() {
    check_is("{", Some(&["no JSON"]));
    check_is("true", Some(&["no JSON object"]));
    check_is(r#"{"type": "strin"}"#, Some(&["strin"]));
    check_is(r#"{"type": "integer", "minimum": 3, "maximum": 2}"#, Some(&["nsatisfiable"]));
    check_is(r##"{"$ref": "#/$defs/none"}"##, Some(&["none"]));
    check_is(r#"{"$ref": "https://example.com/schema.json"}"#, Some(&["example.com"]));
}

#[test]
fn a_long_schema_is_refused_before_it_is_read() {
    check_is(&" ".repeat(SCHEMA_BYTES_MAX + 1), Some(&["65537 bytes", "65536"]));
}

#[test]
fn a_schema_that_asks_for_much_has_a_result_all_the_same() {
    let many: Vec<String> = (0..3_000).map(|n| format!(r#""property {n}":{{}}"#)).collect();
    for schema in [
        format!(r#"{{"type": "string", "pattern": "^({}x){{200}}$"}}"#, "(a|b)*".repeat(300)),
        r#"{"type": "array", "items": {"enum": [1, 2]}, "minItems": 300000}"#.to_owned(),
        format!(r#"{{"type": "object", "properties": {{{}}}}}"#, many.join(",")),
    ] {
        if let Err(error) = check(&schema) {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
        }
    }
}

#[test]
fn a_character_in_the_middle_of_what_a_message_quotes_is_no_panic() {
    let name = "\u{e9}".repeat(300);
    check_is(&format!(r#"{{"type": 7, "title": "{name}"}}"#), Some(&[]));
    check_is(&format!(r#"{{"type": "object", "properties": "{name}a"}}"#), Some(&[]));
}
