//! Reads the metadata at the head of a GGUF file: what the model is, its chat template, its special tokens.
//!
//! Little-endian throughout: the magic `GGUF`, a version, the numbers of tensors and of metadata entries, then the
//! entries: a key, a type, a value. The table of tensors and the weights follow; they are the engine's business. Format:
//! `docs/gguf.md` of the ggml project, versions 2 and 3.
//!
//! Vocabularies stand in the metadata, so a head may have tens of megabytes. Values borrow from the bytes that were
//! given; arrays are walked when they are looked at.

use std::collections::BTreeMap;

mod begin;
mod model;
mod write;

pub use model::{GgufModel, SpecialToken};
pub use write::{ALIGNMENT, HeadWriter, WrittenTensor};

/// Longest metadata that is read, in bytes. The largest published vocabularies take about 20 MB with their merges.
pub const HEAD_BYTES_MAX: u64 = 128 << 20;
/// Metadata entries at most; published files have some forty.
pub const ENTRIES_MAX: u64 = 4096;
/// Longest key, in bytes; the format's own bound.
pub const KEY_BYTES_MAX: u64 = 65_535;
/// Elements of an array at most.
pub const ELEMENTS_MAX: u64 = 16 << 20;

const MAGIC: [u8; 4] = *b"GGUF";
/// Version 1 had 32-bit counts and was in use for weeks only.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;

/// One value. Integers of every width are widened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(Array<'a>),
}

/// Equally typed values, checked to be whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    kind: Kind,
    count: u64,
    bytes: &'a [u8],
}

/// The metadata of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata<'a> {
    pub version: u32,
    pub tensors: u64,
    pub values: BTreeMap<&'a str, Value<'a>>,
}

#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// More of the file has to be read. Not an answer about the file.
    #[error("{file}: the metadata goes on behind byte {given}")]
    Incomplete { file: String, given: u64 },
    #[error("{file}: ends inside its metadata, after {bytes} bytes: truncated?")]
    Truncated { file: String, bytes: u64 },
    #[error("{file}: does not begin with GGUF")]
    Magic { file: String },
    #[error("{file}: GGUF version {version}; versions 2 and 3 are read{}", if .version.swap_bytes() <= 3 { " (the file is big-endian)" } else { "" })]
    Version { file: String, version: u32 },
    #[error("{file}: {what} is {number}; at most {max} are read")]
    TooLarge { file: String, what: String, number: u64, max: u64 },
    #[error("{file}: {what} is not UTF-8")]
    NotUtf8 { file: String, what: String, source: std::str::Utf8Error },
    #[error("{file}: metadata {key} has the unknown type {kind}")]
    Kind { file: String, key: String, kind: u32 },
    #[error("{file}: metadata {key} is there twice")]
    Repeated { file: String, key: String },
    #[error("{file}: metadata {key} {problem}")]
    Field { file: String, key: String, problem: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unsigned(u8),
    Signed(u8),
    /// Bytes of it: 4 or 8.
    Float(u8),
    Bool,
    Text,
    Array,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        Some(match number {
            0 => Kind::Unsigned(1),
            1 => Kind::Signed(1),
            2 => Kind::Unsigned(2),
            3 => Kind::Signed(2),
            4 => Kind::Unsigned(4),
            5 => Kind::Signed(4),
            6 => Kind::Float(4),
            7 => Kind::Bool,
            8 => Kind::Text,
            9 => Kind::Array,
            10 => Kind::Unsigned(8),
            11 => Kind::Signed(8),
            12 => Kind::Float(8),
            _ => return None,
        })
    }
}

impl<'a> Metadata<'a> {
    /// Reads the metadata of `file` (a name for messages) from `head`, the file's first bytes. `file_bytes` is the
    /// file's length.
    ///
    /// # Errors
    /// [`GgufError::Incomplete`] when `head` is not the whole file and ends inside the metadata: come again with more of
    /// it, up to [`HEAD_BYTES_MAX`]. Everything else is about the file.
    pub fn parse(file: &str, head: &'a [u8], file_bytes: u64) -> Result<Metadata<'a>, GgufError> {
        let mut reader = Reader { file, rest: head, given: head.len() as u64, file_bytes };
        if reader.bytes(MAGIC.len() as u64)? != MAGIC {
            return Err(GgufError::Magic { file: file.to_owned() });
        }
        let version = reader.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(GgufError::Version { file: file.to_owned(), version });
        }
        let tensors = reader.u64()?;
        let entries = reader.u64()?;
        reader.at_most("the number of metadata entries", entries, ENTRIES_MAX)?;
        let mut values = BTreeMap::new();
        for _ in 0..entries {
            let length = reader.u64()?;
            reader.at_most("the length of a key", length, KEY_BYTES_MAX)?;
            let key = reader.text(length, "a key")?;
            let kind = reader.kind(key)?;
            let value = reader.value(key, kind)?;
            if values.insert(key, value).is_some() {
                return Err(GgufError::Repeated { file: file.to_owned(), key: key.to_owned() });
            }
        }
        Ok(Metadata { version, tensors, values })
    }
}

