//! Bytes that come in pieces, given out as whole characters.

/// Holds back the bytes of a character that is not complete yet.
#[derive(Debug, Default)]
pub struct Utf8Pieces {
    /// The beginning of one character, 3 bytes at most.
    held: Vec<u8>,
}

impl Utf8Pieces {
    /// The text that is whole now. Bytes that no continuation can make a character become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (whole, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(whole));
                    rest = after;
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[wrong..];
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// What is left when nothing more comes.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.held).is_empty() {
            String::new()
        } else {
            char::REPLACEMENT_CHARACTER.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(parts: &[&[u8]]) -> Vec<String> {
        let mut pieces = Utf8Pieces::default();
        let mut out: Vec<String> = parts.iter().map(|p| pieces.push(p)).collect();
        out.push(pieces.finish());
        out
    }

    #[test]
    fn characters_come_whole_however_they_are_cut() {
        assert_eq!(pieces(&[b"a\xf0\x9f", b"\x98", b"\x80b"]), ["a", "", "😀b", ""]);
        let text = "naïve 日本 😀".as_bytes();
        for size in 1..=text.len() {
            let parts: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(pieces(&parts).concat(), "naïve 日本 😀");
        }
    }

    #[test]
    fn what_is_no_character_is_replaced_once() {
        assert_eq!(pieces(&[b"a\xffb"]), ["a\u{fffd}b", ""]);
        assert_eq!(pieces(&[b"\xe6\x97", b"x"]), ["", "\u{fffd}x", ""]);
        assert_eq!(pieces(&[b"\xe6\x97"]), ["", "\u{fffd}"]);
    }
}
