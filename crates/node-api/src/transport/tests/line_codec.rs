//! Lines survive any way of being cut, and broken ones are refused.

use proptest::prelude::*;

use crate::transport::{LineDecoder, LineError, encode_line};
use crate::{GenerateEvent, LINE_BYTES_MAX, Token, TokenBytes};

fn token(id: u32, bytes: Vec<u8>) -> GenerateEvent {
    GenerateEvent::Token(Token { id, bytes: TokenBytes::from(bytes), control: false, logprobs: Vec::new() })
}

proptest! {
    #[test]
    fn lines_survive_any_cut(tokens in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..12)), 0..8),
                             cuts in prop::collection::vec(1usize..20, 1..40)) {
        let events: Vec<_> = tokens.into_iter().map(|(id, bytes)| token(id, bytes)).collect();
        let wire: Vec<u8> = events.iter().flat_map(|e| encode_line(e).unwrap()).collect();
        let mut decoder = LineDecoder::default();
        let mut got = Vec::new();
        let mut rest = wire.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (head, tail) = rest.split_at((*cut).min(rest.len()));
            decoder.extend(head);
            while let Some(event) = decoder.next::<GenerateEvent>().unwrap() {
                got.push(event);
            }
            rest = tail;
        }
        prop_assert!(decoder.finish().is_ok());
        prop_assert_eq!(got, events);
    }
}

#[test]
fn token_bytes_that_are_no_text_arrive_whole() {
    let bytes = vec![0xe3, 0x81];
    let line = encode_line(&token(7, bytes.clone())).unwrap();
    let mut decoder = LineDecoder::default();
    decoder.extend(&line);
    let Some(GenerateEvent::Token(token)) = decoder.next().unwrap() else { panic!("a token went in") };
    assert_eq!(token.bytes.to_vec(), bytes);
}

#[test]
fn a_line_without_end_is_refused_at_the_limit() {
    let mut decoder = LineDecoder::default();
    let chunk = vec![b'1'; LINE_BYTES_MAX / 4];
    for _ in 0..3 {
        decoder.extend(&chunk);
        assert!(decoder.next::<u64>().unwrap().is_none());
    }
    decoder.extend(&chunk);
    assert!(matches!(decoder.next::<u64>(), Err(LineError::TooLong)));
}

#[test]
fn what_is_no_json_is_refused() {
    let mut decoder = LineDecoder::default();
    decoder.extend(b"{\"event\":\"token\"\n");
    assert!(matches!(decoder.next::<GenerateEvent>(), Err(LineError::Parse { length: 16, .. })));
}

#[test]
fn an_end_in_the_middle_of_a_line_is_seen() {
    let mut decoder = LineDecoder::default();
    decoder.extend(b"1\n2");
    assert_eq!(decoder.next::<u64>().unwrap(), Some(1));
    assert_eq!(decoder.next::<u64>().unwrap(), None);
    assert!(matches!(decoder.finish(), Err(LineError::Cut(1))));
}

#[test]
fn empty_lines_are_passed_over_and_unknown_fields_too() {
    let mut decoder = LineDecoder::default();
    decoder.extend(b"\n \r\n{\"event\":\"loading\",\"progress\":0.5,\"later\":1}\n");
    assert_eq!(decoder.next::<GenerateEvent>().unwrap(), Some(GenerateEvent::Loading { progress: 0.5 }));
}
