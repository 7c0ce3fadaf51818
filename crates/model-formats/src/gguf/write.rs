//! Writes the head of a GGUF file. Used by generators and tests.

use super::MAGIC;

const VERSION: u32 = 3;
/// Tensors begin at multiples of this, unless the metadata says otherwise.
pub const ALIGNMENT: u64 = 32;

/// The table's entry of a tensor. Its data begin behind those of the one before, at the next multiple of [`ALIGNMENT`].
#[derive(Debug, Clone)]
pub struct WrittenTensor<'a> {
    pub name: &'a str,
    /// Innermost first, as the format has it.
    pub dimensions: &'a [u64],
    /// Number of its type in ggml.
    pub kind: u32,
    pub bytes: u64,
}

/// Metadata in the order in which they were added.
#[derive(Debug, Default, Clone)]
pub struct HeadWriter {
    entries: Vec<u8>,
    count: u64,
}

impl HeadWriter {
    #[must_use]
    pub fn text(self, key: &str, value: &str) -> HeadWriter {
        self.entry(key, 8, |out| text(out, value.as_bytes()))
    }

    #[must_use]
    pub fn number(self, key: &str, value: u32) -> HeadWriter {
        self.entry(key, 4, |out| out.extend(value.to_le_bytes()))
    }

    /// 16 bits.
    #[must_use]
    pub fn short(self, key: &str, value: u16) -> HeadWriter {
        self.entry(key, 2, |out| out.extend(value.to_le_bytes()))
    }

    /// 32 bits with a sign.
    #[must_use]
    pub fn integer(self, key: &str, value: i32) -> HeadWriter {
        self.entry(key, 5, |out| out.extend(value.to_le_bytes()))
    }

    #[must_use]
    pub fn real(self, key: &str, value: f32) -> HeadWriter {
        self.entry(key, 6, |out| out.extend(value.to_le_bytes()))
    }

    #[must_use]
    pub fn flag(self, key: &str, value: bool) -> HeadWriter {
        self.entry(key, 7, |out| out.push(value.into()))
    }

    /// An array of texts, which need not be UTF-8.
    #[must_use]
    pub fn texts(self, key: &str, values: &[impl AsRef<[u8]>]) -> HeadWriter {
        self.array(key, 8, values, |out, value| text(out, value.as_ref()))
    }

    /// An array of 32-bit integers.
    #[must_use]
    pub fn integers(self, key: &str, values: &[i32]) -> HeadWriter {
        self.array(key, 5, values, |out, value| out.extend(value.to_le_bytes()))
    }

    fn array<T>(self, key: &str, kind: u32, values: &[T], each: impl Fn(&mut Vec<u8>, &T)) -> HeadWriter {
        self.entry(key, 9, |out| {
            out.extend(kind.to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| each(out, value));
        })
    }

    /// `kind`: number of the value's type.
    #[must_use]
    pub(super) fn entry(mut self, key: &str, kind: u32, value: impl FnOnce(&mut Vec<u8>)) -> HeadWriter {
        text(&mut self.entries, key.as_bytes());
        self.entries.extend(kind.to_le_bytes());
        value(&mut self.entries);
        self.count += 1;
        self
    }

    /// The file up to the first byte of the first tensor.
    pub fn finish(&self, tensors: &[WrittenTensor<'_>]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((tensors.len() as u64).to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(&self.entries);
        let mut offset = 0u64;
        for tensor in tensors {
            text(&mut bytes, tensor.name.as_bytes());
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset += tensor.bytes.next_multiple_of(ALIGNMENT);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
        bytes
    }
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}
