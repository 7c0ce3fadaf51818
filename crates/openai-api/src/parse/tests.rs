use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the errors are looked at")]
struct Outer {
    size: u32,
    #[serde(default)]
    items: Vec<Inner>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the errors are looked at")]
struct Inner {
    name: String,
}

fn check(body: &str, code: &str, param: Option<&str>, in_message: &str) {
    let error = parse::<Outer>(body.as_bytes()).unwrap_err();
    assert_eq!(error.code, code, "{body}: {error:?}");
    assert_eq!(error.param.as_deref(), param, "{body}: {error:?}");
    assert!(error.message.contains(in_message), "{body}: {error:?}");
}

#[test]
fn errors_name_the_field_or_the_place() {
    check("", "invalid_json", None, "empty");
    check("{", "invalid_json", None, "line 1 column 1");
    check("{\"size\": 1,\n oops}", "invalid_json", None, "line 2 column 2");
    check("{\"size\": 1} x", "invalid_json", None, "line 1 column 13");
    check("[]", "invalid_value", None, "a JSON object is expected");
    check("null", "invalid_value", None, "expected an object");
    check(r#"{"size": 1, "sise": 2}"#, "unknown_parameter", Some("sise"), "`sise` is not a field");
    check(r#"{}"#, "missing_required_parameter", Some("size"), "`size` is required");
    check(r#"{"size": 1, "size": 1}"#, "invalid_value", Some("size"), "given twice");
    check(r#"{"size": "1"}"#, "invalid_value", Some("size"), "expected an integer of 0 or more");
    check(r#"{"size": -1}"#, "invalid_value", Some("size"), "-1");
    check(
        r#"{"size": 1, "items": [{"name": 7}]}"#,
        "invalid_value",
        Some("items[0].name"),
        "expected a string",
    );
    check(
        r#"{"size": 1, "items": [{}]}"#,
        "missing_required_parameter",
        Some("items[0].name"),
        "is required",
    );
    let unknown = r#"{"size": 1, "items": [{"name": "a", "nome": 1}]}"#;
    check(unknown, "unknown_parameter", Some("items[0].nome"), "`items[0].nome`");
}

#[test]
fn a_list_in_the_order_of_the_fields_is_no_request() {
    check("[1, []]", "invalid_value", None, "a JSON object is expected");
    check(" \n[1]", "invalid_value", None, "a JSON object is expected");
}

#[test]
fn deep_nesting_is_refused_not_overflowed() {
    let body = format!("{{\"size\": 1, \"items\": {}", "[".repeat(1 << 20));
    assert!(parse::<Outer>(body.as_bytes()).is_err());
    let error = parse::<serde_json::Value>("{\"a\":".repeat(1 << 20).as_bytes()).unwrap_err();
    assert_eq!(error.code, "invalid_json");
    assert!(error.message.contains("recursion"), "{error:?}");
}

#[test]
fn bytes_that_are_no_utf8_are_refused() {
    let error = parse::<Outer>(b"{\"size\": 1, \"items\": [{\"name\": \"\xff\"}]}").unwrap_err();
    assert!(error.message.contains("column"), "{error:?}");
}
