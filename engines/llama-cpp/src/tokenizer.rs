//! Text to tokens with llama.cpp's vocabulary, and back.
//!
//! llama.cpp reads either every spelling of a control token in a text as that token or none. Here some may be and others, in
//! literal ranges, must not: so the spellings are found here, in llama.cpp's order, and llama.cpp gets the text between them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use engine_sdk::{Piece, Status, Tokenize, reason};

use crate::native::{LoadedModel, Token};

/// 16 MiB: more text than the longest context holds.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// What encodes ordinary text: llama.cpp, or a stand-in of tests.
pub(crate) trait Ordinary: Send + Sync {
    /// No spelling of a control token is read as one, and nothing is added.
    fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, Status>;
}

impl Ordinary for LoadedModel {
    fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, Status> {
        LoadedModel::encode_ordinary(self, text)
    }
}

/// The vocabulary of a loaded model.
pub(crate) struct LlamaTokenizer<O = LoadedModel> {
    ordinary: Arc<O>,
    tokens: Vec<Token>,
    /// Control and added tokens, the longest spelling first, which is the order in which they are looked for.
    spelled: Vec<u32>,
    /// The token of each single byte that has one.
    bytes: HashMap<u8, u32>,
    /// What goes before and behind a text that is embedded.
    around: (Vec<u32>, Vec<u32>),
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Range<usize>),
    Token(u32),
}

impl LlamaTokenizer {
    /// `control`: of each token, whether the file calls it a control token.
    ///
    /// # Errors
    /// `UNSUPPORTED` for a model without a vocabulary.
    pub(crate) fn new(model: Arc<LoadedModel>, control: &[bool]) -> Result<LlamaTokenizer, Status> {
        let mut tokens = model.tokens();
        tokens.iter_mut().zip(control).for_each(|(token, control)| token.control |= control);
        if tokens.is_empty() {
            return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, "the model has no vocabulary"));
        }
        Ok(LlamaTokenizer::over(model, tokens))
    }

    /// Puts around a text that is embedded what the vocabulary says.
    ///
    /// # Errors
    /// Where llama.cpp cannot tokenize a letter.
    pub(crate) fn with_around(mut self) -> Result<LlamaTokenizer, Status> {
        self.around = self.ordinary.around()?;
        Ok(self)
    }
}

impl<O: Ordinary> LlamaTokenizer<O> {
    fn over(ordinary: Arc<O>, tokens: Vec<Token>) -> LlamaTokenizer<O> {
        let ids = || (0u32..).zip(&tokens);
        let mut spelled: Vec<u32> =
            ids().filter(|(_, t)| (t.control || t.added) && !t.bytes.is_empty()).map(|(id, _)| id).collect();
        spelled.sort_by_key(|id| std::cmp::Reverse(tokens[*id as usize].bytes.len()));
        let mut bytes = HashMap::new();
        for (id, token) in ids() {
            if let ([byte], false, false) = (token.bytes.as_slice(), token.control, token.added) {
                bytes.entry(*byte).or_insert(id);
            }
        }
        LlamaTokenizer { ordinary, tokens, spelled, bytes, around: Default::default() }
    }

    /// Ids of the tokens that end an answer.
    pub(crate) fn end_tokens(&self) -> Vec<u32> {
        (0..).zip(&self.tokens).filter(|(_, token)| token.ends).map(|(id, _)| id).collect()
    }

    /// Whether text of a user must never become this token: a control token, or a marker that the file does not call one.
    /// What is left are ordinary additions such as runs of spaces.
    fn is_reserved(&self, id: u32) -> bool {
        let Some(token) = self.tokens.get(id as usize) else { return false };
        let marker = |open: u8, close: u8| {
            token.bytes.first() == Some(&open) && token.bytes.last() == Some(&close) && token.bytes.len() > 1
        };
        token.control || (token.added && (marker(b'<', b'>') || marker(b'[', b']')))
    }

    /// Cuts the spellings of control and added tokens out of a text, as llama.cpp does: one token after the other, each
    /// from left to right in what the ones before have left.
    fn parts(&self, text: &str, literal: &[Range<usize>]) -> Vec<Part> {
        let mut parts = vec![Part::Text(0..text.len())];
        for &id in &self.spelled {
            let token = &self.tokens[id as usize];
            // A spelling that is no text is in none.
            let Ok(spelling) = std::str::from_utf8(&token.bytes) else { continue };
            if !text.contains(spelling) {
                continue;
            }
            let reserved = self.is_reserved(id);
            let mut cut = Vec::with_capacity(parts.len());
            for part in parts {
                match part {
                    Part::Text(range) => {
                        cut_out(text, range, (id, token, spelling), literal, reserved, &mut cut)
                    }
                    token @ Part::Token(_) => cut.push(token),
                }
            }
            parts = cut;
        }
        parts
    }

