//! Queries and keys turned by their position; keys and values put into blocks.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, word};
use crate::plan::BLOCK_TOKENS;
use crate::testing::{Bed, Expected, F32_STEP, Failure, compare};

/// Arguments of `rope_kv`.
#[derive(Debug, Clone, Copy)]
pub struct RopeKv {
    pub step: Slice,
    pub qkv: Slice,
    pub q: Slice,
    /// Of the layer.
    pub kv: Slice,
    pub heads: usize,
    pub kv_heads: usize,
    pub tokens: usize,
    pub turns_at: u32,
    pub slots_at: u32,
}

impl RopeKv {
    pub fn launch(&self) -> Launch {
        Launch {
            kernel: "rope_kv",
            grid: [word(self.tokens), 1, 1],
            bindings: vec![self.step, self.qkv, self.q, self.kv],
            arguments: vec![word(self.heads), word(self.kv_heads), self.turns_at, self.slots_at],
        }
    }
}

pub(super) fn check(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let dim = gpu.shape().head_dim;
    let (heads, kv_heads) = (size.of([1, 64, 6, 4]), size.of([1, 8, 3, 2]));
    let (tokens, blocks) = (size.of([1, 2, 7, 130]), 5);
    let mut bed = Bed::new(gpu, seed);
    let width = (heads + 2 * kv_heads) * dim;
    let (qkv, turns) = (bed.floats(tokens * width, 2.0), bed.floats(tokens * dim, 1.0));
    // Every place once at most.
    let (step_size, start) = (7, bed.below(blocks * BLOCK_TOKENS));
    let slots: Vec<u32> =
        (0..tokens).map(|t| ((start + t * step_size) % (blocks * BLOCK_TOKENS)) as u32).collect();
    let words: Vec<u32> = turns.iter().map(|t| t.to_bits()).chain(slots.iter().copied()).collect();
    let kv_before = bed.floats(blocks * kv_heads * 2 * BLOCK_TOKENS * dim, 1.0);
    let (step, qkv_at) = (bed.put(&words)?, bed.put_f32(&qkv)?);
    let (q, kv) = (bed.room(tokens * heads * dim)?, bed.put_f32(&kv_before)?);
    let rope = RopeKv {
        step: step.whole(),
        qkv: qkv_at.whole(),
        q: q.whole(),
        kv: kv.whole(),
        heads,
        kv_heads,
        tokens,
        turns_at: 0,
        slots_at: word(turns.len()),
    };
    bed.run(&[rope.launch()])?;
    let mut q_want = Vec::new();
    let mut kv_want: Vec<_> = kv_before.iter().map(|&x| Expected::exactly(x)).collect();
    for token in 0..tokens {
        let (cos, sin) = turns[token * dim..][..dim].split_at(dim / 2);
        let turn = |head: usize, i: usize| {
            let head = &qkv[token * width + head * dim..][..dim];
            let (pair, wide) = (i % (dim / 2), f64::from);
            let (x, y) = (wide(head[pair]), wide(head[pair + dim / 2]));
            let (cos, sin) = (wide(cos[pair]), wide(sin[pair]));
            let value = if i < dim / 2 { x * cos - y * sin } else { y * cos + x * sin };
            Expected { value, bound: (x.abs() + y.abs()) * 2.0 * F32_STEP }
        };
        q_want.extend((0..heads * dim).map(|i| turn(i / dim, i % dim)));
        let (block, place) = (slots[token] as usize / BLOCK_TOKENS, slots[token] as usize % BLOCK_TOKENS);
        for head in 0..kv_heads {
            let keys = (block * kv_heads + head) * 2 * BLOCK_TOKENS * dim;
            for i in 0..dim {
                kv_want[keys + i * BLOCK_TOKENS + place] = turn(heads + head, i);
                let value = qkv[token * width + (heads + kv_heads + head) * dim + i];
                kv_want[keys + (BLOCK_TOKENS + place) * dim + i] = Expected::exactly(value);
            }
        }
    }
    compare("q", &bed.get_f32(q, q_want.len())?, &q_want)?;
    compare("kv", &bed.get_f32(kv, kv_want.len())?, &kv_want)
}
