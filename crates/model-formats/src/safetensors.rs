//! Reads the header of a safetensors file: which tensors it has, of what type and shape, and where.
//!
//! A file is an 8-byte little-endian length N, N bytes of JSON, then the data. Every tensor's bytes follow the one
//! before without a hole, so a header that passes describes each byte of the file exactly once.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::Deserialize;

use crate::json;

/// Longest JSON part, in bytes; the same bound as the reference implementation's. The largest published gpt-oss
/// header has 83 kB.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Tensors in one file at most.
pub const TENSORS_MAX: usize = 1_000_000;
/// Dimensions of a tensor at most.
pub const DIMENSIONS_MAX: usize = 8;
/// Longest tensor name, in bytes.
pub const TENSOR_NAME_BYTES_MAX: usize = 512;
/// Bytes before the JSON.
pub const LENGTH_BYTES: u64 = 8;

/// Element types of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[expect(non_camel_case_types, reason = "the format spells them so")]
pub enum Dtype {
    BOOL,
    F4,
    F6_E2M3,
    F6_E3M2,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    /// Bits of one element.
    pub fn bits(self) -> u64 {
        match self {
            Dtype::F4 => 4,
            Dtype::F6_E2M3 | Dtype::F6_E3M2 => 6,
            Dtype::BOOL | Dtype::U8 | Dtype::I8 | Dtype::F8_E5M2 | Dtype::F8_E4M3 | Dtype::F8_E8M0 => 8,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::BF16 => 16,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 32,
            Dtype::C64 | Dtype::F64 | Dtype::I64 | Dtype::U64 => 64,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    /// Bytes of the file, from its start. Inside the file, and exactly as many as type and shape need.
    pub range: Range<u64>,
}

impl Tensor {
    pub fn byte_len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A header that has passed every check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    pub tensors: BTreeMap<String, Tensor>,
    /// `__metadata__`, in file order.
    pub metadata: Vec<(String, String)>,
}

/// Why a file is not accepted. Every variant names the file; those about a tensor name it too.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("{file}: {bytes} bytes are too short for a safetensors file")]
    TooShort { file: String, bytes: u64 },
    #[error("{file}: the header says it has {header} bytes; at most {HEADER_BYTES_MAX} are read")]
    HeaderTooLarge { file: String, header: u64 },
    #[error("{file}: truncated, the header says it has {header} bytes and the file has {file_bytes}")]
    HeaderTruncated { file: String, header: u64, file_bytes: u64 },
    #[error("{file}: the header is not UTF-8")]
    NotUtf8 { file: String, source: std::str::Utf8Error },
    #[error("{file}: the header is not a JSON object of tensors")]
    NotJson { file: String, source: serde_json::Error },
    #[error("{file}: __metadata__ is not an object of strings")]
    Metadata { file: String, source: serde_json::Error },
    #[error(
        "{file}: a tensor name is empty, longer than {TENSOR_NAME_BYTES_MAX} bytes or has control characters"
    )]
    TensorName { file: String },
    #[error("{file}: tensor {tensor}: not {{dtype, shape, data_offsets}} of a known dtype")]
    TensorEntry { file: String, tensor: String, source: serde_json::Error },
    #[error("{file}: tensor {tensor}: {dimensions} dimensions; at most {DIMENSIONS_MAX} are read")]
    TooManyDimensions { file: String, tensor: String, dimensions: usize },
    #[error("{file}: tensor {tensor}: shape {shape:?} has more bytes than a file can")]
    ShapeOverflow { file: String, tensor: String, shape: Vec<u64> },
    #[error("{file}: tensor {tensor}: offsets {begin}..{end} run backwards")]
    OffsetsReversed { file: String, tensor: String, begin: u64, end: u64 },
    #[error(
        "{file}: tensor {tensor}: {dtype} {shape:?} needs {needed} bytes, its offsets {begin}..{end} give {given}"
    )]
    SizeMismatch {
        file: String,
        tensor: String,
        dtype: Dtype,
        shape: Vec<u64>,
        needed: u64,
        given: u64,
        begin: u64,
        end: u64,
    },
    #[error("{file}: tensor {tensor}: bytes {begin}..{end} of the data overlap tensor {other}")]
    Overlap { file: String, tensor: String, other: String, begin: u64, end: u64 },
    #[error("{file}: tensor {tensor}: bytes {expected}..{begin} before it belong to no tensor")]
    Hole { file: String, tensor: String, expected: u64, begin: u64 },
    #[error("{file}: tensor {tensor}: its data ends at byte {end}, the file has {file_bytes}: truncated?")]
    OutOfFile { file: String, tensor: String, end: u64, file_bytes: u64 },
    #[error("{file}: {bytes} bytes at the end belong to no tensor")]
    TrailingBytes { file: String, bytes: u64 },
}

/// How many bytes from the start of a file [`Header::parse`] needs, told from its first eight.
///
/// # Errors
/// A length beyond [`HEADER_BYTES_MAX`] or beyond the file.
pub fn head_bytes(file: &str, first: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    let Some(length) = first.first_chunk::<{ LENGTH_BYTES as usize }>() else {
        return Err(HeaderError::TooShort {
            file: file.to_owned(),
            bytes: file_bytes.min(first.len() as u64),
        });
    };
    let header = u64::from_le_bytes(*length);
    if header > HEADER_BYTES_MAX {
        return Err(HeaderError::HeaderTooLarge { file: file.to_owned(), header });
    }
    let needed = LENGTH_BYTES + header;
    if needed > file_bytes {
        return Err(HeaderError::HeaderTruncated { file: file.to_owned(), header, file_bytes });
    }
    Ok(needed)
}

