//! Replies of all kinds, however they are cut.

use proptest::prelude::*;

use super::*;
use crate::{ForcedCall, LiteralRange, force_tool_call};

/// A token: text, or a control token in angle brackets with bars.
fn tokens(reply: &str) -> Vec<(Vec<u8>, bool)> {
    let mut tokens = Vec::new();
    let mut rest = reply;
    while let Some(at) = rest.find("<|") {
        if at > 0 {
            tokens.push((rest[..at].into(), false));
        }
        let end = rest[at..].find("|>").map_or(rest.len(), |i| at + i + 2);
        tokens.push((rest[at..end].into(), true));
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        tokens.push((rest.into(), false));
    }
    tokens
}

fn prompt(text: &str) -> Rendered {
    Rendered { text: text.to_owned(), literal: Vec::new() }
}

fn parser(prompt: &Rendered) -> ReplyParser {
    let mut count = 0;
    let ids = Box::new(move || {
        count += 1;
        format!("call_{count}")
    });
    ReplyParser::new("gpt_oss", prompt, vec!["add".to_owned()], ids)
}

fn run(mut parser: ReplyParser, tokens: &[(Vec<u8>, bool)], ended_by: Finish) -> (Reply, Finish, Vec<Delta>) {
    let mut deltas = Vec::new();
    for (bytes, is_control) in tokens {
        deltas.extend(parser.push(bytes, *is_control));
    }
    let (last, finish) = parser.finish(ended_by);
    deltas.extend(last);
    let mut reply = Reply::default();
    deltas.iter().for_each(|delta| reply.add(delta));
    (reply, finish, deltas)
}

fn parse_after(before: &Rendered, reply: &str, ended_by: Finish) -> (Reply, Finish) {
    let (reply, finish, _) = run(parser(before), &tokens(reply), ended_by);
    (reply, finish)
}

fn parse(reply: &str) -> (Reply, Finish) {
    parse_after(&prompt("<|start|>assistant"), reply, Finish::Stop)
}

fn reply(content: Option<&str>, reasoning: Option<&str>, calls: &[(&str, &str)]) -> Reply {
    let call = |(index, (name, arguments)): (usize, &(&str, &str))| ToolCall {
        id: format!("call_{}", index + 1),
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    };
    Reply {
        content: content.map(str::to_owned),
        reasoning: reasoning.map(str::to_owned),
        tool_calls: calls.iter().enumerate().map(call).collect(),
    }
}

#[test]
fn reasoning_and_answer() {
    let (got, finish) = parse(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Paris. <|return|>",
    );
    assert_eq!(got, reply(Some("Paris. "), Some("Hm."), &[]));
    assert_eq!(finish, Finish::Stop);
}

#[test]
fn calls_with_both_placements_of_the_recipient() {
    for text in [
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        "<|channel|>commentary to=functions.add<|constrain|>json<|message|>{\"a\": 1}<|call|>",
        " to=functions.add<|channel|>commentary json<|message|>{\"a\": 1}<|call|>",
        " to=functions.add<|channel|>commentary<|message|>{\"a\": 1}<|call|>",
        "<|channel|>analysis to=functions.add code<|message|>{\"a\": 1}<|call|>",
        "<|channel|>commentary<|channel|>commentary to=functions.add json<|message|>{\"a\": 1}<|call|>",
        "<|channel|>commentary to=add<|message|>{\"a\": 1}<|call|>",
        " to=functions.add<|message|>{\"a\": 1}<|call|>",
    ] {
        let (got, finish) = parse(text);
        assert_eq!(got, reply(None, None, &[("add", "{\"a\": 1}")]), "{text}");
        assert_eq!(finish, Finish::ToolCalls, "{text}");
    }
}

#[test]
fn a_call_to_a_function_that_nobody_offered_is_a_call() {
    let (got, _) = parse("<|channel|>commentary to=functions.made_up<|message|>{}<|call|>");
    assert_eq!(got, reply(None, None, &[("made_up", "{}")]));
}

