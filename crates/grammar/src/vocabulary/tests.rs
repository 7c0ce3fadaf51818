use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const CHANNEL: u32 = 256;
const END: u32 = 257;
const UNKNOWN: u32 = 258;
const MESSAGE: u32 = 263;
const START: u32 = 264;
const CONSTRAIN: u32 = 265;
/// Ends a reply, in which `<|end|>` ends a message.
const RETURN: u32 = 266;
const SIZE: u32 = 267;

/// Bytes, a control token, an end, an id without a piece, and a few longer pieces.
const LONGER: [&[u8]; 4] = [b"{\"", b"\":", b"true", b"\"}"];

fn piece(id: u32) -> Option<(&'static [u8], bool)> {
    static BYTES: [u8; 256] = {
        let mut bytes = [0; 256];
        let mut at = 0;
        while at < 256 {
            bytes[at] = at as u8;
            at += 1;
        }
        bytes
    };
    match id {
        0..256 => Some((&BYTES[id as usize..=id as usize], false)),
        CHANNEL => Some((b"<|channel|>", true)),
        END => Some((b"<|end|>", true)),
        UNKNOWN => None,
        MESSAGE => Some((b"<|message|>", true)),
        START => Some((b"<|start|>", true)),
        CONSTRAIN => Some((b"<|constrain|>", true)),
        RETURN => Some((b"<|return|>", true)),
        _ => LONGER.get((id - UNKNOWN - 1) as usize).map(|bytes| (*bytes, false)),
    }
}

fn vocabulary(ends: &[u32]) -> Vocabulary {
    Vocabulary::new(SIZE, piece, ends).unwrap()
}

fn allowed(set: &TokenSet) -> Vec<u32> {
    (0..SIZE).filter(|id| set.contains(*id)).collect()
}

fn push_all(constrained: &mut Constrained, text: &str) {
    for byte in text.bytes() {
        assert!(constrained.next().contains(u32::from(byte)), "{:?} of {text:?}", byte as char);
        constrained.push(u32::from(byte)).unwrap();
    }
}

const FLAG: &str = r#"{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}"#;

#[test]
fn an_answer_ends_where_it_is_complete_and_nowhere_else() {
    let mut answer = vocabulary(&[END]).constrain(Kind::JsonSchema, FLAG).unwrap();
    assert!(!answer.next().contains(END) && answer.next().contains(UNKNOWN + 1));
    push_all(&mut answer, "{\"a\":true");
    assert!(!answer.next().contains(END));
    push_all(&mut answer, "}");
    assert_eq!(
        allowed(answer.next()).iter().filter(|id| **id != END).count(),
        0,
        "{:?}",
        allowed(answer.next())
    );
    assert!(answer.next().contains(END) && !answer.is_over());
}

#[test]
fn a_model_without_an_end_is_told_that_nothing_may_follow() {
    let mut answer = vocabulary(&[]).constrain(Kind::JsonSchema, FLAG).unwrap();
    assert!(!answer.is_over());
    push_all(&mut answer, "{\"a\":true}");
    assert!(answer.is_over());
}

