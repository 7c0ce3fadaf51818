//! What checks of operators stand on: numbers by chance, memory, comparison.

use model_formats::mxfp4;

use crate::device::{DeviceError, Gpu, Launch, Memory};
use crate::ops::Tensor;
use crate::shaders::Form;

/// Why a check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0}")]
    Other(String),
    #[error("{what}: number {at} of {count} is {got}, not {want}, and may be off by {bound}")]
    Wrong { what: String, at: usize, count: usize, got: f64, want: f64, bound: f64 },
}

/// One step in the size of f32, relative.
pub const F32_STEP: f64 = 1.0 / 8_388_608.0;
/// Tensors of checks begin so many bytes into a buffer: at no multiple of what bindings begin at.
const OFFSETS: [usize; 3] = [0, 40, 296];

/// A device, and numbers by chance from a seed.
#[derive(Debug)]
pub struct Bed<'d> {
    gpu: &'d mut Gpu,
    random: u64,
}

impl<'d> Bed<'d> {
    pub fn new(gpu: &'d mut Gpu, seed: u64) -> Bed<'d> {
        Bed { gpu, random: seed }
    }

    /// SplitMix64.
    pub fn bits(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.random;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// In -scale..scale.
    pub fn float(&mut self, scale: f32) -> f32 {
        ((self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
    }

    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.float(scale)).collect()
    }

    pub fn bf16s(&mut self, count: usize, scale: f32) -> Vec<u16> {
        (0..count).map(|_| (self.float(scale).to_bits() >> 16) as u16).collect()
    }

    /// MXFP4 codes of every kind, and scales as published experts have them.
    pub fn mxfp4(&mut self, blocks: usize) -> (Vec<u8>, Vec<u8>) {
        let scales = (0..blocks).map(|_| 118 + self.below(5) as u8).collect();
        let codes = (0..blocks * mxfp4::BLOCK_BYTES).map(|_| self.bits() as u8).collect();
        (codes, scales)
    }

    /// Room for so many words.
    pub fn room(&mut self, words: usize) -> Result<Memory, DeviceError> {
        self.gpu.allocate("a check", 4 * words as u64)
    }

    pub fn put(&mut self, words: &[u32]) -> Result<Memory, DeviceError> {
        let memory = self.room(words.len())?;
        let bytes: Vec<u8> = words.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.gpu.upload(memory, 0, &bytes)?;
        Ok(memory)
    }

    /// Puts bytes to the beginning of memory that is there.
    pub fn fill(&mut self, to: Memory, bytes: &[u8]) -> Result<(), DeviceError> {
        self.gpu.upload(to, 0, bytes)
    }

    pub fn put_f32(&mut self, numbers: &[f32]) -> Result<Memory, DeviceError> {
        self.put(&numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>())
    }

    /// A stored tensor, at some place of a buffer.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<Tensor, DeviceError> {
        let offset = OFFSETS[self.below(OFFSETS.len())];
        let memory = self.gpu.allocate("a check", (offset + bytes.len()) as u64)?;
        self.gpu.upload(memory, offset as u64, bytes)?;
        Ok(Tensor::at(memory, offset as u64))
    }

    pub fn tensor_bf16(&mut self, numbers: &[u16]) -> Result<Tensor, DeviceError> {
        self.tensor(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn run(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.gpu.run(launches)
    }

    pub fn get(&mut self, from: Memory, count: usize) -> Result<Vec<u32>, DeviceError> {
        self.gpu.download(from, 0, count)
    }

    pub fn get_f32(&mut self, from: Memory, count: usize) -> Result<Vec<f32>, DeviceError> {
        Ok(self.get(from, count)?.into_iter().map(f32::from_bits).collect())
    }
}

pub fn widen(bits: u16) -> f32 {
    mxfp4::bf16_to_f32(bits)
}

/// A row of MXFP4.
pub fn decode(blocks: &[u8], scales: &[u8], row: usize, columns: usize) -> Vec<f32> {
    let scales_a_row = columns / mxfp4::BLOCK;
    let bytes = scales_a_row * mxfp4::BLOCK_BYTES;
    let mut out = vec![0.0; columns];
    mxfp4::decode_row(
        &blocks[row * bytes..][..bytes],
        &scales[row * scales_a_row..][..scales_a_row],
        &mut out,
    );
    out
}

/// A number that is expected, and how far off it may be.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub value: f64,
    pub bound: f64,
}

impl Expected {
    /// Exactly this.
    pub fn exactly(value: f32) -> Expected {
        Expected { value: f64::from(value), bound: 0.0 }
    }

    /// Off by so many steps of f32.
    pub fn within(value: f64, steps: f64) -> Expected {
        Expected { value, bound: value.abs() * steps * F32_STEP + 1e-37 }
    }

    /// The sum of products, in f32 in any order, of `terms`, plus `more`.
    pub fn dot(terms: impl Iterator<Item = (f32, f32)>, more: f64) -> Expected {
        let (mut value, mut size, mut count) = (more, more.abs(), 2.0);
        for (a, b) in terms {
            let product = f64::from(a) * f64::from(b);
            value += product;
            size += product.abs();
            count += 1.0;
        }
        // Each addition is off by half a step of a sum that is at most `size`; errors do not all point one way.
        Expected { value, bound: size * F32_STEP * f64::min(count, 64.0) }
    }
}

impl Form {
    /// What a product of many tokens may be, where it is made of these terms: two f16 have 22 bits, and numbers below 2^-14
    /// fewer, down to steps of 2^-24.
    pub(crate) fn loosens(self, exact: Expected, terms: impl Iterator<Item = (f32, f32)>) -> Expected {
        if !matches!(self, Form::Matrices { .. }) {
            return exact;
        }
        let off = |(weight, x): (f32, f32)| {
            f64::from(weight * x).abs() / 2f64.powi(20)
                + (f64::from(x).abs() + f64::from(weight).abs()) / 2f64.powi(24)
        };
        Expected { bound: exact.bound + terms.map(off).sum::<f64>(), ..exact }
    }
}

/// # Errors
/// [`Failure::Wrong`], with the first number that is off.
pub fn compare(what: &str, got: &[f32], want: &[Expected]) -> Result<(), Failure> {
    assert_eq!(got.len(), want.len());
    let count = got.len();
    let is_off = |(_, (got, want)): &(usize, (&f32, &Expected))| {
        // No number is off, too.
        (f64::from(**got) - want.value).abs().partial_cmp(&want.bound).is_none_or(|o| o.is_gt())
    };
    let Some((at, (&got, want))) = got.iter().zip(want).enumerate().find(is_off) else { return Ok(()) };
    Err(Failure::Wrong {
        what: what.to_owned(),
        at,
        count,
        got: f64::from(got),
        want: want.value,
        bound: want.bound,
    })
}
