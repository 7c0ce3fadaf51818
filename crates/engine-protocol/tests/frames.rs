//! Frames: whatever is cut however comes out whole, and hostile bytes cost nothing and break nothing.

use engine_protocol::{
    Event, EventKind, FRAME_BYTES_MAX, FrameError, FrameReader, Hello, Prompt, Sampling, Status, StatusCode,
    Submit, Task, ToNode, ToWorker, Token, TokenLogprob, encode_frame,
};
use proptest::prelude::*;

fn token() -> impl Strategy<Value = EventKind> {
    let logprob = (any::<u32>(), -50f32..0.0, prop::collection::vec(any::<u8>(), 0..9))
        .prop_map(|(id, logprob, bytes)| TokenLogprob { id, logprob, bytes });
    (
        any::<u32>(),
        prop::collection::vec(any::<u8>(), 0..40),
        any::<bool>(),
        prop::collection::vec(logprob, 0..4),
    )
        .prop_map(|(id, bytes, control, logprobs)| EventKind::Token(Token { id, bytes, control, logprobs }))
}

fn message() -> impl Strategy<Value = ToNode> {
    let kind = prop_oneof![
        token(),
        (any::<u32>(), any::<u32>())
            .prop_map(|(prompt_tokens, cached_tokens)| EventKind::Started { prompt_tokens, cached_tokens }),
        ("[a-z_]{0,20}", ".{0,50}", any::<u64>(), any::<u64>()).prop_map(|(reason, message, a, b)| {
            EventKind::Failed { status: Status::new(StatusCode::OomRam, reason, message).with_numbers(a, b) }
        }),
    ];
    let event = (any::<u64>(), kind).prop_map(|(sequence, kind)| Event { sequence, kind });
    prop_oneof![
        prop::collection::vec(event, 0..6).prop_map(ToNode::Events),
        (any::<u64>(), prop::collection::vec(any::<u32>(), 0..300))
            .prop_map(|(call, ids)| ToNode::Tokenized { call, ids }),
    ]
}

/// Everything the reader has to give.
fn drain(reader: &mut FrameReader) -> Vec<ToNode> {
    std::iter::from_fn(|| reader.next().expect("whole frames")).collect()
}

proptest! {
    #[test]
    fn messages_survive_any_cut(messages in prop::collection::vec(message(), 0..12), cuts in prop::collection::vec(1usize..97, 1..40)) {
        let mut bytes = Vec::new();
        for m in &messages {
            encode_frame(m, &mut bytes).expect("small messages");
        }
        let mut reader = FrameReader::default();
        let mut out = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (part, after) = rest.split_at((*cut).min(rest.len()));
            reader.extend(part);
            out.extend(drain(&mut reader));
            rest = after;
        }
        prop_assert_eq!(out, messages);
    }

    #[test]
    fn any_bytes_end_in_a_message_an_error_or_a_wish_for_more(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut reader = FrameReader::default();
        reader.extend(&bytes);
        // Each message takes at least its length word, so this ends.
        while let Ok(Some(_)) = reader.next::<ToWorker>() {}
    }

    #[test]
    fn a_body_changed_in_one_place_never_panics(m in message(), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut bytes = Vec::new();
        encode_frame(&m, &mut bytes).expect("a small message");
        let at = 4 + at.index(bytes.len() - 4);
        bytes[at] ^= flip;
        let mut reader = FrameReader::default();
        reader.extend(&bytes);
        let _ = reader.next::<ToNode>();
    }

    #[test]
    fn hello_comes_back(protocol_version in any::<u32>(), process_id in any::<u32>()) {
        let hello = Hello { protocol_version, process_id };
        prop_assert_eq!(Hello::from_bytes(hello.to_bytes()).expect("our own hello"), hello);
    }
}

#[test]
fn a_length_over_the_limit_is_refused_before_a_byte_of_it_is_held() {
    let mut reader = FrameReader::default();
    reader.extend(&u32::MAX.to_le_bytes());
    assert!(matches!(reader.next::<ToWorker>(), Err(FrameError::TooLong(n)) if n == u32::MAX as usize));
}

#[test]
fn a_message_over_the_limit_is_not_sent_and_leaves_the_buffer_as_it_was() {
    let mut out = vec![1, 2, 3];
    let text = "x".repeat(FRAME_BYTES_MAX + 1);
    let error = encode_frame(&ToWorker::Tokenize { call: 1, text, literal: Vec::new() }, &mut out);
    assert!(matches!(error, Err(FrameError::TooLong(_))));
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn a_list_that_claims_more_than_its_frame_holds_is_refused() {
    // Variant 4 of ToNode is `Tokenized`: call 0, then a list that says it has 2^35 entries.
    let body = [4u8, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
    let mut reader = FrameReader::default();
    reader.extend(&(body.len() as u32).to_le_bytes());
    reader.extend(&body);
    assert!(matches!(reader.next::<ToNode>(), Err(FrameError::Decode { length: 8, .. })));
}

#[test]
fn trailing_bytes_in_a_frame_are_an_error() {
    let mut bytes = Vec::new();
    encode_frame(&ToWorker::Shutdown, &mut bytes).expect("a small message");
    bytes.push(0);
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    let mut reader = FrameReader::default();
    reader.extend(&bytes);
    assert!(matches!(reader.next::<ToWorker>(), Err(FrameError::Trailing { length: 2, left: 1 })));
}

#[test]
fn something_else_than_hello_is_named() {
    let error = Hello::from_bytes(*b"GET / HTTP/1.1\r\n").expect_err("not a hello");
    assert!(error.to_string().contains("did not say hello"), "{error}");
}

#[test]
fn a_submit_with_everything_survives() {
    let submit = Submit {
        sequence: 7,
        request_id: "req-1".into(),
        prompt: Prompt::Tokens(vec![1, 2, 3]),
        task: Task::Generate(Box::new(Sampling {
            stop: vec!["\n".into()],
            logprobs: Some(3),
            ..Sampling::default()
        })),
        cache_salt: 9,
    };
    let mut bytes = Vec::new();
    encode_frame(&ToWorker::Submit(Box::new(submit.clone())), &mut bytes).expect("a small message");
    let mut reader = FrameReader::default();
    reader.extend(&bytes);
    assert_eq!(reader.next().expect("whole"), Some(ToWorker::Submit(Box::new(submit))));
}
