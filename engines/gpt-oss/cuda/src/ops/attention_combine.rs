//! Joins the parts of attention, with the sink.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::plan::HEAD_DIM;
use crate::testing::{Bed, Bench, Expected, F32_STEP, Failure, compare, shape, widen};

arguments! {
    pub struct AttentionCombineArgs {
        pub values: Address,
        pub sums: Address,
        pub sinks: Address,
        pub entries: Address,
        pub positions: Address,
        pub out: Address,
        pub heads: u32,
        pub parts: u32,
    }
}

impl AttentionCombineArgs {
    pub fn launch(&self, entries: usize) -> Launch {
        launch("attention_combine", [entries, (self.heads as usize).div_ceil(2), 1], 128, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let (heads, parts, count) = size.of([(1, 1, 1), (8, 32, 2), (5, 3, 3), (4, 2, 33)]);
    let values = bed.floats(count * heads * parts * HEAD_DIM, 1.0);
    let mut sums = Vec::new();
    for part in 0..count * heads * parts {
        // Now and then a part without a key.
        let is_empty = bed.below(4) == 0 && part % parts != 0;
        sums.extend(if is_empty { [f32::NEG_INFINITY, 0.0] } else { [bed.float(5.0), 1.0 + bed.float(0.9)] });
    }
    let values: Vec<f32> = values
        .chunks_exact(HEAD_DIM)
        .zip(sums.chunks_exact(2))
        .flat_map(|(v, s)| v.iter().map(|v| if s[1] == 0.0 { 0.0 } else { *v }))
        .collect();
    let sinks = bed.bf16s(heads, 3.0);
    let numbers: Vec<u32> = (0..count as u32).collect();
    let out = bed.room(2 * count * heads * HEAD_DIM)?;
    let arguments = AttentionCombineArgs {
        values: bed.put_f32(&values)?,
        sums: bed.put_f32(&sums)?,
        sinks: bed.put_bf16(&sinks)?,
        entries: bed.put_u32(&numbers)?,
        positions: bed.put_u32(&numbers)?,
        out,
        heads: heads as u32,
        parts: parts as u32,
    };
    device.launch(&arguments.launch(count))?;
    let mut want = Vec::new();
    for (i, sums) in sums.chunks_exact(2 * parts).enumerate() {
        let sink = f64::from(widen(sinks[i % heads]));
        let pairs: Vec<(f64, f64)> =
            sums.as_chunks::<2>().0.iter().map(|s| (f64::from(s[0]), f64::from(s[1]))).collect();
        let largest = pairs.iter().map(|p| p.0).fold(sink, f64::max);
        let factors: Vec<f64> = pairs.iter().map(|p| (p.0 - largest).exp()).collect();
        let weight: f64 =
            (sink - largest).exp() + factors.iter().zip(&pairs).map(|(f, p)| f * p.1).sum::<f64>();
        for d in 0..HEAD_DIM {
            let of_parts = values[i * parts * HEAD_DIM..].iter().skip(d).step_by(HEAD_DIM);
            let terms = factors.iter().zip(of_parts).map(|(f, &v)| f * f64::from(v));
            let (value, size) = terms.fold((0.0, 0.0), |(v, s): (f64, f64), t| (v + t, s + t.abs()));
            let bound = size / weight * 64.0 * F32_STEP;
            want.push(Expected { value: value / weight, bound }.rounded());
        }
    }
    compare("out", &bed.get_bf16(out, count * heads * HEAD_DIM)?, &want)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    if tokens > 128 {
        return Ok(None);
    }
    let bed = Bed::new(device, 0);
    let parts = super::attention_decode::parts(tokens, shape::KV_HEADS, device.info()?.processors);
    let numbers: Vec<u32> = (0..tokens as u32).collect();
    let arguments = AttentionCombineArgs {
        values: bed.room(4 * tokens * shape::HEADS * parts * HEAD_DIM)?,
        sums: bed.room(4 * tokens * shape::HEADS * parts * 2)?,
        sinks: bed.room(2 * shape::HEADS)?,
        entries: bed.put_u32(&numbers)?,
        positions: bed.put_u32(&numbers)?,
        out: bed.room(2 * tokens * shape::HEADS * HEAD_DIM)?,
        heads: shape::HEADS as u32,
        parts: parts as u32,
    };
    let bytes = (tokens * shape::HEADS * (parts * (HEAD_DIM + 2) * 4 + HEAD_DIM * 2)) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes, operations: 0 }))
}
