//! Which tokens lead to a text, by hand and for every row of logits.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::{
    History, Sampler, Sampling,
    testing::{Bytes, END, START, VOCABULARY},
};

fn begin(texts: &[&str]) -> BeginWith {
    let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
    BeginWith::new(&texts, &Bytes).unwrap()
}

fn push(begin: &mut BeginWith, text: &str) {
    for id in Bytes.encode(text, &[]).unwrap() {
        begin.push(id, Bytes.piece(id).unwrap());
    }
}

/// What may follow `answer`; `None`: anything.
fn after(texts: &[&str], answer: &str) -> Option<Vec<u32>> {
    let mut begin = begin(texts);
    push(&mut begin, answer);
    begin.allowed(&Bytes, VOCABULARY, |id| *id == END).map(ids)
}

fn ids(set: TokenSet) -> Vec<u32> {
    (0..2 * VOCABULARY).filter(|id| set.contains(*id)).collect()
}

fn bytes(text: &str) -> Option<Vec<u32>> {
    Some(text.bytes().map(u32::from).collect())
}

#[test]
fn only_what_leads_to_a_text_may_follow() {
    assert_eq!(after(&[], ""), None);
    assert_eq!(after(&["ab", "cd", "ce"], ""), bytes("ac"));
    assert_eq!(after(&["ab", "cd", "ce"], "c"), bytes("de"));
    assert_eq!(after(&["ab", "cd", "ce"], "ce"), None);
    assert_eq!(after(&["ab", "cd", "ce"], "ceab"), None);
}

#[test]
fn a_text_that_begins_another_may_end_or_go_on_to_it() {
    assert_eq!(after(&["get", "get_all"], "ge"), bytes("t"));
    assert_eq!(after(&["get", "get_all"], "get"), None);
    assert_eq!(after(&["get", "get_all"], "get_a"), bytes("l"), "who goes on goes to the end");
    assert_eq!(after(&["get", "get_all"], "get_all"), None);
    assert_eq!(after(&["get", "get_all"], "get."), None);
    assert_eq!(after(&["get", "get_all"], "get.get"), None, "only the beginning counts");
}

#[test]
fn the_same_text_twice_is_one() {
    assert_eq!(after(&["ab", "ab"], "a"), bytes("b"));
    assert_eq!(after(&["ab", "ab"], "ab"), None);
}

#[test]
fn control_tokens_are_symbols_of_their_own() {
    assert_eq!(after(&["a<|start|>b"], "a"), Some(vec![START]));
    assert_eq!(after(&["a<|start|>b"], "a<|start|>"), bytes("b"));
    assert_eq!(after(&["ab<|end|>"], "ab"), Some(vec![END]), "an end may complete a text");
    assert_eq!(after(&["<|end|>b"], ""), Some(vec![]), "and not come before");
}

#[test]
fn characters_may_come_byte_by_byte() {
    let mut begin = begin(&["\u{e9}t\u{e9}"]);
    begin.push(0xc3, Piece { bytes: &[0xc3], control: false });
    assert_eq!(begin.allowed(&Bytes, VOCABULARY, |_| false).map(ids), Some(vec![0xa9]));
}

/// Pieces of any length, as a real vocabulary has them: the bytes, then words.
struct Words(Vec<Vec<u8>>);

impl Tokenize for Words {
    fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        Bytes.encode(text, literal)
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        let words = id.checked_sub(VOCABULARY);
        words.map_or_else(
            || Bytes.piece(id),
            |at| self.0.get(at as usize).map(|word| Piece { bytes: word, control: false }),
        )
    }
}

#[test]
fn tokens_of_several_bytes_fit_whole_or_not_at_all() {
    let words = Words([&b"ge"[..], b"get_", b"get", b"getx", b"", b"x"].map(<[u8]>::to_vec).to_vec());
    let begin = BeginWith::new(&["get_a".to_owned(), "get".to_owned()], &words).unwrap();
    let allowed = begin.allowed(&words, VOCABULARY + 6, |_| false).unwrap();
    assert_eq!(ids(allowed), [u32::from(b'g'), VOCABULARY, VOCABULARY + 1, VOCABULARY + 2]);
}

/// A tokenizer that writes small letters.
struct Lower;

impl Tokenize for Lower {
    fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        Bytes.encode(&text.to_lowercase(), literal)
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        Bytes.piece(id)
    }
}

#[test]
fn control_tokens_in_a_text_that_the_tokenizer_changes_are_refused() {
    let status = BeginWith::new(&["A<|end|>".to_owned()], &Lower).unwrap_err();
    assert_eq!(status.reason, "invalid_sampling");
    assert!(status.message.contains("begin_with"), "{status}");
    let plain = BeginWith::new(&["A".to_owned()], &Lower).unwrap();
    assert_eq!(
        plain.allowed(&Lower, VOCABULARY, |_| false).map(ids),
        bytes("A"),
        "text alone is taken as it stands"
    );
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab]{1,6}",
        "[a-c\u{e9}]{1,4}",
        "[ab]{0,3}".prop_map(|t| format!("{t}<|start|>ab")),
        "[ab]{1,3}".prop_map(|t| format!("{t}<|end|>")),
    ]
}

proptest! {
    #[test]
    fn whatever_the_logits_an_answer_begins_with_one_of_the_texts(
        texts in prop::collection::vec(text(), 1..6),
        words in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'c')], 0..4), 0..12),
        rows in prop::collection::vec(any::<u64>(), 40),
        temperature in prop_oneof![Just(0f32), 0.1f32..2.0],
    ) {
        let vocabulary = VOCABULARY + words.len() as u32;
        let tokenizer = Words(words);
        let mut sampler = Sampler::new((0..vocabulary).map(|id| tokenizer.piece(id).is_some()).collect(), vec![END]);
        let sampling = Sampling { temperature, top_k: 3, top_p: 0.9, repetition_penalty: 1.3, ..Sampling::default() };
        let mut begin = BeginWith::new(&texts, &tokenizer).unwrap();
        let mut history = History::new(&[], &sampling);
        let mut answer = Vec::new();
        for (position, row) in (0u32..).zip(rows) {
            let mut logits: Vec<f32> = (0..vocabulary)
                .map(|id| (crate::philox::uniform(row, id) * 80.0 - 40.0) as f32)
                .collect();
            let only = begin.allowed(&tokenizer, vocabulary, |id| *id == END);
            let id = sampler.choose(&mut logits, &sampling, &history, position, only.as_ref()).unwrap().id;
            let piece = tokenizer.piece(id).unwrap();
            history.push(id);
            begin.push(id, piece);
            answer.extend_from_slice(piece.bytes);
            if id == END {
                break;
            }
        }
        prop_assert!(
            texts.iter().any(|text| answer.starts_with(text.as_bytes())),
            "{:?} for {texts:?}", String::from_utf8_lossy(&answer)
        );
    }
}
