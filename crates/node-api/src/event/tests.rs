use proptest::prelude::*;

use crate::*;

fn token(bytes: &[u8]) -> Token {
    let bytes = || TokenBytes::from(bytes.to_vec());
    let logprobs = vec![TokenLogprob { id: 7, logprob: -0.5, bytes: bytes() }];
    Token { id: 7, bytes: bytes(), control: true, logprobs }
}

fn every_kind() -> Vec<GenerateEvent> {
    vec![
        GenerateEvent::Loading { progress: 0.25 },
        GenerateEvent::Alive,
        GenerateEvent::Started {
            prompt_tokens: 3,
            cached_tokens: 1,
            engine: "echo".into(),
            engine_version: "0.1.0".into(),
            end_tokens: vec![256],
        },
        GenerateEvent::Token(token("é".as_bytes())),
        GenerateEvent::Token(token(b"\xff\0")),
        GenerateEvent::Token(Token { control: false, logprobs: Vec::new(), ..token(b"") }),
        GenerateEvent::Finished { reason: FinishReason::Length, completion_tokens: 9 },
        GenerateEvent::Failed(ApiError {
            status: 507,
            code: "no_room".into(),
            message: "5 of 3 \"bytes\"".into(),
            numbers: Some((5, 3)),
            retry: true,
            ..ApiError::default()
        }),
    ]
}

#[test]
fn every_kind_comes_back_as_it_was() {
    for event in every_kind() {
        let line = serde_json::to_string(&event).expect("JSON");
        assert!(line.starts_with("{\"event\":"), "the tag comes first, or reading is slow: {line}");
        assert_eq!(serde_json::from_str::<GenerateEvent>(&line).expect(&line), event);
    }
}

#[test]
fn the_tag_may_stand_anywhere_and_unknown_fields_are_passed_over() {
    for event in every_kind() {
        let serde_json::Value::Object(mut fields) = serde_json::to_value(&event).expect("JSON") else {
            panic!("an object")
        };
        let tag = fields.remove("event").expect("a tag");
        fields.insert("of_a_later_version".into(), serde_json::json!([1, {"a": null}]));
        let first: serde_json::Map<_, _> =
            std::iter::once(("event".to_owned(), tag.clone())).chain(fields.clone()).collect();
        fields.insert("event".into(), tag);
        for fields in [fields, first] {
            let line = serde_json::to_string(&fields).expect("JSON");
            assert_eq!(serde_json::from_str::<GenerateEvent>(&line).expect(&line), event);
        }
    }
}

#[test]
fn what_is_no_event_is_refused() {
    for line in [
        "{}",
        "[]",
        "null",
        r#"{"event":"unheard_of"}"#,
        r#"{"event":1}"#,
        r#"{"event":"token"}"#,
        r#"{"event":"token","id":-1,"text":"a"}"#,
        r#"{"event":"token","id":1,"text":7}"#,
        r#"{"id":1,"text":"a"}"#,
        r#"{"id":1,"event":"unheard_of"}"#,
        r#"{"event":"loading"}"#,
        r#"{"event":"token","id":1"#,
    ] {
        assert!(serde_json::from_str::<GenerateEvent>(line).is_err(), "{line}");
    }
    // A token without bytes is an empty one.
    let empty = serde_json::from_str(r#"{"event":"token","id":1}"#).expect("a token");
    assert!(matches!(empty, GenerateEvent::Token(t) if t.bytes.to_vec().is_empty()));
}

proptest! {
    #[test]
    fn any_bytes_come_back(bytes: Vec<u8>, id: u32, control: bool) {
        let event = GenerateEvent::Token(Token { id, bytes: TokenBytes::from(bytes), control, logprobs: Vec::new() });
        let line = serde_json::to_vec(&event).unwrap();
        prop_assert_eq!(serde_json::from_slice::<GenerateEvent>(&line).unwrap(), event);
    }
}
