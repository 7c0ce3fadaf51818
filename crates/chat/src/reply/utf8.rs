//! Bytes to text across the borders of tokens.

use std::ops::Range;

/// Holds back at most the three bytes of an unfinished character. Invalid bytes become U+FFFD, as
/// `String::from_utf8_lossy` of the whole would have it.
#[derive(Debug, Default)]
pub(super) struct TextBuffer {
    pending: Vec<u8>,
    /// The first token that is in no piece yet.
    first_token: Option<u64>,
}

impl TextBuffer {
    /// The text that is complete with these bytes, and the tokens that start in it.
    pub(super) fn push(&mut self, token: u64, bytes: &[u8]) -> Option<(String, Range<u64>)> {
        if bytes.is_empty() {
            return None;
        }
        let first = *self.first_token.get_or_insert(token);
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        loop {
            match std::str::from_utf8(&self.pending[done..]) {
                Ok(valid) => {
                    text.push_str(valid);
                    done = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = done + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[done..valid]));
                    done = valid;
                    match error.error_len() {
                        Some(invalid) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            done += invalid;
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending.drain(..done);
        if text.is_empty() {
            return None;
        }
        self.first_token = None;
        Some((text, first..token + 1))
    }

    /// The same for bytes of several tokens.
    pub(super) fn push_range(&mut self, tokens: Range<u64>, bytes: &[u8]) -> Option<(String, Range<u64>)> {
        self.first_token.get_or_insert(tokens.start);
        self.push(tokens.end.saturating_sub(1), bytes)
    }

    /// What was held back; `next_token` is the first token behind this text.
    pub(super) fn finish(&mut self, next_token: u64) -> Option<(String, Range<u64>)> {
        let tokens = match self.first_token.take() {
            Some(first) => first..next_token,
            None => next_token..next_token,
        };
        if self.pending.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        Some((text, tokens))
    }
}
