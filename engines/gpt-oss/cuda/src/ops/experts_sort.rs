//! For each expert the list of its pairs of token and choice.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::route::NO_EXPERT;
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Failure, shape};

arguments! {
    pub struct ExpertsSortArgs {
        pub experts: Address,
        pub lists: Address,
        pub counts: Address,
        pub pairs: u32,
        pub capacity: u32,
    }
}

impl ExpertsSortArgs {
    pub fn launch(&self, experts: usize) -> Launch {
        launch("experts_sort", [experts, 1, 1], 256, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let (pairs, experts) = size.of([(1, 1), (256, 32), (77, 5), (1000, 8)]);
    let numbers: Vec<u32> =
        (0..pairs).map(|_| if bed.below(9) == 0 { NO_EXPERT } else { bed.below(experts) as u32 }).collect();
    let (lists, counts) = (bed.room(4 * experts * pairs)?, bed.room(4 * experts)?);
    let arguments = ExpertsSortArgs {
        experts: bed.put_u32(&numbers)?,
        lists,
        counts,
        pairs: pairs as u32,
        capacity: pairs as u32,
    };
    device.launch(&arguments.launch(experts))?;
    let (lists, counts) = (bed.get_u32(lists, experts * pairs)?, bed.get_u32(counts, experts)?);
    for expert in 0..experts {
        let want: Vec<u32> =
            (0..pairs as u32).filter(|&pair| numbers[pair as usize] == expert as u32).collect();
        let got = &lists[expert * pairs..][..(counts[expert] as usize).min(pairs)];
        if got != want {
            return Err(Failure::Other(format!("expert {expert} has {got:?}, not {want:?}")));
        }
    }
    Ok(())
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let pairs = tokens * shape::CHOSEN;
    let arguments = ExpertsSortArgs {
        experts: bed.put_u32(&(0..pairs).map(|p| (p % shape::EXPERTS) as u32).collect::<Vec<_>>())?,
        lists: bed.room(4 * shape::EXPERTS * tokens)?,
        counts: bed.room(4 * shape::EXPERTS)?,
        pairs: pairs as u32,
        capacity: tokens as u32,
    };
    let bytes = (8 * pairs) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(shape::EXPERTS)], bytes, operations: 0 }))
}
