//! What templates see of the API's messages.

use serde_json::json;
use time::macros::datetime;

use super::*;

fn prepared(architecture: &str, messages: Json) -> Result<Vec<Json>, RenderError> {
    let request = RenderRequest {
        messages: messages.as_array().unwrap().clone(),
        tools: Vec::new(),
        documents: None,
        add_generation_prompt: true,
        kwargs: Map::new(),
        now: datetime!(2025-01-01 0:00),
    };
    prepare(&request, architecture).map(|p| p.messages)
}

fn check(architecture: &str, messages: Json, expected: Json) {
    assert_eq!(Json::Array(prepared(architecture, messages).unwrap()), expected);
}

fn call(id: &str, name: &str, arguments: Json) -> Json {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn parts_of_a_content_are_joined() {
    check(
        "any",
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
        json!([{"role": "user", "content": "a\nb"}]),
    );
}

#[test]
fn a_part_that_is_no_text_is_refused_by_its_place() {
    let messages = json!([{"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}]);
    let error = prepared("any", messages).unwrap_err();
    assert!(
        matches!(&error, RenderError::Request { param, message }
            if param == "messages[0].content[1]" && message.contains("image_url")),
        "{error}"
    );
}

#[test]
fn absent_content_is_empty_and_a_refusal_is_content() {
    check(
        "any",
        json!([{"role": "assistant", "content": null}, {"role": "assistant", "refusal": "no"}, {"role": "user"}]),
        json!([
            {"role": "assistant", "content": ""},
            {"role": "assistant", "refusal": "no", "content": "no"},
            {"role": "user", "content": ""}
        ]),
    );
}

#[test]
fn reasoning_has_the_names_that_templates_look_for() {
    for key in REASONING_KEYS {
        let messages = prepared("any", json!([{"role": "assistant", "content": "a", key: "r"}])).unwrap();
        assert_eq!(messages[0]["thinking"], "r", "{key}");
        assert_eq!(messages[0]["reasoning_content"], "r", "{key}");
    }
}

#[test]
fn arguments_become_objects_unless_they_are_none() {
    let messages = prepared(
        "any",
        json!([{"role": "assistant", "tool_calls": [
            call("1", "f", json!("{\"b\": 1, \"a\": 2.0}")),
            call("2", "f", json!("[1]")),
            call("3", "f", json!("not json")),
            call("4", "f", json!({"x": 1}))]}]),
    )
    .unwrap();
    let arguments: Vec<String> =
        (0..4).map(|i| messages[0]["tool_calls"][i]["function"]["arguments"].to_string()).collect();
    assert_eq!(arguments, [r#"{"b":1,"a":2.0}"#, r#""[1]""#, r#""not json""#, r#"{"x":1}"#]);
}

#[test]
fn a_result_knows_the_name_of_its_tool() {
    let messages = prepared(
        "any",
        json!([
            {"role": "assistant", "tool_calls": [call("1", "f", json!("{}")), call("2", "g", json!("{}"))]},
            {"role": "tool", "tool_call_id": "2", "content": "x"},
            {"role": "tool", "tool_call_id": "1", "name": "own", "content": "y"},
            {"role": "tool", "tool_call_id": "9", "content": "z"}
        ]),
    )
    .unwrap();
    assert_eq!(messages[1]["name"], "g");
    assert_eq!(messages[2]["name"], "own");
    assert_eq!(messages[3].get("name"), None);
}

#[test]
fn empty_tool_calls_are_none() {
    for none in [json!([]), json!(null)] {
        let messages =
            prepared("any", json!([{"role": "assistant", "content": "a", "tool_calls": none}])).unwrap();
        assert_eq!(messages[0].get("tool_calls"), None);
    }
}

#[test]
fn a_message_that_has_the_form_already_is_not_changed() {
    let messages = json!([
        {"role": "system", "content": "s"}, {"role": "user", "name": "Anna", "content": "u"},
        {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}
    ]);
    check("any", messages.clone(), messages.clone());
    check("gpt_oss", messages.clone(), messages);
}

#[test]
fn harmony_gets_one_message_of_instructions() {
    check(
        "gpt_oss",
        json!([
            {"role": "system", "content": "s"}, {"role": "developer", "content": "d"},
            {"role": "user", "content": "u"}, {"role": "system", "content": "late"}
        ]),
        json!([{"role": "system", "content": "s\n\nd\n\nlate"}, {"role": "user", "content": "u"}]),
    );
    check(
        "gpt_oss",
        json!([{"role": "user", "content": "u"}, {"role": "developer", "content": "d"}]),
        json!([{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]),
    );
}

#[test]
fn harmony_gets_parallel_calls_one_after_the_other() {
    check(
        "gpt_oss",
        json!([
            {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [
                call("1", "f", json!("{}")), call("2", "g", json!("{}"))]},
            {"role": "tool", "tool_call_id": "2", "content": "two"},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "user", "content": "u"}
        ]),
        json!([
            {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [call("1", "f", json!({}))],
                "thinking": "r", "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "1", "content": "one", "name": "f"},
            {"role": "assistant", "content": "", "tool_calls": [call("2", "g", json!({}))]},
            {"role": "tool", "tool_call_id": "2", "content": "two", "name": "g"},
            {"role": "user", "content": "u"}
        ]),
    );
}

#[test]
fn harmony_has_content_beside_a_call_as_reasoning() {
    let messages = prepared(
        "gpt_oss",
        json!([{"role": "assistant", "content": "c", "reasoning": "r", "tool_calls": [call("1", "f", json!("{}"))]}]),
    )
    .unwrap();
    assert_eq!(messages[0]["thinking"], "r\nc");
    assert_eq!(messages[0]["content"], "");
}

#[test]
fn broken_messages_are_refused_by_their_place() {
    for (messages, place) in [
        (json!([3]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "x"}, {"role": "owner", "content": "x"}]), "messages[1].role"),
        (json!([{"role": "user", "content": 3}]), "messages[0].content"),
        (json!([{"role": "user", "content": [3]}]), "messages[0].content[0]"),
    ] {
        let error = prepared("any", messages).unwrap_err();
        assert!(matches!(&error, RenderError::Request { param, .. } if param == place), "{error}");
    }
}

#[test]
fn a_response_format_is_a_section_of_the_instructions() {
    let schema = json!({"type": "object"});
    assert_eq!(
        response_format_instructions("gpt_oss", "city", Some("A city"), &schema).as_deref(),
        Some("# Response Formats\n\n## city\n\n// A city\n{\"type\":\"object\"}")
    );
    assert_eq!(response_format_instructions("llama", "city", None, &schema), None);
}
