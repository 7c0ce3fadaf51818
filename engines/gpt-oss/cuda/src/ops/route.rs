//! Which experts each token goes to.

use gpt_oss_model::router::choose_experts;

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, F32_STEP, Failure, compare, shape};

/// In place of an expert, for a token that is there to fill up.
pub const NO_EXPERT: u32 = u32::MAX;

arguments! {
    pub struct RouteArgs {
        pub logits: Address,
        pub positions: Address,
        pub experts: Address,
        pub weights: Address,
        pub tokens: u32,
        pub experts_count: u32,
        pub chosen: u32,
    }
}

impl RouteArgs {
    pub fn launch(&self) -> Launch {
        launch("route", [(self.tokens as usize).div_ceil(4), 1, 1], 128, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let (count, experts, chosen) = size.of([(1, 1, 1), (4, 128, 4), (7, 37, 8), (65, 32, 4)]);
    // Few different numbers, so that there are many ties.
    let logits: Vec<f32> = (0..count * experts).map(|_| bed.below(40) as f32 / 8.0 - 2.5).collect();
    let positions: Vec<u32> = (0..count as u32).map(|i| if i == 2 { u32::MAX } else { i }).collect();
    let (experts_at, weights_at) = (bed.room(4 * count * chosen)?, bed.room(4 * count * chosen)?);
    let arguments = RouteArgs {
        logits: bed.put_f32(&logits)?,
        positions: bed.put_u32(&positions)?,
        experts: experts_at,
        weights: weights_at,
        tokens: count as u32,
        experts_count: experts as u32,
        chosen: chosen as u32,
    };
    device.launch(&arguments.launch())?;
    let (mut numbers, mut weights) = (Vec::new(), Vec::new());
    for (token, logits) in logits.chunks_exact(experts).enumerate() {
        for (expert, weight) in choose_experts(logits, chosen) {
            numbers.push(if token == 2 { NO_EXPERT } else { expert as u32 });
            weights.push(Expected { value: weight.into(), bound: 16.0 * F32_STEP });
        }
    }
    let got = bed.get_u32(experts_at, count * chosen)?;
    if got != numbers {
        return Err(Failure::Other(format!("experts are {got:?}, not {numbers:?}")));
    }
    compare("weights", &bed.get_f32(weights_at, count * chosen)?, &weights)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let arguments = RouteArgs {
        logits: bed.room(4 * tokens * shape::EXPERTS)?,
        positions: bed.put_u32(&(0..tokens as u32).collect::<Vec<_>>())?,
        experts: bed.room(4 * tokens * shape::CHOSEN)?,
        weights: bed.room(4 * tokens * shape::CHOSEN)?,
        tokens: tokens as u32,
        experts_count: shape::EXPERTS as u32,
        chosen: shape::CHOSEN as u32,
    };
    let bytes = (4 * tokens * (shape::EXPERTS + 2 * shape::CHOSEN)) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch()], bytes, operations: 0 }))
}
