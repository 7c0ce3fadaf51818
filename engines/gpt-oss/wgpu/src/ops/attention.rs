//! Attention over the paged KV, and the joining of its parts.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, Tensor, word};
use crate::plan::BLOCK_TOKENS;
use crate::step::GroupStep;
use crate::testing::{Bed, Expected, F32_STEP, Failure, compare, widen};

/// Consecutive tokens of a sequence that `attention_prefill` takes together.
pub const QUERIES: usize = 4;
/// Workgroups that keep any GPU busy.
const WORKGROUPS: usize = 512;
/// A part that is shorter costs more to join than it saves.
const PART_TOKENS_MIN: usize = 4 * BLOCK_TOKENS;
/// More are not joined quickly.
const PARTS_MAX: usize = 32;

/// Into how many parts the contexts of so many tokens are cut, where the longest has `context` positions.
pub fn parts(tokens: usize, kv_heads: usize, context: usize) -> usize {
    let useful = context.div_ceil(PART_TOKENS_MIN);
    WORKGROUPS.div_ceil(tokens * kv_heads).min(useful).clamp(1, PARTS_MAX)
}

/// Arguments of `attention_decode`, `attention_prefill` and `attention_combine`.
#[derive(Debug, Clone)]
pub(crate) struct AttentionOf {
    pub(crate) step: Slice,
    pub(crate) q: Slice,
    /// Of the layer.
    pub(crate) kv: Slice,
    pub(crate) part_values: Slice,
    pub(crate) part_sums: Slice,
    pub(crate) sinks: Tensor,
    pub(crate) out: Slice,
    /// Places of the pairs in the step, and how many there are: of tokens alone, and of up to [`QUERIES`] together.
    pub(crate) single: (u32, usize),
    pub(crate) tiles: (u32, usize),
    pub(crate) positions_at: u32,
    pub(crate) rows_at: u32,
    pub(crate) group: GroupStep,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) window: Option<usize>,
    pub(crate) tokens: usize,
}

impl AttentionOf {
    /// What there is to do for the entries, and then the joining.
    pub(crate) fn launches(&self) -> impl Iterator<Item = Launch> {
        let of = |kernel, (at, count): (u32, usize)| (count > 0).then(|| self.entries(kernel, at, count));
        let combine = Launch {
            kernel: "attention_combine",
            grid: [word(self.heads), word(self.tokens), 1],
            bindings: vec![self.part_values, self.part_sums, self.sinks.slice, self.out],
            arguments: vec![word(self.heads), word(self.group.parts), self.sinks.base_words()],
        };
        let entries = [of("attention_decode", self.single), of("attention_prefill", self.tiles)];
        entries.into_iter().flatten().chain([combine])
    }

    fn entries(&self, kernel: &'static str, at: u32, count: usize) -> Launch {
        let GroupStep { starts_at, firsts_at, tables_at, .. } = self.group;
        Launch {
            kernel,
            grid: [word(count), word(self.kv_heads), word(self.group.parts)],
            bindings: vec![self.step, self.q, self.kv, self.part_values, self.part_sums],
            arguments: vec![
                at,
                self.positions_at,
                self.rows_at,
                starts_at,
                firsts_at,
                tables_at,
                word(self.heads),
                word(self.kv_heads),
                word(self.window.unwrap_or(0)),
                word(self.group.parts),
                (1.0 / (self.head_dim as f32).sqrt()).to_bits(),
            ],
        }
    }
}

pub(super) fn check_decode(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    for window in [None, Some(size.of([1, 128, 7, 64]))] {
        for parts in [1, size.of([2, 5, 3, 2])] {
            check(gpu, size, seed, window, parts, 1)?;
        }
    }
    Ok(())
}

pub(super) fn check_prefill(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    for window in [None, Some(size.of([1, 128, 7, 64]))] {
        check(gpu, size, seed, window, 1, size.of([2, 70, 9, 131]))?;
    }
    Ok(())
}

