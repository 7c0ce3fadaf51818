//! Replies of models whose text is the answer: every token is content, except control tokens.

use super::utf8::TextBuffer;
use super::{Delta, DeltaKind};

#[derive(Debug, Default)]
pub(super) struct Plain {
    text: TextBuffer,
    next_token: u64,
}

impl Plain {
    pub(super) fn push(&mut self, token: u64, bytes: &[u8], is_control: bool) -> Vec<Delta> {
        self.next_token = token + 1;
        if is_control {
            return Vec::new();
        }
        let piece = self.text.push(token, bytes);
        piece.map(|(text, tokens)| Delta { kind: DeltaKind::Content(text), tokens }).into_iter().collect()
    }

    pub(super) fn finish(&mut self) -> Vec<Delta> {
        let piece = self.text.finish(self.next_token);
        piece.map(|(text, tokens)| Delta { kind: DeltaKind::Content(text), tokens }).into_iter().collect()
    }
}
