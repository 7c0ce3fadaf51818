//! Gate and up of each pair's expert, and their product, for few tokens.

use model_formats::mxfp4;

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::route::NO_EXPERT;
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, Failure, compare, shape, widen};

/// Beyond that the tensor cores read weights less often.
pub const TOKENS_MAX: usize = 8;

arguments! {
    pub struct ExpertsUpGemvArgs {
        pub blocks: Address,
        pub scales: Address,
        pub bias: Address,
        pub t: Address,
        pub experts: Address,
        pub act: Address,
        pub hidden: u32,
        pub intermediate: u32,
        pub chosen: u32,
        pub limit: f32,
        pub alpha: f32,
    }
}

impl ExpertsUpGemvArgs {
    pub fn launch(&self, pairs: usize) -> Launch {
        launch("experts_up_gemv", [(self.intermediate as usize).div_ceil(4), pairs, 1], 128, self)
    }
}

/// The limit and the alpha of every published model.
pub(super) const SWIGLU: (f32, f32) = (7.0, 1.702);

/// A matrix of each expert, tokens and what they chose.
#[derive(Debug)]
pub(super) struct Experts {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) count: usize,
    blocks: Vec<u8>,
    scales: Vec<u8>,
    bias: Vec<u16>,
    /// Of each pair; some tokens have none.
    pub(super) chosen: Vec<u32>,
}

impl Experts {
    pub(super) fn new(
        bed: &mut Bed<'_>,
        count: usize,
        shape: [usize; 2],
        tokens: usize,
        each: usize,
    ) -> Experts {
        let [rows, columns] = shape;
        let (blocks, scales) = bed.mxfp4(count * rows * columns / mxfp4::BLOCK);
        let bias = bed.bf16s(count * rows, 1.0);
        let mut chosen = Vec::new();
        for token in 0..tokens {
            let first = bed.below(count);
            // Different ones for each token, and none for the fourth.
            let expert = |i: usize| if token == 3 { NO_EXPERT } else { ((first + i) % count) as u32 };
            chosen.extend((0..each).map(expert));
        }
        Experts { rows, columns, count, blocks, scales, bias, chosen }
    }

    /// Blocks, scales and bias.
    pub(super) fn put(&self, bed: &Bed<'_>) -> Result<[Address; 3], Failure> {
        Ok([bed.put(&self.blocks)?, bed.put(&self.scales)?, bed.put_bf16(&self.bias)?])
    }

    /// A row of an expert times `t`, and its bias.
    pub(super) fn product(&self, expert: u32, row: usize, t: &[f64]) -> Expected {
        let row = expert as usize * self.rows + row;
        let each = self.columns / mxfp4::BLOCK;
        let mut weights = vec![0.0; self.columns];
        let scales = &self.scales[row * each..][..each];
        mxfp4::decode_row(&self.blocks[row * each * 16..][..each * 16], scales, &mut weights);
        let terms = weights.iter().zip(t).map(|(&w, &t)| (f64::from(w), t));
        Expected::dot(terms, f64::from(widen(self.bias[row])))
    }

    /// As `experts_sort.cu` makes them, with room for `capacity` pairs each.
    pub(super) fn lists(&self, capacity: usize) -> (Vec<u32>, Vec<u32>) {
        let mut lists = vec![u32::MAX; self.count * capacity];
        let mut counts = vec![0; self.count];
        for (pair, &expert) in self.chosen.iter().enumerate().filter(|(_, e)| **e != NO_EXPERT) {
            let count = &mut counts[expert as usize];
            lists[expert as usize * capacity + *count as usize] = pair as u32;
            *count += 1;
        }
        (lists, counts)
    }