    /// The tokens of ordinary text, in which no reserved token may be: llama.cpp finds added tokens in any text. Such a one
    /// becomes the tokens of its bytes.
    fn encode_text(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Status> {
        for id in self.ordinary.encode_ordinary(text)? {
            let token = self.tokens.get(id as usize).filter(|_| self.is_reserved(id));
            // Whatever is unknown to a vocabulary without bytes becomes its token for that, which spells nothing.
            let Some(token) = token.filter(|token| token.added) else {
                out.push(id);
                continue;
            };
            for byte in &token.bytes {
                let id = self.bytes.get(byte).ok_or_else(|| {
                    let spelling = String::from_utf8_lossy(&token.bytes);
                    let message =
                        format!("the text {spelling:?} is a control token and cannot be written otherwise");
                    Status::unsupported(reason::INVALID_PROMPT, message).with_param("text")
                })?;
                out.push(*id);
            }
        }
        Ok(())
    }
}

/// Cuts one token out of a part of the text. A reserved one is not found where its spelling touches a literal range, and takes
/// no literal white space along.
fn cut_out(
    text: &str,
    range: Range<usize>,
    (id, token, spelling): (u32, &Token, &str),
    literal: &[Range<usize>],
    reserved: bool,
    out: &mut Vec<Part>,
) {
    let is_literal = |range: Range<usize>| {
        let first = literal.partition_point(|l| l.end <= range.start);
        literal.get(first).is_some_and(|l| l.start < range.end)
    };
    let mut from = range.start;
    let mut search = range.start;
    while let Some(found) = text[search..range.end].find(spelling) {
        let (mut start, mut end) = (search + found, search + found + spelling.len());
        if reserved && is_literal(start..end) {
            // Spellings can overlap: the next may begin behind the first character.
            search = start + spelling.chars().next().map_or(1, char::len_utf8);
            continue;
        }
        if token.strips_left {
            let kept = text[from..start].trim_end();
            let stripped = from + kept.len();
            if !is_literal(stripped..start) {
                start = stripped;
            }
        }
        if token.strips_right {
            let rest = &text[end..range.end];
            let stripped = range.end - rest.trim_start().len();
            if !is_literal(end..stripped) {
                end = stripped;
            }
        }
        if from < start {
            out.push(Part::Text(from..start));
        }
        out.push(Part::Token(id));
        from = end;
        search = end;
    }
    if from < range.end {
        out.push(Part::Text(from..range.end));
    }
}

impl<O: Ordinary> Tokenize for LlamaTokenizer<O> {
    fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        if text.len() > TEXT_BYTES_MAX {
            let message = format!("the text has {} bytes, more than {TEXT_BYTES_MAX}", text.len());
            return Err(Status::unsupported(reason::INVALID_PROMPT, message)
                .with_param("text")
                .with_numbers(text.len() as u64, TEXT_BYTES_MAX as u64));
        }
        check_literal(text, literal)?;
        // An empty range holds no byte; without it the search may go by range ends alone.
        let literal: Vec<Range<usize>> = literal.iter().filter(|l| !l.is_empty()).cloned().collect();
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        if text.is_empty() {
            return Ok(ids);
        }
        for part in self.parts(text, &literal) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(range) => self.encode_text(&text[range], &mut ids)?,
            }
        }
        Ok(ids)
    }

    fn encode_to_embed(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        let (before, behind) = &self.around;
        let ids = self.encode(text, literal)?;
        // Whoever has written it is not given it twice.
        let before = if ids.starts_with(before) { &[] } else { before.as_slice() };
        let behind = if ids.ends_with(behind) { &[] } else { behind.as_slice() };
        Ok([before, &ids, behind].concat())
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        let token = self.tokens.get(id as usize)?;
        Some(Piece { bytes: &token.bytes, control: token.control })
    }
}

/// Ranges must lie in the text, between characters, in order and apart.
fn check_literal(text: &str, literal: &[Range<usize>]) -> Result<(), Status> {
    let mut before = 0;
    for range in literal {
        let sound = range.start >= before
            && range.start <= range.end
            && text.is_char_boundary(range.start)
            && text.is_char_boundary(range.end);
        if !sound {
            let message = format!(
                "literal range {}..{} is not a range of characters of the {} bytes of text, after byte {before}",
                range.start,
                range.end,
                text.len()
            );
            return Err(Status::unsupported(reason::INVALID_PROMPT, message).with_param("literal"));
        }
        before = range.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
