//! What checks and benchmarks of operators stand on: numbers by chance, memory, comparison.

use model_formats::mxfp4;

use crate::device::{Address, Device, DeviceError, Launch};

/// Why a check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{what}: number {at} of {count} is {got}, not {want}, and may be off by {bound}")]
    Wrong { what: String, at: usize, count: usize, got: f64, want: f64, bound: f64 },
    #[error("{0}")]
    Other(String),
}

/// What to measure: launches on memory of their own.
#[derive(Debug)]
pub struct Bench {
    pub launches: Vec<Launch>,
    /// Read and written, each place once.
    pub bytes: u64,
    /// Two for a multiplication with an addition.
    pub operations: u64,
}

/// One step in the size of bf16, relative: rounding is off by half of it.
pub const BF16_STEP: f64 = 1.0 / 128.0;
/// The same of f32.
pub const F32_STEP: f64 = 1.0 / 8_388_608.0;

/// Shape of gpt-oss-20b, for benchmarks.
pub mod shape {
    pub const HIDDEN: usize = 2880;
    pub const INTERMEDIATE: usize = 2880;
    pub const EXPERTS: usize = 32;
    pub const CHOSEN: usize = 4;
    pub const HEADS: usize = 64;
    pub const KV_HEADS: usize = 8;
    pub const VOCABULARY: usize = 201_088;
    pub const QKV: usize = (HEADS + 2 * KV_HEADS) * 64;
}

/// A device, and numbers by chance from a seed.
#[derive(Debug)]
pub struct Bed<'d> {
    pub device: &'d dyn Device,
    random: u64,
}

impl<'d> Bed<'d> {
    pub fn new(device: &'d dyn Device, seed: u64) -> Bed<'d> {
        Bed { device, random: seed }
    }

    /// SplitMix64.
    pub fn number(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.random;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// In -scale..scale.
    pub fn float(&mut self, scale: f32) -> f32 {
        ((self.number() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
    }

    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.float(scale)).collect()
    }

    pub fn bf16s(&mut self, count: usize, scale: f32) -> Vec<u16> {
        (0..count).map(|_| bf16(self.float(scale))).collect()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }

    /// MXFP4 codes of every kind, and scales as published experts have them.
    pub fn mxfp4(&mut self, blocks: usize) -> (Vec<u8>, Vec<u8>) {
        let scales = (0..blocks).map(|_| 118 + self.below(5) as u8).collect();
        (self.bytes(blocks * mxfp4::BLOCK_BYTES), scales)
    }

    /// Room for so many bytes, which are garbage.
    pub fn room(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.device.allocate(bytes as u64)
    }

    pub fn put(&self, bytes: &[u8]) -> Result<Address, DeviceError> {
        let at = self.room(bytes.len())?;
        self.device.upload(at, bytes)?;
        Ok(at)
    }

    pub fn put_f32(&self, numbers: &[f32]) -> Result<Address, DeviceError> {
        self.put(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn put_u32(&self, numbers: &[u32]) -> Result<Address, DeviceError> {
        self.put(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn put_bf16(&self, numbers: &[u16]) -> Result<Address, DeviceError> {
        self.put(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn get_u32(&self, at: Address, count: usize) -> Result<Vec<u32>, DeviceError> {
        let mut bytes = vec![0; 4 * count];
        self.device.download(at, &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
    }

    pub fn get_f32(&self, at: Address, count: usize) -> Result<Vec<f32>, DeviceError> {
        Ok(self.get_u32(at, count)?.into_iter().map(f32::from_bits).collect())
    }

    pub fn get_bf16(&self, at: Address, count: usize) -> Result<Vec<f32>, DeviceError> {
        let mut bytes = vec![0; 2 * count];
        self.device.download(at, &mut bytes)?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|b| widen(u16::from_le_bytes(*b))).collect())
    }
}

/// Rounds to nearest, ties to even.
pub fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

pub fn widen(bits: u16) -> f32 {
    mxfp4::bf16_to_f32(bits)
}

/// A number that is expected, and how far off it may be.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub value: f64,
    pub bound: f64,
}

impl Expected {
    /// The sum of products, in f32 in any order, of `terms`, plus `more`.
    pub fn dot(terms: impl Iterator<Item = (f64, f64)>, more: f64) -> Expected {
        let (mut value, mut size, mut count) = (more, more.abs(), 2.0);
        for (a, b) in terms {
            value += a * b;
            size += (a * b).abs();
            count += 1.0;
        }
        // Each addition is off by half a step of a sum that is at most `size`.
        Expected { value, bound: size * F32_STEP * f64::min(count, 64.0) }
    }

    /// The same, rounded to bf16.
    #[must_use]
    pub fn rounded(self) -> Expected {
        Expected {
            bound: self.bound + (self.value.abs() + self.bound) * BF16_STEP / 2.0 * 1.01 + 1e-37,
            ..self
        }
    }
}

/// # Errors
/// [`Failure::Wrong`] with the first number that is too far off, NaNs included.
pub fn compare(what: &str, got: &[f32], want: &[Expected]) -> Result<(), Failure> {
    if got.len() != want.len() {
        return Err(Failure::Other(format!("{what}: {} numbers, not {}", got.len(), want.len())));
    }
    let count = got.len();
    for (at, (&got, want)) in got.iter().zip(want).enumerate() {
        let got = f64::from(got);
        if (got - want.value).abs() <= want.bound {
            continue;
        }
        let Expected { value, bound } = *want;
        return Err(Failure::Wrong { what: what.to_owned(), at, count, got, want: value, bound });
    }
    Ok(())
}
