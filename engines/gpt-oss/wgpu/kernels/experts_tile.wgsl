// One matrix of every expert times the tokens that go to it: tiles of 64 rows and 32 pairs, so that a weight is read once for
// 32 tokens. UP, and all arguments, as in experts_gemv.

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
    // See experts_sort.
    tokens_max: u32,
}

// See experts_sort: the lists, and behind them the counts.
@group(0) @binding(0) var<storage, read> lists: array<u32>;
@group(0) @binding(1) var<storage, read> counts: array<u32>;
@group(0) @binding(2) var<storage, read> t: array<f32>;
@group(0) @binding(3) var<storage, read> blocks: array<u32>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

// A row of 32 numbers takes 33 places, so that numbers below one another are in different banks.
var<workgroup> weights: array<f32, 64 * 33>;
var<workgroup> inputs: array<f32, 32 * 33>;

// A workgroup for each 64 rows (x) and 32 pairs (y) of an expert (z); most have none. Each thread has four rows, two of gate
// and up, of two pairs.
@compute @workgroup_size(256)
fn experts_tile(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    // Among those that are bound.
    let expert = group.z;
    let count = counts[a.expert_first + expert];
    let pair_first = group.y * 32u;
    if pair_first >= count {
        return;
    }
    let list = (a.expert_first + expert) * a.tokens_max;
    let row_first = group.x * 64u;
    let tx = tid % 16u;
    let ty = tid / 16u;
    var sums: array<f32, 8>;
    for (var k = 0u; k < a.columns; k += 32u) {
        {
            // A word for each thread, of the block of each row.
            let r = tid / 4u;
            let row = min(row_first + r, a.rows - 1u);
            let block = a.blocks_base + expert * a.blocks_stride + row * (a.columns / 8u);
            let word = blocks[block + k / 8u + tid % 4u];
            let scale_at = a.scales_base + (expert * a.rows + row) * (a.columns / 32u) + k / 32u;
            let scale = half_scale(scales[scale_at / 4u], scale_at);
            let to = r * 33u + tid % 4u * 8u;
            let one = first_four(word) * scale;
            let two = last_four(word) * scale;
            weights[to] = one.x;
            weights[to + 1u] = one.y;
            weights[to + 2u] = one.z;
            weights[to + 3u] = one.w;
            weights[to + 4u] = two.x;
            weights[to + 5u] = two.y;
            weights[to + 6u] = two.z;
            weights[to + 7u] = two.w;
        }
        for (var i = tid; i < 1024u; i += 256u) {
            let m = i / 32u;
            let c = i % 32u;
            var origin = lists[list + min(pair_first + m, count - 1u)];
            if UP {
                origin /= a.chosen;
            }
            inputs[m * 33u + c] = t[origin * a.columns + k + c];
        }
        workgroupBarrier();
        for (var c = 0u; c < 32u; c++) {
            let first = inputs[ty * 33u + c];
            let second = inputs[(ty + 16u) * 33u + c];
            for (var r = 0u; r < 4u; r++) {
                let w = weights[(4u * tx + r) * 33u + c];
                sums[r] += w * first;
                sums[4u + r] += w * second;
            }
        }
        workgroupBarrier();
    }
    for (var m = 0u; m < 2u; m++) {
        let at = pair_first + ty + 16u * m;
        if at < count {
            let pair = lists[list + at];
            for (var r = 0u; r < 4u; r += 2u) {
                let row = row_first + 4u * tx + r;
                // Rows are even in number.
                if row < a.rows {
                    // Two neighbours of bf16, and the first is at an even place.
                    let biases = bias[a.bias_base + (expert * a.rows + row) / 2u];
                    let one = sums[4u * m + r] + low(biases);
                    let two = sums[4u * m + r + 1u] + high(biases);
                    if UP {
                        out[pair * (a.rows / 2u) + row / 2u] = swiglu(one, two, a.limit, a.alpha);
                    } else {
                        out[pair * a.rows + row] = one;
                        out[pair * a.rows + row + 1u] = two;
                    }
                }
            }
        }
    }
}
