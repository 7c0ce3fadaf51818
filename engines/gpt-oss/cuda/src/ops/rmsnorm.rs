//! The root mean square norm, rounded to bf16.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, F32_STEP, Failure, compare, shape, widen};

arguments! {
    pub struct RmsnormArgs {
        pub x: Address,
        pub weight: Address,
        pub rows: Address,
        pub out: Address,
        pub hidden: u32,
        pub epsilon: f32,
    }
}

impl RmsnormArgs {
    pub fn launch(&self, rows: usize) -> Launch {
        launch("rmsnorm", [rows, 1, 1], 256, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let hidden = size.of([32, 2880, 1056, 64]);
    let count = size.of([1, 2, 3, 20]);
    let x = bed.floats(count * hidden, 3.0);
    let weight = bed.bf16s(hidden, 2.0);
    // Some rows, some of them twice, or all as they are.
    let rows: Vec<usize> = (0..count).map(|_| bed.below(count)).collect();
    let gathers = matches!(size, Size::RaggedTail | Size::ManyTokens);
    let rows_at = bed.put_u32(&rows.iter().map(|&r| r as u32).collect::<Vec<_>>())?;
    let out = bed.room(2 * count * hidden)?;
    let epsilon = 1e-5;
    let arguments = RmsnormArgs {
        x: bed.put_f32(&x)?,
        weight: bed.put_bf16(&weight)?,
        rows: if gathers { rows_at } else { Address::NULL },
        out,
        hidden: hidden as u32,
        epsilon,
    };
    device.launch(&arguments.launch(count))?;
    let mut want = Vec::new();
    for row in 0..count {
        let x = &x[if gathers { rows[row] } else { row } * hidden..][..hidden];
        let square: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (square / hidden as f64 + f64::from(epsilon)).sqrt();
        want.extend(x.iter().zip(&weight).map(|(&x, &w)| {
            let value = f64::from(x) * scale * f64::from(widen(w));
            Expected { value, bound: value.abs() * F32_STEP * 16.0 }.rounded()
        }));
    }
    compare("out", &bed.get_bf16(out, count * hidden)?, &want)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let arguments = RmsnormArgs {
        x: bed.room(4 * tokens * shape::HIDDEN)?,
        weight: bed.room(2 * shape::HIDDEN)?,
        rows: Address::NULL,
        out: bed.room(2 * tokens * shape::HIDDEN)?,
        hidden: shape::HIDDEN as u32,
        epsilon: 1e-5,
    };
    let bytes = (6 * tokens * shape::HIDDEN + 2 * shape::HIDDEN) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes, operations: 0 }))
}
