//! The weighted sum of what a token's experts make, for few tokens.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::experts_up_gemv::{Experts, TOKENS_MAX, even, expert_bytes, few, room, wide};
use crate::ops::route::NO_EXPERT;
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, F32_STEP, Failure, compare, shape};

arguments! {
    pub struct ExpertsDownGemvArgs {
        pub blocks: Address,
        pub scales: Address,
        pub bias: Address,
        pub act: Address,
        pub experts: Address,
        pub weights: Address,
        pub x: Address,
        pub hidden: u32,
        pub intermediate: u32,
        pub chosen: u32,
    }
}

impl ExpertsDownGemvArgs {
    pub fn launch(&self, tokens: usize) -> Launch {
        launch("experts_down_gemv", [(self.hidden as usize).div_ceil(4), tokens, 1], 128, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    // The other way round, so that rows and columns change places.
    let [count, intermediate, hidden, tokens, each] = few(size);
    let experts = Experts::new(&mut bed, count, [hidden, intermediate], tokens, each);
    let pairs = tokens * each;
    let act = bed.bf16s(pairs * intermediate, 1.0);
    let weights = bed.floats(pairs, 1.0);
    let before = bed.floats(tokens * hidden, 1.0);
    let x = bed.put_f32(&before)?;
    let [blocks, scales, bias] = experts.put(&bed)?;
    let arguments = ExpertsDownGemvArgs {
        blocks,
        scales,
        bias,
        act: bed.put_bf16(&act)?,
        experts: bed.put_u32(&experts.chosen)?,
        weights: bed.put_f32(&weights)?,
        x,
        hidden: hidden as u32,
        intermediate: intermediate as u32,
        chosen: each as u32,
    };
    device.launch(&arguments.launch(tokens))?;
    let act = wide(&act);
    let mut want = Vec::new();
    for token in 0..tokens {
        for row in 0..hidden {
            let mut sum = f64::from(before[token * hidden + row]);
            let mut bound = sum.abs() * 8.0 * F32_STEP;
            for pair in token * each..(token + 1) * each {
                let expert = experts.chosen[pair];
                if expert != NO_EXPERT {
                    let part = experts.product(expert, row, &act[pair * intermediate..][..intermediate]);
                    let weight = f64::from(weights[pair]);
                    sum += weight * part.value;
                    bound += weight.abs() * (part.bound + part.value.abs() * 8.0 * F32_STEP);
                }
            }
            want.push(Expected { value: sum, bound });
        }
    }
    compare("x", &bed.get_f32(x, tokens * hidden)?, &want)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    if tokens > TOKENS_MAX {
        return Ok(None);
    }
    let bed = Bed::new(device, 0);
    let pairs = tokens * shape::CHOSEN;
    let (rows, columns) = (shape::HIDDEN, shape::INTERMEDIATE);
    let (chosen, met) = even(pairs);
    let [blocks, scales, bias] = room(&bed, rows, columns)?;
    let arguments = ExpertsDownGemvArgs {
        blocks,
        scales,
        bias,
        act: bed.room(2 * pairs * columns)?,
        experts: bed.put_u32(&chosen)?,
        weights: bed.room(4 * pairs)?,
        x: bed.room(4 * tokens * rows)?,
        hidden: rows as u32,
        intermediate: columns as u32,
        chosen: shape::CHOSEN as u32,
    };
    let operations = (2 * pairs * rows * columns) as u64;
    Ok(Some(Bench {
        launches: vec![arguments.launch(tokens)],
        bytes: expert_bytes(met, rows, columns),
        operations,
    }))
}
