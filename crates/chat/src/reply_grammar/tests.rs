use super::*;

const SCHEMA: &str = r#"{"type":"boolean"}"#;

fn prompt(text: &str) -> Rendered {
    Rendered { text: text.to_owned(), literal: Vec::new() }
}

fn harmony(shape: &ReplyShape<'_>) -> Option<ReplyGrammar> {
    reply_grammar("gpt_oss", &prompt("<|start|>assistant"), shape).unwrap()
}

fn content() -> Option<String> {
    Some(SCHEMA.to_owned())
}

fn call(name: &str, is_held: bool) -> CallShape<'_> {
    CallShape { name, arguments: is_held.then(|| SCHEMA.to_owned()) }
}

#[test]
fn what_asks_for_nothing_is_held_to_nothing() {
    assert_eq!(harmony(&ReplyShape::default()), None);
    assert_eq!(harmony(&ReplyShape { calls: vec![call("f", false)], ..ReplyShape::default() }), None);
    let plain = reply_grammar("llama", &prompt("x"), &ReplyShape::default()).unwrap();
    assert_eq!(plain, None);
}

#[test]
fn a_plain_reply_is_held_to_the_schema_from_its_beginning() {
    let shape = ReplyShape { content: content(), ..ReplyShape::default() };
    let grammar = reply_grammar("llama", &prompt("x"), &shape).unwrap();
    assert_eq!(grammar, Some(ReplyGrammar::JsonSchema(SCHEMA.to_owned())));
    let shape = ReplyShape { calls: vec![call("f", true)], ..ReplyShape::default() };
    let error = reply_grammar("llama", &prompt("x"), &shape).unwrap_err();
    assert!(error.to_string().contains("llama"), "{error}");
}

#[test]
fn a_harmony_reply_thinks_first() {
    let shape = ReplyShape { content: content(), ..ReplyShape::default() };
    let Some(ReplyGrammar::Lark(text)) = harmony(&shape) else { panic!("it is a grammar") };
    assert_eq!(
        text,
        "start: thought* last\n\
         thought: <|channel|> \"analysis\" <|message|> text? <|end|> <|start|> \"assistant\"\n\
         last: content\n\
         content: <|channel|> \"final\" <|message|> %json {\"type\":\"boolean\"}\n\
         text: /(?s:.)+/\n"
    );
    let error = reply_grammar("gpt_oss", &prompt("<|message|>"), &shape).unwrap_err();
    assert!(error.to_string().contains("template"), "{error}");
}

#[test]
fn a_call_may_come_in_both_forms_and_only_strict_ones_are_held() {
    let shape = ReplyShape { calls: vec![call("get", true), call("play", false)], ..ReplyShape::default() };
    let Some(ReplyGrammar::Lark(text)) = harmony(&shape) else { panic!("it is a grammar") };
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.contains(
        &"call_0: (\" to=functions.get\" <|channel|> \"commentary\" | <|channel|> \"commentary to=functions.get\") \
          type? <|message|> %json {\"type\":\"boolean\"}"
    ), "{text}");
    assert!(lines.iter().any(|l| l.starts_with("call_1: ") && l.ends_with("<|message|> text?")), "{text}");
    assert!(lines.contains(&"content: <|channel|> \"final\" <|message|> text?"), "{text}");
    assert!(lines.contains(&"last: content | call"), "{text}");
}

#[test]
fn behind_a_forced_call_come_its_arguments() {
    let calls = vec![call("get", true), call("play", false)];
    let named =
        |name| ReplyShape { calls: calls.clone(), forced: Some(ForcedCall::Named(name)), content: content() };
    assert_eq!(harmony(&named("get")), Some(ReplyGrammar::JsonSchema(SCHEMA.to_owned())));
    assert_eq!(harmony(&named("play")), None);
    let forced = Some(ForcedCall::AnyOf(&["get", "play"]));
    let Some(ReplyGrammar::Lark(text)) = harmony(&ReplyShape { calls, forced, content: None }) else {
        panic!("it is a grammar")
    };
    assert_eq!(
        text,
        "start: call\n\
         call: call_0 | call_1\n\
         call_0: \"get\" <|channel|> \"commentary json\" <|message|> %json {\"type\":\"boolean\"}\n\
         call_1: \"play\" <|channel|> \"commentary json\" <|message|> text?\n\
         text: /(?s:.)+/\n"
    );
}
