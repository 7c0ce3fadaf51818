//! Attention of single tokens over the paged KV, in parts along the context.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::attention_combine::AttentionCombineArgs;
use crate::ops::{Size, launch};
use crate::plan::{BLOCK_TOKENS, HEAD_DIM};
use crate::testing::{BF16_STEP, Bed, Bench, Expected, F32_STEP, Failure, compare, shape, widen};

/// More parts than this are not worth joining.
const PARTS_MAX: usize = 32;

arguments! {
    pub struct AttentionDecodeArgs {
        pub q: Address,
        pub kv: Address,
        pub entries: Address,
        pub positions: Address,
        pub rows: Address,
        pub table_starts: Address,
        pub table_firsts: Address,
        pub tables: Address,
        pub values: Address,
        pub sums: Address,
        pub heads: u32,
        pub kv_heads: u32,
        pub layer: u32,
        pub layers: u32,
        pub window: u32,
        pub parts: u32,
    }
}

impl AttentionDecodeArgs {
    pub fn launch(&self, entries: usize) -> Launch {
        launch("attention_decode", [entries, self.kv_heads as usize, self.parts as usize], 128, self)
    }
}

/// Parts of a context for so many tokens: two blocks for each processor, so that all have something to read.
pub fn parts(entries: usize, kv_heads: usize, processors: u32) -> usize {
    (2 * processors as usize).div_ceil((entries * kv_heads).max(1)).clamp(1, PARTS_MAX)
}

/// Sequences in paged KV with garbage in every place that is not theirs.
#[derive(Debug)]
pub(super) struct Paged {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) layers: usize,
    pub(super) layer: usize,
    pub(super) window: usize,
    numbers: Vec<u16>,
    pub(super) starts: Vec<u32>,
    pub(super) firsts: Vec<u32>,
    pub(super) tables: Vec<u32>,
    pub(super) sinks: Vec<u16>,
}

impl Paged {
    /// Of each sequence `ends[row]` positions are there, as far as one that looks from position `from[row]` on sees
    /// them.
    pub(super) fn new(
        bed: &mut Bed<'_>,
        heads: [usize; 2],
        window: usize,
        from: &[usize],
        ends: &[usize],
    ) -> Paged {
        let [heads, kv_heads] = heads;
        let (layers, layer) = (2, 1);
        let first = |row: usize| {
            if window == 0 { 0 } else { (from[row] + 1).saturating_sub(window) / BLOCK_TOKENS }
        };
        let lengths: Vec<usize> =
            (0..ends.len()).map(|row| ends[row].div_ceil(BLOCK_TOKENS) - first(row)).collect();
        let count: usize = lengths.iter().sum::<usize>() + 2;
        // Blocks in an order by chance.
        let mut order: Vec<u32> = (0..count as u32).collect();
        for i in (1..count).rev() {
            order.swap(i, bed.below(i + 1));
        }
        let mut paged = Paged {
            heads,
            kv_heads,
            layers,
            layer,
            window,
            numbers: vec![0xffff; count * layers * kv_heads * 2 * BLOCK_TOKENS * HEAD_DIM],
            starts: Vec::new(),
            firsts: (0..ends.len()).map(|row| first(row) as u32).collect(),
            tables: order,
            sinks: bed.bf16s(heads, 2.0),
        };
        let mut start = 0;
        for row in 0..ends.len() {
            paged.starts.push(start as u32);
            start += lengths[row];
            let seen = if window == 0 { 0 } else { (from[row] + 1).saturating_sub(window) };
            for position in seen..ends[row] {
                for head in 0..kv_heads {
                    for which in 0..2 {
                        let at = paged.at(row, head, position, which);
                        let numbers = bed.bf16s(HEAD_DIM, 1.5);
                        paged.numbers[at..at + HEAD_DIM].copy_from_slice(&numbers);
                    }
                }
            }
        }
        paged
    }

    /// `which`: 0 the key, 1 the value.
    fn at(&self, row: usize, head: usize, position: usize, which: usize) -> usize {
        let entry = self.starts[row] as usize + position / BLOCK_TOKENS - self.firsts[row] as usize;
        let block = self.tables[entry] as usize;
        let head = (block * self.layers + self.layer) * self.kv_heads + head;
        ((head * 2 + which) * BLOCK_TOKENS + position % BLOCK_TOKENS) * HEAD_DIM
    }

    pub(super) fn put(&self, bed: &Bed<'_>) -> Result<Address, Failure> {
        Ok(bed.put_bf16(&self.numbers)?)
    }