#[test]
fn several_calls_are_counted() {
    let (got, finish) = parse(
        "<|channel|>commentary to=functions.add<|message|>{}<|end|>\
        <|start|>assistant<|channel|>commentary to=functions.sub<|message|>{\"x\":1}<|call|>",
    );
    assert_eq!(got, reply(None, None, &[("add", "{}"), ("sub", "{\"x\":1}")]));
    assert_eq!(finish, Finish::ToolCalls);
}

#[test]
fn a_call_without_arguments_has_an_empty_object() {
    let (got, _) = parse("<|channel|>commentary to=functions.now<|message|><|call|>");
    assert_eq!(got, reply(None, None, &[("now", "{}")]));
}

#[test]
fn a_preamble_is_content() {
    let (got, finish) = parse(
        "<|channel|>commentary<|message|>I will look.<|end|>\
        <|start|>assistant to=functions.add<|channel|>commentary json<|message|>{}<|call|>",
    );
    assert_eq!(got, reply(Some("I will look."), None, &[("add", "{}")]));
    assert_eq!(finish, Finish::ToolCalls);
}

#[test]
fn messages_of_one_kind_are_lines() {
    let (got, _) = parse(
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>\
        <|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>d<|return|>",
    );
    assert_eq!(got, reply(Some("c\nd"), Some("a\nb"), &[]));
}

#[test]
fn calls_of_built_in_tools_are_not_shown() {
    for tool in ["browser.search", "python", "container.exec"] {
        let (got, finish) = parse(&format!(
            "<|channel|>analysis to={tool} code<|message|>secret<|end|><|start|>assistant<|channel|>final<|message|>ok<|return|>"
        ));
        assert_eq!(got, reply(Some("ok"), None, &[]), "{tool}");
        assert_eq!(finish, Finish::Stop);
    }
}

#[test]
fn a_reply_that_is_cut_off_is_closed_as_it_is() {
    let start = prompt("<|start|>assistant");
    for (text, expected) in [
        ("<|channel|>analysis<|message|>Thin", reply(None, Some("Thin"), &[])),
        ("<|channel|>final<|message|>The cap", reply(Some("The cap"), None, &[])),
        ("<|channel|>commentary to=functions.add<|message|>{\"a\"", reply(None, None, &[("add", "{\"a\"")])),
        ("<|channel|>commentary to=functions.add<|message|>", reply(None, None, &[("add", "")])),
        ("<|channel|>commentary to=functions.add", reply(None, None, &[])),
        ("<|channel|>fin", reply(Some("fin"), None, &[])),
        ("<|channel|>final", reply(None, None, &[])),
        ("<|channel|>", reply(None, None, &[])),
        ("", reply(None, None, &[])),
    ] {
        let (got, finish) = parse_after(&start, text, Finish::Length);
        assert_eq!(got, expected, "{text}");
        assert_eq!(finish, Finish::Length, "{text}");
    }
}

#[test]
fn odd_replies_are_content() {
    for (text, content) in [
        ("Hello there<|return|>", "Hello there"),
        ("<|message|>no header<|return|>", "no header"),
        ("<|channel|>shout<|message|>loud<|return|>", "loud"),
        ("<|channel|>final Hello<|return|>", "Hello"),
        ("<|channel|>final<|message|>a<|message|>b<|constrain|>c<|reserved_7|>d<|return|>", "abcd"),
        ("<|channel|>final<|message|>a<|end|>tail<|return|>", "a\ntail"),
        ("<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>", "a\nb"),
        ("<|channel|>final<|message|>a<|channel|>final<|message|>b<|return|>", "a\nb"),
        ("<|end|><|end|><|message|>x<|end|>", "x"),
        ("<|start|>user<|message|>impersonated<|end|>", "impersonated"),
        ("<|channel|>final to=user<|message|>for you<|end|>", "for you"),
        ("<|channel|>commentary to=functions.<|message|>nameless<|call|>", "nameless"),
        ("<|start|>never a header<|end|>", "never a header"),
        ("to=5<|return|>", "to=5"),
        (" to=functions.add is how one calls it<|return|>", " to=functions.add is how one calls it"),
    ] {
        let (got, finish) = parse(text);
        assert_eq!(got, reply(Some(content), None, &[]), "{text}");
        assert_eq!(finish, Finish::Stop, "{text}");
    }
}

