//! Rows divided by the root of their mean square, times a weight.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, Tensor, word};
use crate::testing::{Bed, Expected, Failure, compare, widen};

/// Arguments of `rmsnorm`.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm {
    pub step: Slice,
    pub x: Slice,
    pub weight: Tensor,
    pub out: Slice,
    pub hidden: usize,
    pub epsilon: f32,
    pub rows: usize,
    /// Where the rows are listed in the step; none: the first ones.
    pub list_at: Option<u32>,
}

impl RmsNorm {
    pub fn launch(&self) -> Launch {
        let list_at = self.list_at.unwrap_or(u32::MAX);
        Launch {
            kernel: "rmsnorm",
            grid: [word(self.rows), 1, 1],
            bindings: vec![self.step, self.x, self.weight.slice, self.out],
            arguments: vec![word(self.hidden), self.epsilon.to_bits(), list_at, self.weight.base_words()],
        }
    }
}

pub(super) fn check(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(gpu, seed);
    let (hidden, rows) = (size.of([32, 2880, 96, 224]), size.of([1, 3, 5, 100]));
    let (x, weight) = (bed.floats(rows * hidden, 4.0), bed.bf16s(hidden, 1.0));
    let list: Vec<u32> = (0..rows).map(|_| bed.below(rows) as u32).collect();
    let (step, x_at) = (bed.put(&list)?, bed.put_f32(&x)?);
    let weight_at = bed.tensor_bf16(&weight)?;
    for list_at in [None, Some(0)] {
        let out = bed.room(rows * hidden)?;
        let norm = RmsNorm {
            step: step.whole(),
            x: x_at.whole(),
            weight: weight_at,
            out: out.whole(),
            hidden,
            epsilon: 1e-5,
            rows,
            list_at,
        };
        bed.run(&[norm.launch()])?;
        let mut want = Vec::new();
        for (place, &listed) in list.iter().enumerate() {
            let row = if list_at.is_some() { listed as usize } else { place };
            let x = &x[row * hidden..][..hidden];
            let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            let scale = 1.0 / (squares / hidden as f64 + 1e-5).sqrt();
            let number = |(&x, &w): (&f32, &u16)| f64::from(x) * scale * f64::from(widen(w));
            want.extend(x.iter().zip(&weight).map(number).map(|value| Expected::within(value, 32.0)));
        }
        compare("out", &bed.get_f32(out, rows * hidden)?, &want)?;
    }
    Ok(())
}
