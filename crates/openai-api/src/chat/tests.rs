use serde_json::{Value, json};

use super::*;
use crate::InvalidRequest;
use crate::stream_options::Delivery;

fn read(body: &Value) -> Result<ChatParameters, InvalidRequest> {
    crate::parse::<ChatRequest>(body.to_string().as_bytes())?.checked()
}

/// A request that is fine, with `change` laid over it.
fn with(change: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in change.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn refused(change: Value, param: &str) {
    let error = read(&with(change.clone())).expect_err(&change.to_string());
    assert_eq!(error.param.as_deref(), Some(param), "{change}: {error:?}");
    let leaf = param.rsplit('.').next().unwrap().split('[').next().unwrap();
    assert!(error.message.contains(leaf) || error.message.contains("stop string"), "{change}: {error:?}");
}

fn accepted(change: Value) -> ChatParameters {
    read(&with(change.clone())).unwrap_or_else(|e| panic!("{change}: {e:?}"))
}

#[test]
fn the_smallest_request_has_the_documented_defaults() {
    let p = accepted(json!({}));
    assert_eq!(p.choices, 1);
    assert_eq!(p.delivery, Delivery::Whole);
    assert_eq!(p.tool_use, ToolUse::None);
    assert!(p.parallel_tool_calls);
    assert_eq!((p.sampling.temperature, p.sampling.top_p, p.sampling.tokens_max), (1.0, 1.0, 0));
    assert_eq!(p.sampling.logprobs, None);
}

#[test]
fn null_is_absent_for_every_optional_field() {
    let schema = <ChatRequest as utoipa::PartialSchema>::schema();
    let schema = serde_json::to_value(schema).unwrap();
    let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names.into_iter().filter(|n| !["model", "messages"].contains(&n.as_str())) {
        accepted(json!({name: null}));
    }
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    refused(json!({"audio": {"voice": "a", "format": "wav"}}), "audio");
    refused(json!({"function_call": "auto"}), "function_call");
    refused(json!({"functions": []}), "functions");
    refused(json!({"prediction": {"type": "content", "content": "x"}}), "prediction");
    refused(json!({"web_search_options": {}}), "web_search_options");
    refused(json!({"store": true}), "store");
    refused(json!({"modalities": ["text", "audio"]}), "modalities[1]");
    refused(json!({"verbosity": "low"}), "verbosity");
    refused(json!({"service_tier": "flex"}), "service_tier");
    refused(json!({"prompt_cache_retention": "24h"}), "prompt_cache_retention");
    refused(json!({"response_format": {"type": "poem"}}), "response_format");
    refused(
        json!({"response_format": {"type": "json_object", "grammar": "root ::= x"}}),
        "response_format.grammar",
    );
    refused(
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
        "response_format.json_schema.schema",
    );
    let named = |name: &str| json!({"type": "json_schema", "json_schema": {"name": name, "schema": {}}});
    refused(json!({"response_format": named("a b")}), "response_format.json_schema.name");
    refused(json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema");
    refused(
        json!({"response_format": {"type": "json_object", "json_schema": {"name": "a"}}}),
        "response_format",
    );
    refused(json!({"response_format": {"type": "json_object"}, "min_tokens": 2}), "min_tokens");
    refused(json!({"response_format": named("a"), "ignore_eos": true}), "ignore_eos");
    refused(json!({"response_format": {"type": "text", "json_schema": {"name": "a"}}}), "response_format");
    refused(json!({"reasoning_effort": "minimal"}), "reasoning_effort");
    refused(
        json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
        "stream_options.include_obfuscation",
    );
    refused(json!({"guided_json": {}}), "guided_json");
    refused(json!({"stream": true, "stream_options": {"every": 1}}), "stream_options.every");
}

#[test]
fn harmless_labels_are_accepted() {
    accepted(json!({"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}}));
    accepted(json!({"store": false, "service_tier": "auto", "modalities": ["text"], "verbosity": "medium"}));
    accepted(json!({"response_format": {"type": "text"}, "prompt_cache_retention": "in-memory"}));
    assert!(accepted(json!({"service_tier": "default"})).service_tier_named);
    refused(json!({"metadata": {"a": 1}}), "metadata.a");
    refused(json!({"metadata": {"a": "x".repeat(513)}}), "metadata");
    refused(json!({"user": "x".repeat(513)}), "user");
}

#[test]
fn numbers_are_held_to_their_ranges() {
    for (name, low, high) in [
        ("temperature", json!(-0.1), json!(2.1)),
        ("top_p", json!(-0.1), json!(1.1)),
        ("min_p", json!(-0.1), json!(1.1)),
        ("presence_penalty", json!(-2.1), json!(2.1)),
        ("frequency_penalty", json!(-2.1), json!(2.1)),
        ("repetition_penalty", json!(0), json!(10.1)),
        ("n", json!(0), json!(17)),
        ("max_tokens", json!(0), json!(1 << 25)),
        ("max_completion_tokens", json!(-1), json!(1 << 25)),
        ("min_tokens", json!(-1), json!(1 << 25)),
        ("top_k", json!(-2), json!(1u64 << 32)),
    ] {
        refused(json!({name: low}), name);
        refused(json!({name: high}), name);
        refused(json!({name: "1"}), name);
    }
    refused(json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs");
    refused(json!({"top_logprobs": 2}), "top_logprobs");
    refused(json!({"logprobs": 1}), "logprobs");
    refused(json!({"seed": 1.5}), "seed");
    refused(json!({"logit_bias": {"7": 101}}), "logit_bias.7");
    refused(json!({"logit_bias": {"seven": 1}}), "logit_bias");
    refused(json!({"stop_token_ids": [-1]}), "stop_token_ids[0]");
    refused(json!({"max_tokens": 3, "max_completion_tokens": 4}), "max_tokens");
    refused(json!({"max_tokens": 3, "min_tokens": 4}), "min_tokens");
    refused(json!({"stream_options": {"include_usage": true}}), "stream_options");
    refused(json!({"model": ""}), "model");
}

#[test]
fn sampling_fields_reach_the_engine_form() {
    let s = accepted(json!({
        "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.25, "seed": -1, "presence_penalty": 1,
        "frequency_penalty": -1, "repetition_penalty": 1.5, "logit_bias": {"7": -100}, "max_completion_tokens": 9,
        "min_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true, "logprobs": true, "top_logprobs": 4,
    }))
    .sampling;
    assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p), (0.0, 0.5, 3, 0.25));
    assert_eq!(s.seed, Some(u64::MAX));
    assert_eq!((s.presence_penalty, s.frequency_penalty, s.repetition_penalty), (1.0, -1.0, 1.5));
    assert_eq!(s.logit_bias, [(7, -100.0)]);
    assert_eq!((s.tokens_max, s.tokens_min), (9, 2));
    assert_eq!((s.stop, s.stop_tokens), (vec!["a".to_owned(), "b".to_owned()], vec![5]));
    assert!(s.ignore_end_tokens);
    assert_eq!(s.logprobs, Some(4));
    let greedy = accepted(json!({"top_p": 0, "top_k": -1})).sampling;
    assert_eq!((greedy.top_k, greedy.top_p), (1, 1.0));
}

#[test]
fn stop_is_one_string_or_up_to_four() {
    assert_eq!(accepted(json!({"stop": "x"})).sampling.stop, ["x"]);
    refused(json!({"stop": ""}), "stop[0]");
    refused(json!({"stop": ["a", "b", "c", "d", "e"]}), "stop");
    refused(json!({"stop": 5}), "stop");
    refused(json!({"stop": ["a", 5]}), "stop[1]");
    refused(json!({"stop": "x".repeat(1025)}), "stop[0]");
}

#[test]
fn messages_have_what_their_role_needs() {
    let messages = |list: Value| json!({"messages": list});
    refused(messages(json!([])), "messages");
    refused(messages(json!([{"role": "king", "content": "x"}])), "messages[0].role");
    refused(messages(json!([{"role": "user"}])), "messages[0].content");
    refused(messages(json!([{"role": "user", "content": null}])), "messages[0].content");
    refused(messages(json!([{"role": "user", "content": 5}])), "messages[0].content");
    refused(messages(json!([{"role": "user", "content": []}])), "messages[0].content");
    refused(messages(json!([{"role": "user", "content": "x", "tool_calls": []}])), "messages[0].tool_calls");
    refused(messages(json!([{"role": "user", "content": "x", "colour": 1}])), "messages[0].colour");
    refused(messages(json!([{"role": "user", "content": "x", "reasoning": "y"}])), "messages[0].reasoning");
    refused(messages(json!([{"role": "tool", "content": "x"}])), "messages[0].tool_call_id");
    refused(
        messages(json!([{"role": "tool", "content": "x", "tool_call_id": "1"}])),
        "messages[0].tool_call_id",
    );
    refused(messages(json!([{"role": "assistant"}])), "messages[0].content");
    refused(
        messages(json!([{"role": "assistant", "content": "x", "audio": {"id": "a"}}])),
        "messages[0].audio",
    );
    let two_names =
        json!([{"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}]);
    refused(messages(two_names), "messages[0].reasoning");
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]);
    refused(messages(json!([{"role": "user", "content": image}])), "messages[0].content[1].type");
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}]);
    let param = "messages[0].tool_calls[0].function.arguments";
    refused(messages(json!([{"role": "assistant", "tool_calls": call}])), param);
}

#[test]
fn a_conversation_with_calls_comes_into_one_form() {
    let p = accepted(json!({"messages": [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "weather?", "name": "ann"},
        // As the Python client dumps an answer.
        {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null, "function_call": null,
         "reasoning": "hm", "reasoning_content": "hm",
         "tool_calls": [{"index": 0, "id": "c1", "type": "function",
                         "function": {"name": "get", "arguments": "{\"city\": \"Rome\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "assistant", "refusal": "no"},
    ]}));
    assert_eq!(p.turns[0].content.as_deref(), Some("be brief"));
    assert_eq!(p.turns[1].name.as_deref(), Some("ann"));
    assert_eq!(p.turns[2].reasoning.as_deref(), Some("hm"));
    assert_eq!(p.turns[2].calls[0].arguments["city"], "Rome");
    assert_eq!(p.turns[3].tool_call_id.as_deref(), Some("c1"));
    assert_eq!(p.turns[4].content.as_deref(), Some("no"));
}

#[test]
fn tools_are_functions_with_names() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    assert_eq!(accepted(json!({"tools": [tool("a")]})).tool_use, ToolUse::Auto);
    assert_eq!(accepted(json!({"tools": [tool("a")], "tool_choice": "none"})).tool_use, ToolUse::None);
    assert_eq!(
        accepted(json!({"tools": [tool("a")], "tool_choice": "required"})).tool_use,
        ToolUse::Required
    );
    let named = json!({"type": "function", "function": {"name": "a"}});
    let p = accepted(json!({"tools": [tool("a")], "tool_choice": named}));
    assert_eq!(p.tool_use, ToolUse::Named("a".into()));
    assert!(!accepted(json!({"tools": [tool("a")], "parallel_tool_calls": false})).parallel_tool_calls);

    refused(json!({"tools": [tool("b")], "tool_choice": named}), "tool_choice");
    refused(json!({"tool_choice": "auto"}), "tool_choice");
    refused(json!({"tools": [tool("a")], "tool_choice": "maybe"}), "tool_choice");
    refused(
        json!({"tools": [tool("a")], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}),
        "tool_choice",
    );
    refused(json!({"tools": [tool("a"), tool("a")]}), "tools[1].function.name");
    refused(json!({"tools": [tool("a b")]}), "tools[0].function.name");
    refused(json!({"tools": [{"type": "custom", "custom": {"name": "x"}}]}), "tools[0].type");
    refused(json!({"tools": [{"type": "function"}]}), "tools[0].function");
    let strict = json!([{"type": "function", "function": {"name": "a", "strict": true}}]);
    refused(json!({"tools": strict, "ignore_eos": true}), "ignore_eos");
    accepted(json!({"tools": strict, "ignore_eos": true, "tool_choice": "none"}));
    let listed = json!({"type": "function", "function": {"name": "a", "parameters": [1]}});
    refused(json!({"tools": [listed]}), "tools[0].function.parameters");
    let many: Vec<Value> = (0..129).map(|i| tool(&format!("f{i}"))).collect();
    refused(json!({"tools": many}), "tools");
}

#[test]
fn a_response_format_says_what_the_content_is_held_to() {
    let format = |format: Value| accepted(json!({"response_format": format})).format;
    assert_eq!(accepted(json!({})).format, AnswerFormat::Text);
    assert_eq!(format(json!({"type": "text"})), AnswerFormat::Text);
    assert_eq!(format(json!({"type": "json_object"})), AnswerFormat::JsonObject);
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    for strict in [Value::Null, json!(true), json!(false)] {
        let named = json!({"name": "pair", "description": "Two", "schema": schema, "strict": strict});
        let AnswerFormat::JsonSchema(named) = format(json!({"type": "json_schema", "json_schema": named}))
        else {
            panic!("a schema was given");
        };
        assert_eq!((named.name.as_str(), named.description.as_deref()), ("pair", Some("Two")));
        assert_eq!(Value::Object(named.schema).to_string(), schema.to_string(), "in the caller's order");
    }
}
