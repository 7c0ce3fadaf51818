//! What each token id stands for, as bytes.

use serde_json::Value;

use super::file::ModelFlags;
use crate::Piece;

/// How the vocabulary of a tokenizer spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Every byte is one printable character (GPT-2's table).
    ByteLevel,
    /// Text with a sign for the space (`▁`), and `<0x0A>` for bytes that have no piece.
    SentencePiece { space: Option<char>, byte_fallback: bool },
}

impl Form {
    /// Reads the form off the decoder, which is the part of `tokenizer.json` that says it.
    pub fn of(
        decoder: Option<&Value>,
        pre_tokenizer: Option<&Value>,
        model: &ModelFlags,
    ) -> Result<Form, String> {
        let mut form =
            Form::SentencePiece { space: None, byte_fallback: model.byte_fallback.unwrap_or(false) };
        if steps(decoder, "decoders")
            .chain(steps(pre_tokenizer, "pretokenizers"))
            .any(|s| kind(s) == "ByteLevel")
        {
            return Ok(Form::ByteLevel);
        }
        let Form::SentencePiece { space, byte_fallback } = &mut form else { return Ok(form) };
        for step in steps(decoder, "decoders") {
            match kind(step) {
                "Metaspace" => *space = Some(sign(step.get("replacement")).unwrap_or('▁')),
                "Replace" if step.get("content").and_then(Value::as_str) == Some(" ") => {
                    *space = sign(step.get("pattern").and_then(|p| p.get("String")));
                }
                "ByteFallback" => *byte_fallback = true,
                // These act on the beginning of a whole text or join pieces: nothing that one token is.
                "Fuse" | "Strip" | "Replace" => {}
                other => {
                    return Err(format!("decoder {other:?} has no way from a single token to its bytes"));
                }
            }
        }
        Ok(form)
    }

    /// The bytes of a piece of the vocabulary.
    pub fn bytes(self, piece: &str) -> Vec<u8> {
        match self {
            Form::ByteLevel => piece
                .chars()
                .map(byte_of)
                .collect::<Option<Vec<u8>>>()
                // A piece with a character outside the table was put there as plain text.
                .unwrap_or_else(|| piece.as_bytes().to_vec()),
            Form::SentencePiece { space, byte_fallback } => {
                if let Some(byte) = byte_fallback.then(|| fallback_byte(piece)).flatten() {
                    return vec![byte];
                }
                match space {
                    Some(space) => piece.replace(space, " ").into_bytes(),
                    None => piece.as_bytes().to_vec(),
                }
            }
        }
    }
}

/// The parts of a `Sequence`, or the one part there is.
fn steps<'a>(part: Option<&'a Value>, list: &'static str) -> impl Iterator<Item = &'a Value> {
    let part = part.filter(|p| !p.is_null());
    let parts = part.and_then(|p| p.get(list)).and_then(Value::as_array);
    let alone = if parts.is_none() { part } else { None };
    parts.into_iter().flatten().chain(alone)
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn sign(text: Option<&Value>) -> Option<char> {
    let mut chars = text?.as_str()?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// `<0x0A>` is the byte 10.
fn fallback_byte(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// The byte a character of a byte-level vocabulary stands for. Printable Latin-1 characters stand for themselves; the
/// 68 other bytes, in order, are the characters from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if code < 0x100 {
        return u8::try_from(code).ok().filter(|&byte| itself(byte));
    }
    let rank = usize::try_from(code - 0x100).ok()?;
    (0..=255).filter(|&byte| !itself(byte)).nth(rank)
}

/// The bytes of all tokens, in one allocation.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// By id; `start == u32::MAX`: there is no such token.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    length: u32,
    control: bool,
}

impl Pieces {
    /// `tokens` are (id below `len`, bytes, control); a later one replaces an earlier one of the same id.
    pub fn new(len: u32, tokens: Vec<(u32, Vec<u8>, bool)>) -> Result<Pieces, String> {
        let total: usize = tokens.iter().map(|t| t.1.len()).sum();
        let mut bytes = Vec::with_capacity(total);
        let mut entries = vec![Entry { start: u32::MAX, length: 0, control: false }; len as usize];
        for (id, piece, control) in tokens {
            let place = u32::try_from(bytes.len()).ok().zip(u32::try_from(piece.len()).ok());
            let Some((start, length)) = place.filter(|p| p.0 < u32::MAX) else {
                return Err("its tokens have more than 4 GiB of text".to_owned());
            };
            bytes.extend_from_slice(&piece);
            entries[id as usize] = Entry { start, length, control };
        }
        Ok(Pieces { bytes, entries })
    }

    pub fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("it was made from a u32")
    }

    pub fn get(&self, id: u32) -> Option<Piece<'_>> {
        let entry = self.entries.get(id as usize).filter(|e| e.start != u32::MAX)?;
        let start = entry.start as usize;
        Some(Piece { bytes: &self.bytes[start..start + entry.length as usize], control: entry.control })
    }
}
