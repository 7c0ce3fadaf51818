//! The embedding's row of each token, which may be one that the step before chose.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, Failure, compare, shape, widen};

arguments! {
    pub struct EmbedArgs {
        pub table: Address,
        pub tokens: Address,
        pub next: Address,
        pub x: Address,
        pub hidden: u32,
    }
}

/// Stands for the token that the step before chose with this draw: `CHOSEN` of `embed.cu`.
pub fn chosen(draw: u32) -> u32 {
    1 << 31 | draw
}

impl EmbedArgs {
    pub fn launch(&self, tokens: usize) -> Launch {
        launch("embed", [tokens, 1, 1], 128, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let hidden = size.of([32, 2880, 1056, 64]);
    let count = size.of([1, 3, 5, 40]);
    let vocabulary = 11;
    let table = bed.bf16s(vocabulary * hidden, 1.0);
    let tokens: Vec<u32> = (0..count).map(|_| bed.below(vocabulary) as u32).collect();
    let x = bed.room(4 * count * hidden)?;
    // Every other one was chosen by the step before, in another order.
    let next: Vec<u32> = tokens.iter().rev().copied().collect();
    let named = |(i, token): (usize, &u32)| if i % 2 == 1 { chosen((count - 1 - i) as u32) } else { *token };
    let named: Vec<u32> = tokens.iter().enumerate().map(named).collect();
    let arguments = EmbedArgs {
        table: bed.put_bf16(&table)?,
        tokens: bed.put_u32(&named)?,
        next: bed.put_u32(&next)?,
        x,
        hidden: hidden as u32,
    };
    device.launch(&arguments.launch(count))?;
    let row = |&token: &u32| table[token as usize * hidden..][..hidden].iter();
    let want: Vec<_> =
        tokens.iter().flat_map(row).map(|&w| Expected { value: widen(w).into(), bound: 0.0 }).collect();
    compare("x", &bed.get_f32(x, count * hidden)?, &want)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let arguments = EmbedArgs {
        table: bed.room(2 * shape::VOCABULARY * shape::HIDDEN)?,
        tokens: bed.put_u32(&(0..tokens as u32).collect::<Vec<_>>())?,
        next: Address::NULL,
        x: bed.room(4 * tokens * shape::HIDDEN)?,
        hidden: shape::HIDDEN as u32,
    };
    let bytes = (6 * tokens * shape::HIDDEN) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes, operations: 0 }))
}
