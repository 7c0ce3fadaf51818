//! Turns queries and keys, and stores keys and values.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::plan::{BLOCK_TOKENS, HEAD_DIM};
use crate::testing::{Bed, Bench, Expected, F32_STEP, Failure, compare, shape};

arguments! {
    pub struct RopeKvArgs {
        pub qkv: Address,
        pub turns: Address,
        pub positions: Address,
        pub slots: Address,
        pub q: Address,
        pub kv: Address,
        pub heads: u32,
        pub kv_heads: u32,
        pub layer: u32,
        pub layers: u32,
    }
}

impl RopeKvArgs {
    pub fn launch(&self, tokens: usize) -> Launch {
        launch("rope_kv", [tokens, 1, 1], 256, self)
    }
}

/// bf16 numbers of keys, or of values, of a head in a block.
const HEAD_BLOCK: usize = BLOCK_TOKENS * HEAD_DIM;

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let (heads, kv_heads) = size.of([(1, 1), (8, 2), (6, 3), (4, 2)]);
    let count = size.of([1, 3, 5, 70]);
    let (layers, blocks, context) = (2, 3, 50);
    let width = (heads + 2 * kv_heads) * HEAD_DIM;
    let qkv = bed.floats(count * width, 2.0);
    let turns = bed.floats(context * HEAD_DIM, 1.3);
    // The second token, where there is one, is there to fill up.
    let positions: Vec<u32> =
        (0..count).map(|i| if i == 1 { u32::MAX } else { bed.below(context) as u32 }).collect();
    let slots: Vec<u32> = (0..count).map(|i| (i * 7 + 5) as u32 % (blocks * BLOCK_TOKENS) as u32).collect();
    let q = bed.room(2 * count * heads * HEAD_DIM)?;
    let kv_numbers = blocks * layers * kv_heads * 2 * HEAD_BLOCK;
    let kv = bed.put_bf16(&vec![0; kv_numbers])?;
    let layer = 1;
    let arguments = RopeKvArgs {
        qkv: bed.put_f32(&qkv)?,
        turns: bed.put_f32(&turns)?,
        positions: bed.put_u32(&positions)?,
        slots: bed.put_u32(&slots)?,
        q,
        kv,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        layer: layer as u32,
        layers: layers as u32,
    };
    device.launch(&arguments.launch(count))?;

    let got_q = bed.get_bf16(q, count * heads * HEAD_DIM)?;
    let mut want_kv = vec![Expected { value: 0.0, bound: 0.0 }; kv_numbers];
    for token in (0..count).filter(|&t| positions[t] != u32::MAX) {
        let (cos, sin) = turns[positions[token] as usize * HEAD_DIM..][..HEAD_DIM].split_at(HEAD_DIM / 2);
        let turned = |head: usize| {
            let x = &qkv[token * width + head * HEAD_DIM..][..HEAD_DIM];
            (0..HEAD_DIM).map(move |d| {
                let pair = d % 32;
                let (a, b) = (f64::from(x[pair]), f64::from(x[pair + 32]));
                let (c, s) = (f64::from(cos[pair]), f64::from(sin[pair]));
                let value = if d < 32 { a * c - b * s } else { b * c + a * s };
                Expected { value, bound: (a.abs() + b.abs()) * 2.0 * F32_STEP }.rounded()
            })
        };
        let want: Vec<_> = (0..heads).flat_map(turned).collect();
        compare("q", &got_q[token * heads * HEAD_DIM..][..heads * HEAD_DIM], &want)?;
        let (block, place) = (slots[token] as usize / BLOCK_TOKENS, slots[token] as usize % BLOCK_TOKENS);
        for head in 0..kv_heads {
            let at = ((block * layers + layer) * kv_heads + head) * 2 * HEAD_BLOCK + place * HEAD_DIM;
            for (d, want) in turned(heads + head).enumerate() {
                want_kv[at + d] = want;
            }
            let values = &qkv[token * width + (heads + kv_heads + head) * HEAD_DIM..][..HEAD_DIM];
            for (d, &value) in values.iter().enumerate() {
                want_kv[at + HEAD_BLOCK + d] = Expected { value: value.into(), bound: 0.0 }.rounded();
            }
        }
    }
    compare("kv", &bed.get_bf16(kv, kv_numbers)?, &want_kv)
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    let bed = Bed::new(device, 0);
    let blocks = tokens.div_ceil(BLOCK_TOKENS);
    let numbers: Vec<u32> = (0..tokens as u32).collect();
    let arguments = RopeKvArgs {
        qkv: bed.room(4 * tokens * shape::QKV)?,
        turns: bed.room(4 * tokens * HEAD_DIM)?,
        positions: bed.put_u32(&numbers)?,
        slots: bed.put_u32(&numbers)?,
        q: bed.room(2 * tokens * shape::HEADS * HEAD_DIM)?,
        kv: bed.room(blocks * shape::KV_HEADS * 4 * HEAD_BLOCK)?,
        heads: shape::HEADS as u32,
        kv_heads: shape::KV_HEADS as u32,
        layer: 0,
        layers: 1,
    };
    let bytes = (6 * tokens * shape::QKV + 4 * tokens * HEAD_DIM) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes, operations: 0 }))
}