/// Sequences with so many new tokens each, whose blocks lie anywhere and hold what is no number where nothing was stored.
fn check(
    gpu: &mut Gpu,
    size: Size,
    seed: u64,
    window: Option<usize>,
    parts: usize,
    new: usize,
) -> Result<(), Failure> {
    let shape = gpu.shape();
    let (dim, kv_heads) = (shape.head_dim, size.of([1, 8, 3, 2]));
    let heads = kv_heads * shape.group;
    let mut bed = Bed::new(gpu, seed);
    let rows = size.of([1, 3, 2, 5]);
    // Of each sequence, the positions before its new tokens.
    let before: Vec<usize> =
        (0..rows).map(|r| if r == 0 { 0 } else { bed.below(size.of([2, 400, 150, 70])) }).collect();
    let pages = |row: usize| (before[row] + new).div_ceil(BLOCK_TOKENS);
    let first_seen = |position: usize| window.map_or(0, |w| (position + 1).saturating_sub(w));
    let firsts: Vec<usize> = before.iter().map(|&b| first_seen(b) / BLOCK_TOKENS).collect();
    let count: usize = (0..rows).map(|row| pages(row) - firsts[row]).sum();
    let blocks = count + 2;
    // A step that has nothing in common with their number deals blocks out in a wild order.
    let stride = (1..).map(|n| 2 * n + 5).find(|n| greatest_common_divisor(*n, blocks) == 1).unwrap_or(1);
    let mut dealt = (0..blocks).map(|i| (i * stride + 1) % blocks);

    let mut kv = vec![f32::NAN; blocks * kv_heads * 2 * BLOCK_TOKENS * dim];
    let mut stored: Vec<Vec<[Vec<f32>; 2]>> = Vec::new();
    let (mut tables, mut starts) = (Vec::new(), Vec::new());
    for row in 0..rows {
        starts.push(word(tables.len()));
        tables.extend(dealt.by_ref().take(pages(row) - firsts[row]).map(word));
        let mut positions = Vec::new();
        for position in 0..before[row] + new {
            let (keys, values) = (bed.floats(kv_heads * dim, 2.0), bed.floats(kv_heads * dim, 2.0));
            let page = position / BLOCK_TOKENS;
            if page >= firsts[row] {
                let block = tables[starts[row] as usize + page - firsts[row]] as usize;
                for i in 0..kv_heads * dim {
                    let (at, place) =
                        ((block * kv_heads + i / dim) * 2 * BLOCK_TOKENS * dim, position % BLOCK_TOKENS);
                    kv[at + i % dim * BLOCK_TOKENS + place] = keys[i];
                    kv[at + (BLOCK_TOKENS + place) * dim + i % dim] = values[i];
                }
            }
            positions.push([keys, values]);
        }
        stored.push(positions);
    }

    let tokens = rows * new;
    let q = bed.floats(tokens * heads * dim, 2.0);
    let sinks = bed.bf16s(heads, 4.0);
    let mut words: Vec<u32> = Vec::new();
    let mut place = |numbers: Vec<u32>| {
        let at = word(words.len());
        words.extend(numbers);
        at
    };
    let together = if new == 1 { 1 } else { QUERIES };
    let entries: Vec<u32> = (0..rows)
        .flat_map(|row| (0..new).step_by(together).map(move |i| (row * new + i, together.min(new - i))))
        .flat_map(|(first, length)| [word(first), word(length)])
        .collect();
    let entries = (place(entries.clone()), entries.len() / 2);
    let positions_at = place((0..tokens).map(|t| word(before[t / new] + t % new)).collect());
    let rows_at = place((0..tokens).map(|t| word(t / new)).collect());
    let group = GroupStep {
        slots_at: 0,
        starts_at: place(starts),
        firsts_at: place(firsts.iter().map(|&f| word(f)).collect()),
        tables_at: place(tables),
        parts,
    };
    let (step, q_at, kv_at) = (bed.put(&words)?, bed.put_f32(&q)?, bed.put_f32(&kv)?);
    let (part_values, part_sums) =
        (bed.room(tokens * heads * parts * dim)?, bed.room(tokens * heads * parts * 2)?);
    let out = bed.room(tokens * heads * dim)?;
    let attention = AttentionOf {
        step: step.whole(),
        q: q_at.whole(),
        kv: kv_at.whole(),
        part_values: part_values.whole(),
        part_sums: part_sums.whole(),
        sinks: bed.tensor_bf16(&sinks)?,
        out: out.whole(),
        single: if new == 1 { entries } else { (0, 0) },
        tiles: if new == 1 { (0, 0) } else { entries },
        positions_at,
        rows_at,
        group,
        heads,
        kv_heads,
        head_dim: dim,
        window,
        tokens,
    };
    bed.run(&attention.launches().collect::<Vec<_>>())?;

    let wide = |x: f32| f64::from(x);
    let mut want = Vec::new();
    for token in 0..tokens {
        let (row, position) = (token / new, before[token / new] + token % new);
        for head in 0..heads {
            let q = &q[(token * heads + head) * dim..][..dim];
            let kv_head = head / shape.group * dim;
            let visible = &stored[row][first_seen(position)..=position];
            let score = |key: &[f32]| {
                q.iter().zip(&key[kv_head..]).map(|(&a, &b)| wide(a) * wide(b)).sum::<f64>()
                    / wide(dim as f32).sqrt()
            };
            let scores: Vec<f64> = visible.iter().map(|[key, _]| score(key)).collect();
            let sink = wide(widen(sinks[head]));
            let top = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let sum = weights.iter().sum::<f64>() + (sink - top).exp();
            for d in 0..dim {
                let terms = || weights.iter().zip(visible).map(|(w, [_, v])| w / sum * wide(v[kv_head + d]));
                let size: f64 = terms().map(f64::abs).sum();
                // A score is a sum of 64 products that is off by some steps of its largest parts, of a size of 10.
                want.push(Expected { value: terms().sum(), bound: size * 400.0 * F32_STEP + 1e-6 });
            }
        }
    }
    compare("out", &bed.get_f32(out, want.len())?, &want)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
