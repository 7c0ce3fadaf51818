//! The tokenizer: bytes, and three control tokens.

use std::ops::Range;

use engine_sdk::{Piece, Status, Tokenize};

pub const END: u32 = 256;
pub const SPACE: u32 = b' ' as u32;
pub const VOCABULARY: u32 = 259;

/// From token 256.
const CONTROL: [&str; 3] = ["<|end|>", "<|start|>", "<|message|>"];

static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

pub struct ByteTokens;

impl Tokenize for ByteTokens {
    fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        let mut ids = Vec::with_capacity(text.len());
        let mut at = 0;
        while let Some(&byte) = text.as_bytes().get(at) {
            let control = (END..).zip(CONTROL).find(|(_, spelling)| {
                let end = at + spelling.len();
                text.as_bytes()[at..].starts_with(spelling.as_bytes())
                    && !literal.iter().any(|range| range.start < end && at < range.end)
            });
            let (id, size) = control.map_or((u32::from(byte), 1), |(id, spelling)| (id, spelling.len()));
            ids.push(id);
            at += size;
        }
        Ok(ids)
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        let id = id as usize;
        match BYTES.get(id..=id) {
            Some(bytes) => Some(Piece { bytes, control: false }),
            None => CONTROL
                .get(id - BYTES.len())
                .map(|spelling| Piece { bytes: spelling.as_bytes(), control: true }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, literal: &[Range<usize>], expected: &[u32]) {
        assert_eq!(ByteTokens.encode(text, literal).expect("tokens"), expected, "{text:?} {literal:?}");
    }

    #[test]
    fn spellings_are_control_tokens_except_where_they_are_literal() {
        let spelled: Vec<u32> = CONTROL[0].bytes().map(u32::from).collect();
        check("", &[], &[]);
        check("a<|end|>", &[], &[97, END]);
        check("<|end|>", std::slice::from_ref(&(0..7)), &spelled);
        check("<|end|>", std::slice::from_ref(&(6..7)), &spelled);
        check("é", &[], &[0xC3, 0xA9]);
    }

    #[test]
    fn every_token_has_a_piece_and_nothing_else_has() {
        assert!((0..VOCABULARY).all(|id| ByteTokens.piece(id).is_some()));
        assert!([VOCABULARY, u32::MAX].iter().all(|id| ByteTokens.piece(*id).is_none()));
    }
}