impl<'a> Array<'a> {
    pub fn len(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The text at `index`; nothing in an array of another kind, behind its end, or where it is not UTF-8.
    pub fn text(&self, index: u64) -> Option<&'a str> {
        self.texts().nth(usize::try_from(index).ok()?)?
    }

    /// Every text, nothing for one that is not UTF-8: some vocabularies have parts of characters as tokens. Empty for an
    /// array of another kind.
    pub fn texts(&self) -> impl Iterator<Item = Option<&'a str>> + use<'a> {
        let mut rest = if self.kind == Kind::Text { self.bytes } else { &[] };
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk()?;
            let (text, behind) =
                behind.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            rest = behind;
            Some(std::str::from_utf8(text).ok())
        })
    }

    /// Every whole number, as far as it fits. Empty for an array of another kind.
    pub fn integers(&self) -> Vec<i64> {
        let (bytes, signed) = match self.kind {
            Kind::Unsigned(bytes) => (bytes, false),
            Kind::Signed(bytes) => (bytes, true),
            _ => return Vec::new(),
        };
        self.bytes.chunks_exact(bytes.into()).map(|chunk| wide(chunk, signed)).collect()
    }
}

/// A little-endian number of at most 8 bytes.
fn wide(bytes: &[u8], signed: bool) -> i64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unused = 64 - 8 * bytes.len();
    let number = u64::from_le_bytes(wide);
    if signed { (number << unused).cast_signed() >> unused } else { number.cast_signed() }
}

struct Reader<'f, 'a> {
    file: &'f str,
    rest: &'a [u8],
    /// Bytes that were given in all.
    given: u64,
    file_bytes: u64,
}

impl<'a> Reader<'_, 'a> {
    fn bytes(&mut self, count: u64) -> Result<&'a [u8], GgufError> {
        let split = usize::try_from(count).ok().and_then(|count| self.rest.split_at_checked(count));
        let Some((bytes, rest)) = split else {
            let file = self.file.to_owned();
            let needed = (self.given - self.rest.len() as u64).saturating_add(count);
            return Err(if needed > self.file_bytes {
                GgufError::Truncated { file, bytes: self.file_bytes }
            } else if needed > HEAD_BYTES_MAX {
                let what = "the length of the metadata".to_owned();
                GgufError::TooLarge { file, what, number: needed, max: HEAD_BYTES_MAX }
            } else {
                GgufError::Incomplete { file, given: self.given }
            });
        };
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N as u64)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, length: u64, what: &str) -> Result<&'a str, GgufError> {
        std::str::from_utf8(self.bytes(length)?).map_err(|source| GgufError::NotUtf8 {
            file: self.file.to_owned(),
            what: what.to_owned(),
            source,
        })
    }

    fn at_most(&self, what: &str, number: u64, max: u64) -> Result<(), GgufError> {
        if number <= max {
            return Ok(());
        }
        Err(GgufError::TooLarge { file: self.file.to_owned(), what: what.to_owned(), number, max })
    }

    fn kind(&mut self, key: &str) -> Result<Kind, GgufError> {
        let number = self.u32()?;
        let (file, key) = (|| self.file.to_owned(), || key.to_owned());
        Kind::of(number).ok_or_else(|| GgufError::Kind { file: file(), key: key(), kind: number })
    }

    fn value(&mut self, key: &str, kind: Kind) -> Result<Value<'a>, GgufError> {
        Ok(match kind {
            Kind::Unsigned(bytes) => Value::Unsigned(wide(self.bytes(bytes.into())?, false).cast_unsigned()),
            Kind::Signed(bytes) => Value::Signed(wide(self.bytes(bytes.into())?, true)),
            Kind::Float(4) => Value::Float(f32::from_le_bytes(self.array()?).into()),
            Kind::Float(_) => Value::Float(f64::from_le_bytes(self.array()?)),
            Kind::Bool => Value::Bool(self.array::<1>()? != [0]),
            Kind::Text => {
                let length = self.u64()?;
                Value::Text(self.text(length, key)?)
            }
            Kind::Array => {
                let kind = self.kind(key)?;
                let count = self.u64()?;
                self.at_most(&format!("the number of elements of {key}"), count, ELEMENTS_MAX)?;
                Value::Array(Array { kind, count, bytes: self.elements(key, kind, count)? })
            }
        })
    }

    /// The bytes of an array's elements.
    fn elements(&mut self, key: &str, kind: Kind, count: u64) -> Result<&'a [u8], GgufError> {
        let size = match kind {
            Kind::Unsigned(bytes) | Kind::Signed(bytes) | Kind::Float(bytes) => bytes,
            Kind::Bool => 1,
            Kind::Text => {
                let start = self.rest;
                for _ in 0..count {
                    let length = self.u64()?;
                    self.bytes(length)?;
                }
                return Ok(&start[..start.len() - self.rest.len()]);
            }
            Kind::Array => {
                let problem = "is an array of arrays".to_owned();
                return Err(GgufError::Field { file: self.file.to_owned(), key: key.to_owned(), problem });
            }
        };
        // At most 2^24 elements of 8 bytes.
        self.bytes(count * u64::from(size))
    }
}

#[cfg(test)]
mod tests;