#[test]
fn a_role_without_a_start_begins_a_header() {
    for text in [
        "<|channel|>analysis<|message|>t<|end|>assistant<|channel|>final<|message|>x<|return|>",
        "<|channel|>analysis<|message|>t<|end|>assistant<|message|>x<|return|>",
        "assistant<|channel|>analysis<|message|>t<|end|><|channel|>final<|message|>x<|return|>",
    ] {
        assert_eq!(parse(text).0, reply(Some("x"), Some("t"), &[]), "{text}");
    }
    // Only a header makes the word one.
    for text in ["assistant", "assistants help", " assist", "assistant to me"] {
        assert_eq!(parse(text).0, reply(Some(text), None, &[]), "{text}");
        let behind = format!("<|message|>x<|end|>{text}<|return|>");
        assert_eq!(parse(&behind).0, reply(Some(&format!("x\n{text}")), None, &[]), "{text}");
    }
}

#[test]
fn a_recipient_right_behind_the_role_is_one() {
    let (got, finish) = parse("to=functions.add<|channel|>commentary<|message|>{}<|call|>");
    assert_eq!(got, reply(None, None, &[("add", "{}")]));
    assert_eq!(finish, Finish::ToolCalls);
}

#[test]
fn a_call_that_ends_in_its_header_has_no_arguments() {
    for text in
        ["<|channel|>commentary to=functions.add <|constrain|>json<|call|>", " to=functions.add<|call|>"]
    {
        let (got, finish) = parse(text);
        assert_eq!(got, reply(None, None, &[("add", "{}")]), "{text}");
        assert_eq!(finish, Finish::ToolCalls, "{text}");
    }
    // One that breaks off there is none.
    assert_eq!(parse("<|channel|>commentary to=functions.add <|constrain|>json").0, Reply::default());
}

#[test]
fn words_in_a_header_are_not_lost() {
    let (got, _) = parse("<|channel|>final The answer: <|message|>42<|return|>");
    assert_eq!(got, reply(Some("The answer:42"), None, &[]));
    for header in ["analysis code", "analysis<|channel|>analysis", "analysis <|constrain|>text"] {
        let (got, _) = parse(&format!("<|channel|>{header}<|message|>x<|end|>"));
        assert_eq!(got, reply(None, Some("x"), &[]), "{header}");
    }
    let (got, _) =
        parse("<|end|><|start|>functions.add to=assistant<|channel|>commentary<|message|>3<|end|>");
    assert_eq!(got, reply(Some("3"), None, &[]));
}

#[test]
fn an_endless_header_becomes_content() {
    let (got, _) = parse(&format!("<|channel|>final {}<|return|>", "x".repeat(5000)));
    assert_eq!(got.content.unwrap().len(), 5000);
}

#[test]
fn text_that_spells_control_tokens_is_text() {
    let mut all = tokens("<|channel|>final<|message|>");
    all.push((b"<|end|><|start|>system".to_vec(), false));
    let (got, _, _) = run(parser(&prompt("<|start|>assistant")), &all, Finish::Stop);
    assert_eq!(got.content.unwrap(), "<|end|><|start|>system");
}

#[test]
fn a_forced_call_goes_on_where_the_prompt_stops() {
    let mut named = prompt("<|start|>assistant");
    force_tool_call("gpt_oss", &mut named, ForcedCall::Named("get_weather")).unwrap();
    let (got, finish) = parse_after(&named, "{\"city\":1}<|call|>", Finish::Stop);
    assert_eq!(got, reply(None, None, &[("get_weather", "{\"city\":1}")]));
    assert_eq!(finish, Finish::ToolCalls);

    let mut any = prompt("<|start|>assistant");
    force_tool_call("gpt_oss", &mut any, ForcedCall::AnyOf(&["get_weather", "add"])).unwrap();
    let (got, _) = parse_after(&any, "add<|channel|>commentary json<|message|>{}<|call|>", Finish::Stop);
    assert_eq!(got, reply(None, None, &[("add", "{}")]));
}

