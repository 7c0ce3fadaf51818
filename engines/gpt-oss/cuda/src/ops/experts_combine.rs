//! The weighted sum of what experts made for each token's pairs.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, Failure, compare, shape};

arguments! {
    pub struct ExpertsCombineArgs {
        pub y: Address,
        pub weights: Address,
        pub positions: Address,
        pub x: Address,
        pub hidden: u32,
        pub chosen: u32,
    }
}

impl ExpertsCombineArgs {
    pub fn launch(&self, tokens: usize) -> Launch {
        launch("experts_combine", [tokens, 1, 1], 256, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let (tokens, hidden, chosen) = size.of([(1, 32, 1), (2, 2880, 4), (5, 96, 3), (50, 32, 2)]);
    let y = bed.floats(tokens * chosen * hidden, 1.0);
    let weights = bed.floats(tokens * chosen, 1.0);
    let before = bed.floats(tokens * hidden, 1.0);
    let positions: Vec<u32> = (0..tokens as u32).map(|i| if i == 1 { u32::MAX } else { i }).collect();
    let x = bed.put_f32(&before)?;
    let arguments = ExpertsCombineArgs {
        y: bed.put_f32(&y)?,
        weights: bed.put_f32(&weights)?,
        positions: bed.put_u32(&positions)?,
        x,
        hidden: hidden as u32,
        chosen: chosen as u32,
    };
    device.launch(&arguments.launch(tokens))?;
    let want: Vec<_> = (0..tokens * hidden)
        .map(|i| {
            let (token, column) = (i / hidden, i % hidden);
            let pairs = if token == 1 { 0..0 } else { token * chosen..(token + 1) * chosen };
            let terms = pairs.map(|p| (f64::from(weights[p]), f64::from(y[p * hidden + column])));
            Expected::dot(terms, before[i].into())
        })
        .collect();
    compare("x", &bed.get_f32(x, tokens * hidden)?, &want)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let arguments = ExpertsCombineArgs {
        y: bed.room(4 * tokens * shape::CHOSEN * shape::HIDDEN)?,
        weights: bed.room(4 * tokens * shape::CHOSEN)?,
        positions: bed.put_u32(&(0..tokens as u32).collect::<Vec<_>>())?,
        x: bed.room(4 * tokens * shape::HIDDEN)?,
        hidden: shape::HIDDEN as u32,
        chosen: shape::CHOSEN as u32,
    };
    let bytes = (4 * tokens * shape::HIDDEN * (shape::CHOSEN + 2)) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes, operations: 0 }))
}