    /// What swiglu makes of gate and up of each pair; 0 for a pair without an expert.
    pub(super) fn activations(&self, t: &[f64], each: usize) -> Vec<Expected> {
        let mut want = Vec::new();
        for (pair, &expert) in self.chosen.iter().enumerate() {
            let t = &t[pair / each * self.columns..][..self.columns];
            for place in 0..self.rows / 2 {
                if expert == NO_EXPERT {
                    want.push(Expected { value: 0.0, bound: 0.0 });
                    continue;
                }
                let (gate, up) = (self.product(expert, 2 * place, t), self.product(expert, 2 * place + 1, t));
                let act = |gate: f64, up: f64| {
                    let (limit, alpha) = (f64::from(SWIGLU.0), f64::from(SWIGLU.1));
                    let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
                    gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
                };
                let value = act(gate.value, up.value);
                // The slope of the gate's factor is at most 1.2, and its value at most the limit.
                let slopes = 1.2 * (up.value.abs() + 1.0) * gate.bound + f64::from(SWIGLU.0) * up.bound;
                want.push(Expected { value, bound: slopes + value.abs() * 1e-6 }.rounded());
            }
        }
        want
    }
}

/// Wide copies of bf16 numbers.
pub(super) fn wide(numbers: &[u16]) -> Vec<f64> {
    numbers.iter().map(|&x| f64::from(widen(x))).collect()
}

/// Experts, hidden, intermediate, tokens, experts of a token.
pub(super) fn few(size: Size) -> [usize; 5] {
    size.of([[1, 32, 32, 1, 1], [3, 2880, 32, 2, 2], [5, 96, 160, 5, 3], [8, 64, 32, 8, 4]])
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let [count, hidden, intermediate, tokens, each] = few(size);
    let experts = Experts::new(&mut bed, count, [2 * intermediate, hidden], tokens, each);
    let t = bed.bf16s(tokens * hidden, 1.0);
    let pairs = tokens * each;
    let act = bed.put_bf16(&vec![0; pairs * intermediate])?;
    let [blocks, scales, bias] = experts.put(&bed)?;
    let arguments = ExpertsUpGemvArgs {
        blocks,
        scales,
        bias,
        t: bed.put_bf16(&t)?,
        experts: bed.put_u32(&experts.chosen)?,
        act,
        hidden: hidden as u32,
        intermediate: intermediate as u32,
        chosen: each as u32,
        limit: SWIGLU.0,
        alpha: SWIGLU.1,
    };
    device.launch(&arguments.launch(pairs))?;
    let want = experts.activations(&wide(&t), each);
    compare("act", &bed.get_bf16(act, pairs * intermediate)?, &want)
}

/// Bytes of the weights of so many experts' matrices of (rows, columns), scales and bias included.
pub(super) fn expert_bytes(experts: usize, rows: usize, columns: usize) -> u64 {
    (experts * rows * (columns / 2 + columns / 32 + 2)) as u64
}

/// Blocks, scales and bias of all experts, not filled.
pub(super) fn room(bed: &Bed<'_>, rows: usize, columns: usize) -> Result<[Address; 3], Failure> {
    let all = shape::EXPERTS * rows;
    Ok([bed.room(all * columns / 2)?, bed.room(all * columns / 32)?, bed.room(2 * all)?])
}

/// Experts of pairs as evenly as can be, and how many are met.
pub(super) fn even(pairs: usize) -> (Vec<u32>, usize) {
    ((0..pairs).map(|p| (p % shape::EXPERTS) as u32).collect(), pairs.min(shape::EXPERTS))
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    if tokens > TOKENS_MAX {
        return Ok(None);
    }
    let bed = Bed::new(device, 0);
    let pairs = tokens * shape::CHOSEN;
    let (rows, columns) = (2 * shape::INTERMEDIATE, shape::HIDDEN);
    let (chosen, met) = even(pairs);
    let [blocks, scales, bias] = room(&bed, rows, columns)?;
    let arguments = ExpertsUpGemvArgs {
        blocks,
        scales,
        bias,
        t: bed.room(2 * tokens * columns)?,
        experts: bed.put_u32(&chosen)?,
        act: bed.room(2 * pairs * shape::INTERMEDIATE)?,
        hidden: shape::HIDDEN as u32,
        intermediate: shape::INTERMEDIATE as u32,
        chosen: shape::CHOSEN as u32,
        limit: SWIGLU.0,
        alpha: SWIGLU.1,
    };
    let operations = (2 * pairs * rows * columns) as u64;
    Ok(Some(Bench {
        launches: vec![arguments.launch(pairs)],
        bytes: expert_bytes(met, rows, columns),
        operations,
    }))
}
