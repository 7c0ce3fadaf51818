//! What each expert makes of the act of all its pairs, on tensor cores.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::experts_up_gemv::{Experts, expert_bytes, room, wide};
use crate::ops::experts_up_mma::{even_lists, many};
use crate::ops::linear_mma::TILE;
use crate::ops::route::NO_EXPERT;
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Expected, Failure, compare, shape};

arguments! {
    pub struct ExpertsDownMmaArgs {
        pub blocks: Address,
        pub scales: Address,
        pub bias: Address,
        pub act: Address,
        pub lists: Address,
        pub counts: Address,
        pub y: Address,
        pub hidden: u32,
        pub intermediate: u32,
        pub capacity: u32,
    }
}

impl ExpertsDownMmaArgs {
    /// An expert has at most as many pairs as there are tokens.
    pub fn launch(&self, tokens: usize, experts: usize) -> Launch {
        let grid = [(self.hidden as usize).div_ceil(TILE), tokens.div_ceil(TILE), experts];
        launch("experts_down_mma", grid, 128, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    // The other way round, so that rows and columns change places.
    let [count, intermediate, hidden, tokens, each] = many(size);
    let experts = Experts::new(&mut bed, count, [hidden, intermediate], tokens, each);
    let pairs = tokens * each;
    let act = bed.bf16s(pairs * intermediate, 1.0);
    let y = bed.put_f32(&vec![0.0; pairs * hidden])?;
    let [blocks, scales, bias] = experts.put(&bed)?;
    let (lists, counts) = experts.lists(tokens);
    let arguments = ExpertsDownMmaArgs {
        blocks,
        scales,
        bias,
        act: bed.put_bf16(&act)?,
        lists: bed.put_u32(&lists)?,
        counts: bed.put_u32(&counts)?,
        y,
        hidden: hidden as u32,
        intermediate: intermediate as u32,
        capacity: tokens as u32,
    };
    device.launch(&arguments.launch(tokens, count))?;
    let act = wide(&act);
    let mut want = Vec::new();
    for (pair, &expert) in experts.chosen.iter().enumerate() {
        let act = &act[pair * intermediate..][..intermediate];
        let nothing = Expected { value: 0.0, bound: 0.0 };
        let product = |row| if expert == NO_EXPERT { nothing } else { experts.product(expert, row, act) };
        want.extend((0..hidden).map(product));
    }
    compare("y", &bed.get_f32(y, pairs * hidden)?, &want)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let (rows, columns) = (shape::HIDDEN, shape::INTERMEDIATE);
    let ([lists, counts], met) = even_lists(&bed, tokens)?;
    let [blocks, scales, bias] = room(&bed, rows, columns)?;
    let pairs = tokens * shape::CHOSEN;
    let arguments = ExpertsDownMmaArgs {
        blocks,
        scales,
        bias,
        act: bed.room(2 * pairs * columns)?,
        lists,
        counts,
        y: bed.room(4 * pairs * rows)?,
        hidden: rows as u32,
        intermediate: columns as u32,
        capacity: tokens as u32,
    };
    let operations = (2 * pairs * rows * columns) as u64;
    let launches = vec![arguments.launch(tokens, shape::EXPERTS)];
    Ok(Some(Bench { launches, bytes: expert_bytes(met, rows, columns), operations }))
}
