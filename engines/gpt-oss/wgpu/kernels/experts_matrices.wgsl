// experts_tile for adapters with cooperative matrices: see matrices.wgsl. Everything but the multiplication is as there.

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

// A workgroup for each 64 rows (x) and 32 pairs (y) of an expert (z); most have none.
@compute @workgroup_size(THREADS)
fn experts_tile(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
    @builtin(subgroup_id) subgroup: u32
) {
    let expert = group.z;
    let count = counts[a.expert_first + expert];
    let pair_first = group.y * 32u;
    if pair_first >= count {
        return;
    }
    let list = (a.expert_first + expert) * a.tokens_max;
    let row_first = group.x * 64u;
    let here = place(subgroup);
    for (var i = tid; i < 32u * ROWS; i += THREADS) {
        results[i] = 0.0;
    }
    workgroupBarrier();
    // Matrices side by side: four of 8 rows, or one of 16.
    var sum0 = coopLoad<Sum>(&results[here.to % (32u * ROWS)], ROWS);
    var sum1 = sum0;
    var sum2 = sum0;
    var sum3 = sum0;
    for (var k = 0u; k < a.columns; k += DEPTH) {
        for (var i = tid; i < 256u; i += THREADS) {
            // A word of the block of each row.
            let r = i / 4u;
            let row = expert * a.rows + min(row_first + r, a.rows - 1u);
            let word = blocks[a.blocks_base + row * (a.columns / 8u) + k / 8u + i % 4u];
            let scale_at = a.scales_base + row * (a.columns / 32u) + k / 32u;
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
            var origin = lists[list + min(pair_first + m, count - 1u)];
            if UP {
                origin /= a.chosen;
            }
            put_input(m * STRIDE + c, t[origin * a.columns + k + c]);
        }
        workgroupBarrier();
        for (var c = 0u; c < DEPTH; c += SIZE) {
            let left = coopLoadT<Left>(&weights[here.left + c], STRIDE);
            sum0 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + c], STRIDE), sum0);
            sum0 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + c], STRIDE), sum0);
            if EACH > 1u {
                sum1 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + SIZE * STRIDE + c], STRIDE), sum1);
                sum1 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + SIZE * STRIDE + c], STRIDE), sum1);
                sum2 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + 2u * SIZE * STRIDE + c], STRIDE), sum2);
                sum2 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + 2u * SIZE * STRIDE + c], STRIDE), sum2);
                sum3 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + 3u * SIZE * STRIDE + c], STRIDE), sum3);
                sum3 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + 3u * SIZE * STRIDE + c], STRIDE), sum3);
            }
        }
        workgroupBarrier();
    }
    // All matrices of subgroups beyond the eighth go to one place, where nobody looks.
    let apart = select(SIZE * ROWS, 0u, here.to == 32u * ROWS);
    coopStore(sum0, &results[here.to], ROWS);
    if EACH > 1u {
        coopStore(sum1, &results[here.to + apart], ROWS);
        coopStore(sum2, &results[here.to + 2u * apart], ROWS);
        coopStore(sum3, &results[here.to + 3u * apart], ROWS);
    }
    workgroupBarrier();
    for (var i = tid; i < 16u * ROWS; i += THREADS) {
        // Two neighbours, gate and up; rows are even in number.
        let row = row_first + i % 32u * 2u;
        let at = pair_first + i / 32u;
        if row < a.rows && at < count {
            let pair = lists[list + at];
            let biases = bias[a.bias_base + (expert * a.rows + row) / 2u];
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