#[derive(Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Header {
    /// Checks and reads the header of `file` (a name for messages). `head` starts at the file's first byte and has at
    /// least [`head_bytes`] of them; the whole file will do. `file_bytes` is the file's length.
    ///
    /// # Errors
    /// See [`HeaderError`].
    pub fn parse(file: &str, head: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
        let data_start = head_bytes(file, head, file_bytes)?;
        let owned = || file.to_owned();
        let Some(json) = head.get(LENGTH_BYTES as usize..data_start as usize) else {
            return Err(HeaderError::HeaderTruncated {
                file: owned(),
                header: data_start - LENGTH_BYTES,
                file_bytes: head.len() as u64,
            });
        };
        let json =
            std::str::from_utf8(json).map_err(|source| HeaderError::NotUtf8 { file: owned(), source })?;
        let members = json::members(json, TENSORS_MAX + 1)
            .map_err(|source| HeaderError::NotJson { file: owned(), source })?;

        let mut header = Header::default();
        for (name, value) in members {
            if name == "__metadata__" {
                header.metadata = metadata(value.get())
                    .map_err(|source| HeaderError::Metadata { file: owned(), source })?;
            } else {
                let tensor = read_tensor(file, &name, value.get(), data_start)?;
                header.tensors.insert(name, tensor);
            }
        }
        header.check_layout(file, data_start, file_bytes)?;
        Ok(header)
    }

    /// Every byte behind the header belongs to exactly one tensor.
    fn check_layout(&self, file: &str, data_start: u64, file_bytes: u64) -> Result<(), HeaderError> {
        let mut order: Vec<(&String, &Range<u64>)> =
            self.tensors.iter().map(|(n, t)| (n, &t.range)).collect();
        order.sort_by_key(|(_, range)| (range.start, range.end));
        let mut expected = data_start;
        let mut before: &str = "";
        for (name, range) in order {
            if range.start < expected {
                return Err(HeaderError::Overlap {
                    file: file.to_owned(),
                    tensor: name.clone(),
                    other: before.to_owned(),
                    begin: range.start - data_start,
                    end: range.end - data_start,
                });
            }
            if range.end > file_bytes {
                return Err(HeaderError::OutOfFile {
                    file: file.to_owned(),
                    tensor: name.clone(),
                    end: range.end,
                    file_bytes,
                });
            }
            if range.start > expected {
                return Err(HeaderError::Hole {
                    file: file.to_owned(),
                    tensor: name.clone(),
                    expected: expected - data_start,
                    begin: range.start - data_start,
                });
            }
            expected = range.end;
            before = name;
        }
        if expected < file_bytes {
            return Err(HeaderError::TrailingBytes { file: file.to_owned(), bytes: file_bytes - expected });
        }
        Ok(())
    }
}

fn metadata(json: &str) -> Result<Vec<(String, String)>, serde_json::Error> {
    json::members(json, TENSORS_MAX)?
        .into_iter()
        .map(|(key, value)| Ok((key, serde_json::from_str(value.get())?)))
        .collect()
}

fn read_tensor(file: &str, name: &str, json: &str, data_start: u64) -> Result<Tensor, HeaderError> {
    let owned = || file.to_owned();
    if name.is_empty() || name.len() > TENSOR_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(HeaderError::TensorName { file: owned() });
    }
    let tensor = || name.to_owned();
    let Entry { dtype, shape, data_offsets: (begin, end) } = serde_json::from_str(json)
        .map_err(|source| HeaderError::TensorEntry { file: owned(), tensor: tensor(), source })?;
    if shape.len() > DIMENSIONS_MAX {
        let dimensions = shape.len();
        return Err(HeaderError::TooManyDimensions { file: owned(), tensor: tensor(), dimensions });
    }
    if begin > end {
        return Err(HeaderError::OffsetsReversed { file: owned(), tensor: tensor(), begin, end });
    }
    let bits = shape
        .iter()
        .try_fold(1u64, |product, &d| product.checked_mul(d))
        .and_then(|elements| elements.checked_mul(dtype.bits()));
    let range = data_start.checked_add(begin).zip(data_start.checked_add(end));
    let (Some(bits), Some((start, stop))) = (bits, range) else {
        return Err(HeaderError::ShapeOverflow { file: owned(), tensor: tensor(), shape });
    };
    let needed = bits.div_ceil(8);
    if needed != end - begin || !bits.is_multiple_of(8) {
        return Err(HeaderError::SizeMismatch {
            file: owned(),
            tensor: tensor(),
            dtype,
            shape,
            needed,
            given: end - begin,
            begin,
            end,
        });
    }
    Ok(Tensor { dtype, shape, range: start..stop })
}

/// Builds the head of a safetensors file: length, JSON and padding, as the reference library writes it (BF16 before
/// U8 is the caller's order). Used by generators and tests.
pub fn write_head<'a>(tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [u64], u64)>) -> Vec<u8> {
    let mut json = String::from("{");
    let mut offset = 0u64;
    for (name, dtype, shape, bytes) in tensors {
        if json.len() > 1 {
            json.push(',');
        }
        let name = serde_json::Value::from(name);
        let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
        json += &format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{}],\"data_offsets\":[{offset},{}]}}",
            dims.join(","),
            offset + bytes
        );
        offset += bytes;
    }
    json.push('}');
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.extend_from_slice(json.as_bytes());
    head
}

/// Headers by shard name, as [`crate::Checkpoint::assemble`] takes them.
pub type Headers = HashMap<String, Header>;

#[cfg(test)]
mod tests;
