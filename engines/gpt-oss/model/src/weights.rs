//! Views of stored weights: numbers out of the bytes of a tensor, wherever those are.

use model_formats::mxfp4;

/// The bytes of a checkpoint's tensors. They are aligned to nothing.
pub trait Weights {
    /// Bytes of the tensor, exactly as many as `model_formats::gpt_oss::tensors` says.
    ///
    /// # Panics
    /// When there is no such tensor; implementations are only made of checkpoints that have all. When its bytes do not lie
    /// together, which only those of experts' blocks may.
    fn bytes(&self, tensor: &str) -> &[u8];

    /// The same bytes in pieces that follow one another: one, or as many as there are experts.
    fn parts(&self, tensor: &str) -> Vec<&[u8]> {
        vec![self.bytes(tensor)]
    }

    /// Whether these bytes are a file's, where it lies; otherwise they were made of what a file has.
    fn are_of_a_file(&self, _tensor: &str) -> bool {
        true
    }

    /// A vector, or a matrix seen as rows, of bf16 numbers.
    fn bf16(&self, tensor: &str) -> Bf16<'_> {
        Bf16(self.bytes(tensor))
    }

    /// The matrix of one expert: (rows, columns), stored as blocks and scales.
    fn mxfp4(&self, tensor: &str, expert: usize, rows: usize, columns: usize) -> Mxfp4<'_> {
        let row_scales = columns / mxfp4::BLOCK;
        let one = rows * row_scales;
        let scales = &self.bytes(&format!("{tensor}_scales"))[expert * one..][..one];
        let one = one * mxfp4::BLOCK_BYTES;
        let blocks = match self.parts(&format!("{tensor}_blocks"))[..] {
            [all] => &all[expert * one..][..one],
            ref parts => parts[expert],
        };
        Mxfp4 { blocks, scales, columns }
    }
}

/// Little-endian bf16 numbers.
#[derive(Debug, Clone, Copy)]
pub struct Bf16<'a>(pub &'a [u8]);

impl<'a> Bf16<'a> {
    pub fn len(self) -> usize {
        self.0.len() / 2
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn get(self, index: usize) -> f32 {
        mxfp4::bf16_to_f32(u16::from_le_bytes([self.0[2 * index], self.0[2 * index + 1]]))
    }

    /// Row of a matrix with `columns` numbers in a row.
    pub fn row(self, row: usize, columns: usize) -> Bf16<'a> {
        Bf16(&self.0[2 * row * columns..][..2 * columns])
    }

    pub fn iter(self) -> impl ExactSizeIterator<Item = f32> + 'a {
        self.0.as_chunks::<2>().0.iter().map(|b| mxfp4::bf16_to_f32(u16::from_le_bytes(*b)))
    }

    pub fn to_vec(self) -> Vec<f32> {
        self.iter().collect()
    }
}

/// A matrix of MXFP4 blocks, row-major.
#[derive(Debug, Clone, Copy)]
pub struct Mxfp4<'a> {
    pub blocks: &'a [u8],
    pub scales: &'a [u8],
    /// A multiple of 32.
    pub columns: usize,
}

impl Mxfp4<'_> {
    pub fn row(self, row: usize, out: &mut [f32]) {
        let scales = self.columns / mxfp4::BLOCK;
        let bytes = scales * mxfp4::BLOCK_BYTES;
        mxfp4::decode_row(&self.blocks[row * bytes..][..bytes], &self.scales[row * scales..][..scales], out);
    }
}
