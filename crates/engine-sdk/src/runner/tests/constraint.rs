//! Answers that are held to a grammar, from submission to their last event.

use super::*;
use crate::{Constraint, TokenSet};

fn schema(text: &str) -> Sampling {
    let constraint = Constraint { kind: grammar::Kind::JsonSchema, text: text.to_owned() };
    Sampling { constraint: Some(constraint), ..greedy() }
}

fn lark(text: &str) -> Sampling {
    let constraint = Constraint { kind: grammar::Kind::Lark, text: text.to_owned() };
    Sampling { constraint: Some(constraint), ..greedy() }
}

/// The text of sequence 1, and its last event.
fn text_of(events: &[String]) -> (String, &str) {
    let tokens = events.iter().filter_map(|e| e.strip_prefix("1 token "));
    let text = tokens.filter(|token| !token.ends_with(" control")).collect();
    (text, events.last().unwrap())
}

const LETTERS: &str = r#"{"type": "string", "pattern": "^[a-z]{3}$"}"#;

#[test]
fn an_answer_fits_its_schema_and_then_ends() {
    // Left alone, the answer to x is "yz" and the end. The model wants the letter after the last, else a.
    let events = answer("x", schema(LETTERS));
    let (text, last) = text_of(&events);
    assert_eq!((text.as_str(), last), ("\"abc\"", "1 finished Stop 6"));
}

#[test]
fn the_end_comes_where_the_grammar_is_complete_and_no_token_before() {
    // After z the model wants the end.
    let events = answer("x", lark("start: \"yz\" /z{1,3}/"));
    assert_eq!(text_of(&events), ("yzz".to_owned(), "1 finished Stop 4"));
}

#[test]
fn control_tokens_come_where_a_grammar_names_them() {
    let events = answer("x", lark("start: \"q\" <|start|> \"r\""));
    assert_eq!(events[1..4], ["1 token q", "1 token <|start|> control", "1 token r"]);
}

#[test]
fn tokens_max_and_stop_strings_end_an_answer_that_is_not_complete() {
    let short = answer("x", Sampling { tokens_max: 2, ..schema(LETTERS) });
    assert_eq!(text_of(&short), ("\"a".to_owned(), "1 finished Length 2"));
    let stopped = answer("x", Sampling { stop: vec![b"ab".to_vec()], ..schema(LETTERS) });
    assert_eq!(text_of(&stopped), ("\"ab".to_owned(), "1 finished Stop 3"));
    let stopped = answer("x", Sampling { stop_tokens: vec![u32::from(b'b')], ..schema(LETTERS) });
    assert_eq!(text_of(&stopped), ("\"ab".to_owned(), "1 finished Stop 3"));
}

#[test]
fn biases_and_penalties_choose_among_what_is_possible() {
    let biased = vec![(u32::from(b'q'), 100.0), (u32::from(b'7'), 100.0), (END, 100.0)];
    let events = answer("x", Sampling { logit_bias: biased, ..schema(LETTERS) });
    assert_eq!(text_of(&events).0, "\"qqq\"");
    let penal = Sampling { repetition_penalty: 2.0, frequency_penalty: 2.0, ..schema(LETTERS) };
    let penalized = answer("x", penal);
    assert_eq!(text_of(&penalized).1, "1 finished Stop 6");
}

#[test]
fn an_answer_that_gave_way_goes_on_where_it_was() {
    let mut runner = Runner::new(TestModel::paged(2, 60, 16)).unwrap();
    let long = schema(r#"{"type": "string", "pattern": "^[a-z]{40}$"}"#);
    for sequence in [1, 2] {
        runner.submit(sequence, text("-----------"), long.clone()).unwrap();
    }
    let events = run(&mut runner);
    assert!(events.contains(&"1 finished Stop 43".to_owned()), "{events:?}");
    assert!(events.contains(&"2 finished Stop 43".to_owned()), "{events:?}");
}

/// The reason and the field of a refusal, and what it says.
fn refusal(sampling: Sampling) -> String {
    let mut runner = runner();
    let status = runner.submit(1, text("x"), sampling).unwrap_err();
    assert_eq!((status.code, status.reason.as_ref()), (StatusCode::Unsupported, "invalid_sampling"));
    assert_eq!(runner.sequences(), (0, 0));
    runner.submit(1, text("z"), greedy()).unwrap();
    assert_eq!(run(&mut runner).last().unwrap(), "1 finished Stop 1");
    format!("{}: {}", status.param, status.message)
}

#[test]
fn what_cannot_be_kept_to_is_refused_and_nothing_stays_behind() {
    assert!(refusal(schema(r#"{"not": {}}"#)).contains("constraint: "));
    assert!(refusal(schema("{")).contains("no JSON"));
    assert!(refusal(lark("start: <|nothing|>")).contains("<|nothing|>"));
    let beside = |sampling| refusal(sampling);
    assert!(beside(Sampling { tokens_min: 1, ..schema("{}") }).starts_with("tokens_min: "));
    assert!(beside(Sampling { ignore_end_tokens: true, ..schema("{}") }).starts_with("flags: "));
    let begun = Sampling { begin_with: vec!["a".to_owned()], ..schema("{}") };
    assert!(beside(begun).starts_with("begin_with: "));
}

#[test]
fn a_limit_that_is_reached_in_an_answer_ends_it_alone() {
    // Every letter may be the last one of all that were begun before it, in twenty ways each.
    let ways: Vec<String> = (0..20).map(|n| format!("way_{n}")).collect();
    let each: String = ways.iter().map(|way| format!("{way}: /[a-z]/ start | /[a-z]/\n")).collect();
    let more_and_more = lark(&format!("start: {}\n{each}", ways.join(" | ")));
    let mut runner = Runner::new(TestModel::new(2, 400, 8)).unwrap();
    runner.submit(1, text("a"), Sampling { logit_bias: vec![(END, -100.0)], ..more_and_more }).unwrap();
    runner.submit(2, text("x"), schema(r#"{"type": "string", "pattern": "^[a-z]{300}$"}"#)).unwrap();
    let events = run(&mut runner);
    let tokens = events.iter().filter(|event| event.starts_with("1 token ")).count();
    assert!((10..300).contains(&tokens), "it was taken, and followed for a while: {tokens}");
    assert!(events.contains(&"1 failed invalid_sampling".to_owned()), "{events:?}");
    assert_eq!(events.last().unwrap(), "2 finished Stop 303");
    runner.submit(3, text("x"), schema(LETTERS)).unwrap();
    assert_eq!(run(&mut runner).last().unwrap(), "3 finished Stop 6");
}

#[test]
fn a_set_says_what_may_come_to_whoever_chooses() {
    let mut grammars = crate::constraint::Grammars::default();
    let runner = runner();
    let constraint = schema(LETTERS).constraint.unwrap();
    let state = grammars.start(&constraint, runner.tokenizer(), runner.spec()).unwrap();
    let quote: TokenSet = [u32::from(b'"')].into_iter().collect();
    let spaces = |id: &u32| b" \t\r\n".map(u32::from).contains(id);
    let first: TokenSet = (0..260).filter(|id| state.next().contains(*id) && !spaces(id)).collect();
    assert_eq!(first, quote);
}