#[test]
fn control_tokens_and_ids_without_a_piece_are_no_text() {
    let mut answer = vocabulary(&[END]).constrain(Kind::JsonSchema, r#"{"type": "string"}"#).unwrap();
    push_all(&mut answer, "\"<|channel|>");
    assert!(!answer.next().contains(CHANNEL) && !answer.next().contains(UNKNOWN));
    // 0xff is in no text.
    assert!(!answer.next().contains(0xff) && answer.next().contains(0xc3));
}

#[test]
fn white_space_has_an_end() {
    let mut answer = vocabulary(&[END]).constrain(Kind::JsonSchema, FLAG).unwrap();
    push_all(&mut answer, &format!("{{{}", " ".repeat(crate::SPACE_CHARS_MAX)));
    assert_eq!(allowed(answer.next()), [u32::from(b'"')]);
}

#[test]
fn a_grammar_names_control_tokens() {
    let text = "start: <|channel|> \"final\" <|channel|> body\nbody: %json {\"type\": \"boolean\"}";
    let mut answer = vocabulary(&[END]).constrain(Kind::Lark, text).unwrap();
    assert_eq!(allowed(answer.next()), [CHANNEL]);
    answer.push(CHANNEL).unwrap();
    push_all(&mut answer, "final");
    assert_eq!(allowed(answer.next()), [CHANNEL]);
    answer.push(CHANNEL).unwrap();
    push_all(&mut answer, "true");
    assert!(answer.next().contains(END));
}

/// The form of a reply that thinks first and may call a function, as the router asks for it.
const REPLY: &str = r#"start: thought* last
thought: <|channel|> "analysis" <|message|> text? <|end|> <|start|> "assistant"
    | <|channel|> "commentary" <|message|> text? <|end|> <|start|> "assistant"
last: content | call
call: call_0 | call_1
call_0: (" to=functions.get" <|channel|> "commentary" | <|channel|> "commentary to=functions.get") type? <|message|> %json {"type":"boolean"}
call_1: (" to=functions.get_all" <|channel|> "commentary" | <|channel|> "commentary to=functions.get_all") type? <|message|> text?
type: " json" | " "? <|constrain|> "json"
content: <|channel|> "final" <|message|> %json {"type":"boolean"}
text: /(?s:.)+/
"#;

/// Follows `reply`, in which `{c}` and the like are control tokens; what may come behind it.
fn behind(reply: &str) -> TokenSet {
    let mut answer = vocabulary(&[RETURN]).constrain(Kind::Lark, REPLY).unwrap();
    let mut rest = reply;
    while let Some(next) = rest.chars().next() {
        let controls = [("{c}", CHANNEL), ("{e}", END), ("{m}", MESSAGE), ("{s}", START), ("{t}", CONSTRAIN)];
        let control = controls.iter().find(|(spelling, _)| rest.starts_with(spelling));
        let (id, length) = control.map_or((next as u32, 1), |(spelling, id)| (*id, spelling.len()));
        assert!(answer.next().contains(id), "{next:?} before {rest:?}");
        answer.push(id).unwrap();
        rest = &rest[length..];
    }
    answer.next().clone()
}

#[test]
fn a_reply_thinks_as_long_as_it_likes_and_then_keeps_to_the_schema() {
    assert_eq!(allowed(&behind("")), [u32::from(b' '), CHANNEL]);
    assert_eq!(allowed(&behind("{c}")), [u32::from(b'a'), u32::from(b'c'), u32::from(b'f')]);
    let thinking = behind("{c}analysis{m}any {\"thing");
    assert!(thinking.contains(END) && thinking.contains(u32::from(b'\n')) && !thinking.contains(CHANNEL));
    assert!(!thinking.contains(RETURN), "a reply does not end in its thoughts");
    let answer = behind("{c}analysis{m}{e}{s}assistant{c}commentary{m}so:{e}{s}assistant{c}final{m}");
    assert!(answer.contains(u32::from(b't')) && !answer.contains(u32::from(b'x')));
    assert!(behind("{c}final{m}true").contains(RETURN));
    let called = behind("{c}analysis{m}x{e}{s}assistant to=functions.get{c}commentary json{m}");
    assert!(called.contains(u32::from(b'f')) && !called.contains(u32::from(b'x')));
    assert!(behind("{c}commentary to=functions.get_all{m}any").contains(RETURN));
    assert!(behind("{c}commentary to=functions.get_all {t}json{m}").contains(u32::from(b'x')));
}

#[test]
fn a_control_token_that_the_model_lacks_is_named() {
    let error = vocabulary(&[END]).constrain(Kind::Lark, "start: <|nothing|>").unwrap_err();
    assert!(error.to_string().contains("<|nothing|>"), "{error}");
    let error = vocabulary(&[END]).constrain(Kind::Lark, "start: (").unwrap_err();
    assert!(!error.to_string().is_empty() && !error.to_string().contains('\n'), "{error}");
}

/// Every `a` may be the last one of all that were begun before it, in twenty ways each: what has to be followed grows with the answer.
fn more_and_more() -> String {
    let ways: Vec<String> = (0..20).map(|n| format!("way_{n}")).collect();
    let each: String = ways.iter().map(|way| format!("{way}: \"a\" start | \"a\"\n")).collect();
    format!("start: {}\n{each}", ways.join(" | "))
}

#[test]
fn a_limit_that_is_reached_in_an_answer_ends_it_with_words_and_no_other() {
    let vocabulary = vocabulary(&[END]);
    let mut beside = vocabulary.constrain(Kind::JsonSchema, FLAG).unwrap();
    push_all(&mut beside, "{\"a\":");
    let mut answer = vocabulary.constrain(Kind::Lark, &more_and_more()).unwrap();
    let mut letters = 0;
    let error = loop {
        letters += 1;
        assert!(letters < 300 && answer.next().contains(u32::from(b'a')), "no limit in {letters} letters");
        if let Err(error) = answer.push(u32::from(b'a')) {
            break error.to_string();
        }
    };
    assert!(letters > 10, "it was taken, and followed for a while: {letters}");
    assert!(error.contains("beyond the limits") && error.contains("items"), "{error}");
    assert!(answer.push(u32::from(b'a')).is_err(), "it stays so");
    push_all(&mut beside, "true}");
    assert!(beside.next().contains(END));
    push_all(&mut vocabulary.constrain(Kind::JsonSchema, FLAG).unwrap(), "{\"a\":false}");
}

#[test]
fn a_long_grammar_is_refused() {
    let error = vocabulary(&[END]).constrain(Kind::Lark, &" ".repeat(GRAMMAR_BYTES_MAX + 1)).unwrap_err();
    assert!(error.to_string().contains("524289"), "{error}");
}

#[test]
fn sets_have_the_ids_they_are_made_of() {
    let set: TokenSet = [3, 64, 31].into_iter().collect();
    assert_eq!(allowed(&set), [3, 31, 64]);
    assert!(!set.is_empty() && TokenSet::default().is_empty() && !set.contains(9_999));
}

/// Schemas whose answers all have an end.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({"enum": ["a", "b\\c\u{e9}", 3, null]})),
        (-50i64..50, 0i64..90).prop_map(|(least, more)| {
            json!({"type": "integer", "minimum": least, "maximum": least + more})
        }),
        (0u32..3, 0u32..5).prop_map(|(least, more)| {
            json!({"type": "string", "minLength": least, "maxLength": least + more})
        }),
        Just(json!({"type": "string", "pattern": "^[x-z]{1,3}(-[0-9])?$"})),
        Just(json!({"type": "string", "format": "date"})),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0u32..2, 0u32..3).prop_map(|(items, least, more)| {
                json!({"type": "array", "items": items, "minItems": least, "maxItems": least + more})
            }),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|options| json!({"anyOf": options})),
            prop::collection::vec((inner, any::<bool>()), 0..4).prop_map(|fields| {
                let name = |at: usize| ["a", "b c", "\u{e9}\"", "d"][at];
                let required: Vec<&str> =
                    fields.iter().enumerate().filter(|(_, (_, is))| *is).map(|(at, _)| name(at)).collect();
                let properties: serde_json::Map<String, Value> = fields
                    .iter()
                    .enumerate()
                    .map(|(at, (schema, _))| (name(at).to_owned(), schema.clone()))
                    .collect();
                json!({
                    "type": "object", "properties": properties, "required": required,
                    "additionalProperties": false,
                })
            }),
        ]
    })
}

/// Tokens of an answer to the largest of these schemas, with all its white space.
const TOKENS_MAX: usize = 20_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_drawn_of_what_may_come_is_an_answer_that_fits(schema in any_schema(), seed in any::<u64>()) {
        crate::check(&schema.to_string()).unwrap();
        let mut answer = vocabulary(&[END]).constrain(Kind::JsonSchema, &schema.to_string()).unwrap();
        let mut state = seed | 1;
        let mut text = Vec::new();
        for at in 0.. {
            prop_assert!(at < TOKENS_MAX, "no end: {}", String::from_utf8_lossy(&text));
            let possible = allowed(answer.next());
            prop_assert!(!possible.is_empty());
            // Xorshift: the test needs variety, not chance.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let id = possible[(state % possible.len() as u64) as usize];
            if id == END {
                break;
            }
            text.extend_from_slice(piece(id).unwrap().0);
            answer.push(id).unwrap();
        }
        let value: Value = serde_json::from_slice(&text)
            .map_err(|e| TestCaseError::fail(format!("{e}: {}", String::from_utf8_lossy(&text))))?;
        prop_assert!(jsonschema::is_valid(&schema, &value), "{value} for {schema}");
    }
}
