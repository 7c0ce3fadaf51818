//! Gate and up of each expert for all its pairs, and their product, on tensor cores.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::experts_up_gemv::{Experts, SWIGLU, even, expert_bytes, room, wide};
use crate::ops::linear_mma::TILE;
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Failure, compare, shape};

arguments! {
    pub struct ExpertsUpMmaArgs {
        pub blocks: Address,
        pub scales: Address,
        pub bias: Address,
        pub t: Address,
        pub lists: Address,
        pub counts: Address,
        pub act: Address,
        pub hidden: u32,
        pub intermediate: u32,
        pub chosen: u32,
        pub capacity: u32,
        pub limit: f32,
        pub alpha: f32,
    }
}

impl ExpertsUpMmaArgs {
    /// An expert has at most as many pairs as there are tokens.
    pub fn launch(&self, tokens: usize, experts: usize) -> Launch {
        let grid = [self.intermediate as usize / (TILE / 2), tokens.div_ceil(TILE), experts];
        launch("experts_up_mma", grid, 128, self)
    }
}

/// Experts, hidden, intermediate, tokens, experts of a token.
pub(super) fn many(size: Size) -> [usize; 5] {
    size.of([[1, 64, 32, 8, 1], [2, 1024, 64, 64, 2], [5, 96, 160, 21, 3], [3, 32, 32, 150, 2]])
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let [count, hidden, intermediate, tokens, each] = many(size);
    let experts = Experts::new(&mut bed, count, [2 * intermediate, hidden], tokens, each);
    let t = bed.bf16s(tokens * hidden, 1.0);
    let pairs = tokens * each;
    let act = bed.put_bf16(&vec![0; pairs * intermediate])?;
    let [blocks, scales, bias] = experts.put(&bed)?;
    let (lists, counts) = experts.lists(tokens + 3);
    let arguments = ExpertsUpMmaArgs {
        blocks,
        scales,
        bias,
        t: bed.put_bf16(&t)?,
        lists: bed.put_u32(&lists)?,
        counts: bed.put_u32(&counts)?,
        act,
        hidden: hidden as u32,
        intermediate: intermediate as u32,
        chosen: each as u32,
        capacity: tokens as u32 + 3,
        limit: SWIGLU.0,
        alpha: SWIGLU.1,
    };
    device.launch(&arguments.launch(tokens, count))?;
    let want = experts.activations(&wide(&t), each);
    compare("act", &bed.get_bf16(act, pairs * intermediate)?, &want)
}

/// Lists and counts of pairs that are spread evenly.
pub(super) fn even_lists(bed: &Bed<'_>, tokens: usize) -> Result<([Address; 2], usize), Failure> {
    let (chosen, met) = even(tokens * shape::CHOSEN);
    let mut lists = vec![0; shape::EXPERTS * tokens];
    let mut counts = vec![0u32; shape::EXPERTS];
    for (pair, expert) in chosen.iter().enumerate() {
        let count = &mut counts[*expert as usize];
        lists[*expert as usize * tokens + *count as usize] = pair as u32;
        *count += 1;
    }
    Ok(([bed.put_u32(&lists)?, bed.put_u32(&counts)?], met))
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let (rows, columns) = (2 * shape::INTERMEDIATE, shape::HIDDEN);
    let ([lists, counts], met) = even_lists(&bed, tokens)?;
    let [blocks, scales, bias] = room(&bed, rows, columns)?;
    let pairs = tokens * shape::CHOSEN;
    let arguments = ExpertsUpMmaArgs {
        blocks,
        scales,
        bias,
        t: bed.room(2 * tokens * columns)?,
        lists,
        counts,
        act: bed.room(2 * pairs * shape::INTERMEDIATE)?,
        hidden: shape::HIDDEN as u32,
        intermediate: shape::INTERMEDIATE as u32,
        chosen: shape::CHOSEN as u32,
        capacity: tokens as u32,
        limit: SWIGLU.0,
        alpha: SWIGLU.1,
    };
    let operations = (2 * pairs * rows * columns) as u64;
    let launches = vec![arguments.launch(tokens, shape::EXPERTS)];
    Ok(Some(Bench { launches, bytes: expert_bytes(met, rows, columns), operations }))
}
