//! Attention of neighbouring tokens over the paged KV, on tensor cores.

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::attention_decode::Paged;
use crate::ops::{Size, launch};
use crate::plan::{BLOCK_TOKENS, HEAD_DIM};
use crate::testing::{Bed, Bench, Failure, compare, shape};

/// Heads of a block.
const HEADS: usize = 4;
/// Tokens of a tile.
const TILE: usize = 16;

arguments! {
    pub struct AttentionPrefillArgs {
        pub q: Address,
        pub kv: Address,
        pub sinks: Address,
        pub tiles: Address,
        pub positions: Address,
        pub table_starts: Address,
        pub table_firsts: Address,
        pub tables: Address,
        pub out: Address,
        pub heads: u32,
        pub kv_heads: u32,
        pub layer: u32,
        pub layers: u32,
        pub window: u32,
    }
}

impl AttentionPrefillArgs {
    pub fn launch(&self, tiles: usize) -> Launch {
        let quarters = ((self.heads / self.kv_heads) as usize).div_ceil(HEADS);
        launch("attention_prefill", [tiles, self.kv_heads as usize * quarters, 1], 128, self)
    }
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    for window in [0, 100, 20] {
        let mut bed = Bed::new(device, seed);
        let heads = size.of([[1, 1], [16, 2], [6, 2], [4, 1]]);
        // Of each sequence the first new position, and how many.
        let spans: &[(usize, usize)] =
            size.of([&[(0, 1)][..], &[(60, 16)], &[(200, 13), (0, 5)], &[(31, 70)]]);
        let from: Vec<usize> = spans.iter().map(|s| s.0).collect();
        let ends: Vec<usize> = spans.iter().map(|s| s.0 + s.1).collect();
        let paged = Paged::new(&mut bed, heads, window, &from, &ends);
        let [heads, kv_heads] = heads;
        let count: usize = spans.iter().map(|s| s.1).sum();
        let q = bed.bf16s(count * heads * HEAD_DIM, 2.0);
        let (mut tiles, mut positions, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for (row, &(start, length)) in spans.iter().enumerate() {
            for first in (0..length).step_by(TILE) {
                tiles.extend([positions.len() + first, TILE.min(length - first), row, 0].map(|n| n as u32));
            }
            for position in start..start + length {
                for head in 0..heads {
                    let q = &q[(positions.len() * heads + head) * HEAD_DIM..][..HEAD_DIM];
                    want.extend(paged.attend(row, head, position, q));
                }
                positions.push(position as u32);
            }
        }
        let out = bed.room(2 * count * heads * HEAD_DIM)?;
        let arguments = AttentionPrefillArgs {
            q: bed.put_bf16(&q)?,
            kv: paged.put(&bed)?,
            sinks: bed.put_bf16(&paged.sinks)?,
            tiles: bed.put_u32(&tiles)?,
            positions: bed.put_u32(&positions)?,
            table_starts: bed.put_u32(&paged.starts)?,
            table_firsts: bed.put_u32(&paged.firsts)?,
            tables: bed.put_u32(&paged.tables)?,
            out,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            layer: paged.layer as u32,
            layers: paged.layers as u32,
            window: window as u32,
        };
        device.launch(&arguments.launch(tiles.len() / 4))?;
        compare(&format!("window {window}"), &bed.get_bf16(out, want.len())?, &want)?;
    }
    Ok(())
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    if tokens < TILE {
        return Ok(None);
    }
    let bed = Bed::new(device, 0);
    let blocks = tokens.div_ceil(BLOCK_TOKENS);
    let tiles: Vec<u32> = (0..tokens / TILE).flat_map(|i| [(i * TILE) as u32, TILE as u32, 0, 0]).collect();
    let kv_bytes = blocks * BLOCK_TOKENS * shape::KV_HEADS * 2 * HEAD_DIM * 2;
    let arguments = AttentionPrefillArgs {
        q: bed.room(2 * tokens * shape::HEADS * HEAD_DIM)?,
        kv: bed.room(kv_bytes)?,
        sinks: bed.room(2 * shape::HEADS)?,
        tiles: bed.put_u32(&tiles)?,
        positions: bed.put_u32(&(0..tokens as u32).collect::<Vec<_>>())?,
        table_starts: bed.put_u32(&[0])?,
        table_firsts: bed.put_u32(&[0])?,
        tables: bed.put_u32(&(0..blocks as u32).collect::<Vec<_>>())?,
        out: bed.room(2 * tokens * shape::HEADS * HEAD_DIM)?,
        heads: shape::HEADS as u32,
        kv_heads: shape::KV_HEADS as u32,
        layer: 0,
        layers: 1,
        window: 0,
    };
    let bytes = (kv_bytes + 4 * tokens * shape::HEADS * HEAD_DIM) as u64;
    // Each token looks at half of them on average.
    let operations = (2 * tokens * tokens * shape::HEADS * HEAD_DIM) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tiles.len() / 4)], bytes, operations }))
}