#[test]
fn a_forced_call_that_the_model_does_not_make_is_content() {
    let mut before = prompt("<|start|>assistant");
    force_tool_call("gpt_oss", &mut before, ForcedCall::AnyOf(&["add"])).unwrap();
    let (got, finish) = parse_after(&before, "I would rather not<|return|>", Finish::Stop);
    assert_eq!(got, reply(Some("I would rather not"), None, &[]));
    assert_eq!(finish, Finish::Stop);
}

#[test]
fn the_prompts_own_text_does_not_mislead_the_parser() {
    // The last `<|start|>` is text of a message: the reply begins behind the one before.
    let text =
        "<|start|>user<|message|><|start|>assistant to=functions.x<|message|><|end|><|start|>assistant";
    let literal = vec![LiteralRange { start: 24, end: 68 }];
    let mut misled = Rendered { text: text.to_owned(), literal };
    assert_eq!(&misled.text[24..68], "<|start|>assistant to=functions.x<|message|>");
    let (got, _) = parse_after(&misled, "<|channel|>final<|message|>ok<|return|>", Finish::Stop);
    assert_eq!(got, reply(Some("ok"), None, &[]));
    misled.text.truncate(68);
    let (got, _) = parse_after(&misled, "more", Finish::Length);
    assert_eq!(got, reply(Some("more"), None, &[]));
}

#[test]
fn a_prompt_that_opens_a_channel_is_continued() {
    let open = prompt("<|start|>assistant<|channel|>analysis<|message|>So");
    assert_eq!(parse_after(&open, " far<|end|>", Finish::Stop).0, reply(None, Some(" far"), &[]));
    let closed = prompt("<|start|>user<|message|>x<|end|>");
    assert_eq!(
        parse_after(&closed, "<|start|>assistant<|channel|>final<|message|>y<|return|>", Finish::Stop).0,
        reply(Some("y"), None, &[])
    );
}

#[test]
fn characters_across_tokens_are_held_back_and_invalid_bytes_replaced() {
    let mut parser = parser(&prompt("<|start|>assistant<|channel|>final<|message|>"));
    assert_eq!(parser.push(&[0xe6], false), []);
    assert_eq!(parser.push(&[0x97], false), []);
    let deltas = parser.push(&[0xa5, b'x', 0xff, 0xe6], false);
    assert_eq!(deltas, [Delta { kind: DeltaKind::Content("日x\u{fffd}".to_owned()), tokens: 0..3 }]);
    let deltas = parser.push(b"<|return|>", true);
    assert_eq!(deltas, [Delta { kind: DeltaKind::Content("\u{fffd}".to_owned()), tokens: 3..3 }]);
}

#[test]
fn pieces_name_the_tokens_they_are_made_of() {
    let all = tokens(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>",
    );
    let (_, _, deltas) = run(parser(&prompt("<|start|>assistant")), &all, Finish::Stop);
    let named: Vec<_> = deltas.iter().map(|d| d.tokens.clone()).collect();
    // channel 0, analysis 1, message 2, Hm. 3, end 4, start 5, assistant 6, channel 7, final 8, message 9, Yes 10
    assert_eq!(named, [3..4, 10..11]);
    let (_, _, deltas) = run(parser(&prompt("<|start|>assistant")), &tokens("Hello<|return|>"), Finish::Stop);
    assert_eq!(deltas[0].tokens, 0..1);
}

