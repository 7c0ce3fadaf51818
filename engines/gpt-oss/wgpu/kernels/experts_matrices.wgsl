// experts_tile for adapters with cooperative matrices, which matrices.wgsl multiplies.

struct Arguments {
    rows: u32,
    columns: u32,
    chosen: u32,
    blocks_base: u32,
    scales_base: u32,
    bias_base: u32,
    limit: f32,
    alpha: f32,
    expert_first: u32,
    experts: u32,
    blocks_stride: u32,
    tokens_max: u32,
}

@group(0) @binding(0) var<storage, read> lists: array<u32>;
@group(0) @binding(1) var<storage, read> counts: array<u32>;
@group(0) @binding(2) var<storage, read> t: array<f32>;
@group(0) @binding(3) var<storage, read> blocks: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

struct Tile {
    // Of those in this piece; where its list begins, and how many pairs that has.
    expert: u32,
    list: u32,
    count: u32,
    // The first row, and the first pair of the list.
    row: u32,
    pair: u32,
}

fn put(tile: Tile, tid: u32, k: u32) {
    for (var i = tid; i < 256u; i += THREADS) {
        // A word of the block of each row.
        let r = i / 4u;
        let row = min(tile.row + r, a.rows - 1u);
        let block = a.blocks_base + tile.expert * a.blocks_stride + row * (a.columns / 8u);
        let word = blocks[block + k / 8u + i % 4u];
        let scale_at = a.scales_base + (tile.expert * a.rows + row) * (a.columns / 32u) + k / 32u;
        let scale = half_scale(scales[scale_at / 4u], scale_at);
        let to = r * STRIDE + i % 4u * 8u;
        let one = first_four(word) * scale;
        let two = last_four(word) * scale;
        weights[to] = narrow(one.x);
        weights[to + 1u] = narrow(one.y);
        weights[to + 2u] = narrow(one.z);
        weights[to + 3u] = narrow(one.w);
        weights[to + 4u] = narrow(two.x);
        weights[to + 5u] = narrow(two.y);
        weights[to + 6u] = narrow(two.z);
        weights[to + 7u] = narrow(two.w);
    }
    for (var i = tid; i < 1024u; i += THREADS) {
        let m = i / 32u;
        let c = i % 32u;
        var origin = lists[tile.list + min(tile.pair + m, tile.count - 1u)];
        if UP {
            origin /= a.chosen;
        }
        put_input(m * STRIDE + c, t[origin * a.columns + k + c]);
    }
}

// A workgroup for each 64 rows (x) and 32 pairs (y) of an expert (z); most have none.
@compute @workgroup_size(THREADS)
fn experts_tile(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
    @builtin(subgroup_id) subgroup: u32
) {
    let expert = a.expert_first + group.z;
    let tile = Tile(group.z, expert * a.tokens_max, counts[expert], group.x * ROWS, group.y * 32u);
    if tile.pair >= tile.count {
        return;
    }
    multiply(tile, tid, subgroup);
    for (var i = tid; i < 16u * ROWS; i += THREADS) {
        // Two neighbours, gate and up; rows are even in number.
        let row = tile.row + i % 32u * 2u;
        let at = tile.pair + i / 32u;
        if row < a.rows && at < tile.count {
            let pair = lists[tile.list + at];
            let biases = bias[a.bias_base + (tile.expert * a.rows + row) / 2u];
            let one = results[2u * i] + low(biases);
            let two = results[2u * i + 1u] + high(biases);
            if UP {
                out[pair * (a.rows / 2u) + row / 2u] = swiglu(one, two, a.limit, a.alpha);
            } else {
                out[pair * a.rows + row] = one;
                out[pair * a.rows + row + 1u] = two;
            }
        }
    }
}