    /// What the query `q` of a head at a position of a sequence gets.
    pub(super) fn attend(&self, row: usize, head: usize, position: usize, q: &[u16]) -> Vec<Expected> {
        let kv_head = head / (self.heads / self.kv_heads);
        let seen = if self.window == 0 { 0 } else { (position + 1).saturating_sub(self.window) };
        let vector = |position: usize, which: usize| {
            let at = self.at(row, kv_head, position, which);
            self.numbers[at..at + HEAD_DIM].iter().map(|&x| f64::from(widen(x))).collect::<Vec<_>>()
        };
        let dot = |key: Vec<f64>| -> f64 { key.iter().zip(q).map(|(k, &q)| k * f64::from(widen(q))).sum() };
        let scores: Vec<f64> = (seen..=position).map(|p| dot(vector(p, 0)) * 0.125).collect();
        let sink = f64::from(widen(self.sinks[head]));
        let largest = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum = weights.iter().sum::<f64>() + (sink - largest).exp();
        let (mut values, mut sizes) = (vec![0.0; HEAD_DIM], vec![0.0; HEAD_DIM]);
        for (position, weight) in (seen..=position).zip(weights) {
            for (d, value) in vector(position, 1).into_iter().enumerate() {
                values[d] += weight / sum * value;
                sizes[d] += (weight / sum * value).abs();
            }
        }
        // Weights may be rounded to bf16 before they are multiplied.
        let expected =
            |(value, size): (f64, f64)| Expected { value, bound: size * (BF16_STEP / 2.0 + 64.0 * F32_STEP) };
        values.into_iter().zip(sizes).map(|pair| expected(pair).rounded()).collect()
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    for (window, parts) in [(0, 1), (0, 3), (100, 1), (70, 2)] {
        let mut bed = Bed::new(device, seed);
        let heads = size.of([[1, 1], [16, 2], [6, 2], [16, 1]]);
        let positions: &[usize] = size.of([&[0][..], &[640, 63], &[200, 7, 64, 129], &[5; 9]]);
        let ends: Vec<usize> = positions.iter().map(|p| p + 1).collect();
        let paged = Paged::new(&mut bed, heads, window, positions, &ends);
        let [heads, kv_heads] = heads;
        let count = positions.len();
        // One token more, there to fill up; entries backwards.
        let q = bed.bf16s((count + 1) * heads * HEAD_DIM, 2.0);
        let mut at: Vec<u32> = positions.iter().map(|&p| p as u32).collect();
        at.push(u32::MAX);
        let entries: Vec<u32> = (0..=count as u32).rev().collect();
        let mut rows: Vec<u32> = (0..count as u32).collect();
        rows.push(0);
        let (values, sums) = (
            bed.room(4 * (count + 1) * heads * parts * HEAD_DIM)?,
            bed.room(4 * (count + 1) * heads * parts * 2)?,
        );
        let (entries, at) = (bed.put_u32(&entries)?, bed.put_u32(&at)?);
        let arguments = AttentionDecodeArgs {
            q: bed.put_bf16(&q)?,
            kv: paged.put(&bed)?,
            entries,
            positions: at,
            rows: bed.put_u32(&rows)?,
            table_starts: bed.put_u32(&paged.starts)?,
            table_firsts: bed.put_u32(&paged.firsts)?,
            tables: bed.put_u32(&paged.tables)?,
            values,
            sums,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            layer: paged.layer as u32,
            layers: paged.layers as u32,
            window: window as u32,
            parts: parts as u32,
        };
        device.launch(&arguments.launch(count + 1))?;
        let out = bed.room(2 * (count + 1) * heads * HEAD_DIM)?;
        let combine = AttentionCombineArgs {
            values,
            sums,
            sinks: bed.put_bf16(&paged.sinks)?,
            entries,
            positions: at,
            out,
            heads: heads as u32,
            parts: parts as u32,
        };
        device.launch(&combine.launch(count + 1))?;
        let mut want = Vec::new();
        for (row, &position) in positions.iter().enumerate() {
            for head in 0..heads {
                let q = &q[(row * heads + head) * HEAD_DIM..][..HEAD_DIM];
                want.extend(paged.attend(row, head, position, q));
            }
        }
        want.resize((count + 1) * heads * HEAD_DIM, Expected { value: 0.0, bound: 0.0 });
        let what = format!("window {window}, {parts} parts");
        compare(&what, &bed.get_bf16(out, want.len())?, &want)?;
    }
    Ok(())
}

/// Context of the benchmark, in tokens.
const BENCH_CONTEXT: usize = 4096;

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    if tokens > 128 {
        return Ok(None);
    }
    let bed = Bed::new(device, 0);
    let parts = parts(tokens, shape::KV_HEADS, device.info()?.processors);
    let blocks = BENCH_CONTEXT / BLOCK_TOKENS;
    let row = |f: &dyn Fn(u32) -> u32| bed.put_u32(&(0..tokens as u32).map(f).collect::<Vec<_>>());
    let kv_bytes = tokens * BENCH_CONTEXT * shape::KV_HEADS * 2 * HEAD_DIM * 2;
    let arguments = AttentionDecodeArgs {
        q: bed.room(2 * tokens * shape::HEADS * HEAD_DIM)?,
        kv: bed.room(kv_bytes)?,
        entries: row(&|i| i)?,
        positions: row(&|_| BENCH_CONTEXT as u32 - 1)?,
        rows: row(&|i| i)?,
        table_starts: row(&|i| i * blocks as u32)?,
        table_firsts: row(&|_| 0)?,
        tables: bed.put_u32(&(0..(tokens * blocks) as u32).collect::<Vec<_>>())?,
        values: bed.room(4 * tokens * shape::HEADS * parts * HEAD_DIM)?,
        sums: bed.room(4 * tokens * shape::HEADS * parts * 2)?,
        heads: shape::HEADS as u32,
        kv_heads: shape::KV_HEADS as u32,
        layer: 0,
        layers: 1,
        window: 0,
        parts: parts as u32,
    };
    let operations = (4 * tokens * shape::HEADS * BENCH_CONTEXT * HEAD_DIM) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes: kv_bytes as u64, operations }))
}