#[test]
fn arguments_are_streamed_as_they_come() {
    let mut parser =
        parser(&prompt("<|start|>assistant to=functions.add<|channel|>commentary json<|message|>"));
    let kinds: Vec<_> = [b"{\"a\"".as_slice(), b": 1}"]
        .into_iter()
        .flat_map(|b| parser.push(b, false))
        .map(|d| d.kind)
        .collect();
    assert_eq!(
        kinds,
        [
            DeltaKind::ToolCallStart { index: 0, id: "call_1".to_owned(), name: "add".to_owned() },
            DeltaKind::ToolCallArguments { index: 0, arguments: "{\"a\"".to_owned() },
            DeltaKind::ToolCallArguments { index: 0, arguments: ": 1}".to_owned() },
        ]
    );
}

#[test]
fn the_reference_replies_of_the_demo_model() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo-model/reference.json");
    let reference: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let prompts = reference["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 25);
    for case in prompts {
        let (got, finish) = parse(case["completion"].as_str().unwrap());
        assert_eq!(
            got.content.as_deref().unwrap_or(""),
            case["content"].as_str().unwrap_or(""),
            "{}",
            case["name"]
        );
        assert_eq!(
            got.reasoning.as_deref().unwrap_or(""),
            case["reasoning"].as_str().unwrap_or(""),
            "{}",
            case["name"]
        );
        let is_call = !case["tool_call"].is_null();
        assert_eq!(finish, if is_call { Finish::ToolCalls } else { Finish::Stop }, "{}", case["name"]);
        assert_eq!(got.tool_calls.len(), usize::from(is_call));
        if is_call {
            assert_eq!(got.tool_calls[0].name, case["tool_call"]["name"].as_str().unwrap());
        }
    }
}

#[test]
fn a_plain_reply_is_content_without_its_control_tokens() {
    let parser = ReplyParser::new("echo", &prompt("x"), Vec::new(), Box::new(String::new));
    let (got, finish, _) = run(parser, &tokens("a<|end|>b <|x|>"), Finish::Length);
    assert_eq!((got, finish), (reply(Some("ab "), None, &[]), Finish::Length));
}

fn element() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|call|>",
        "<|return|>",
        "<|reserved_1|>",
        "assistant",
        "analysis",
        "commentary",
        "final",
        " to=functions.add",
        "to=",
        " to=browser.open",
        " json",
        "{\"a\": 1}",
        "日本",
        "é😀",
        "plain text",
        " ",
        "\n",
        "to",
        "x",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_into_tokens_gives_the_same_reply(
        parts in prop::collection::vec(element(), 0..24),
        cuts in prop::collection::vec(1..6_usize, 0..60),
        is_length in any::<bool>(),
    ) {
        let ended_by = if is_length { Finish::Length } else { Finish::Stop };
        let start = prompt("<|start|>assistant");
        let whole = tokens(&parts.concat());
        let mut sizes = cuts.into_iter().cycle();
        let mut cut: Vec<(Vec<u8>, bool)> = Vec::new();
        for (bytes, is_control) in &whole {
            if *is_control {
                cut.push((bytes.clone(), true));
                continue;
            }
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(sizes.next().unwrap_or(9).min(rest.len()));
                cut.push((piece.to_vec(), false));
                rest = behind;
            }
        }
        let (expected, expected_finish, _) = run(parser(&start), &whole, ended_by);
        let (got, finish, deltas) = run(parser(&start), &cut, ended_by);
        prop_assert_eq!(got, expected);
        prop_assert_eq!(finish, expected_finish);
        // Tokens are named in order, each at most once.
        let mut last = 0;
        for delta in deltas.iter().filter(|d| !d.tokens.is_empty()) {
            prop_assert!(delta.tokens.start >= last, "{:?}", deltas);
            last = delta.tokens.end;
        }
    }

    #[test]
    fn any_bytes_are_survived(all in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..6), any::<bool>()), 0..30)) {
        let (got, _, deltas) = run(parser(&prompt("<|start|>assistant")), &all, Finish::Stop);
        let mut again = Reply::default();
        deltas.iter().for_each(|d| again.add(d));
        prop_assert_eq!(got, again);
    }
}
