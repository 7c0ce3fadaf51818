// linear_tile for adapters with cooperative matrices: see matrices.wgsl. Everything but the multiplication is as there.

struct Arguments {
    rows: u32,
    columns: u32,
    tokens: u32,
    add: u32,
    has_bias: u32,
    weight_base: u32,
    bias_base: u32,
    stride: u32,
    first: u32,
    out_rows: u32,
}

@group(0) @binding(0) var<storage, read> weight: array<u32>;
@group(0) @binding(1) var<storage, read> bias: array<u32>;
@group(0) @binding(2) var<storage, read> t: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

// A workgroup for each 64 rows (x) and 32 tokens (y).
@compute @workgroup_size(THREADS)
fn linear_tile(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
    @builtin(subgroup_id) subgroup: u32
) {
    let row_first = group.x * 64u;
    let token_first = group.y * 32u;
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
        for (var i = tid; i < 1024u; i += THREADS) {
            let r = i / 16u;
            let c = i % 16u;
            let word = weight[a.weight_base + min(row_first + r, a.rows - 1u) * (a.columns / 2u) + k / 2u + c];
            weights[r * STRIDE + 2u * c] = narrow(low(word));
            weights[r * STRIDE + 2u * c + 1u] = narrow(high(word));
        }
        for (var i = tid; i < 1024u; i += THREADS) {
            let m = i / 32u;
            let c = i % 32u;
            put_input(m * STRIDE + c, t[min(token_first + m, a.tokens - 1u) * a.columns + k + c]);
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
    for (var i = tid; i < 32u * ROWS; i += THREADS) {
        let row = row_first + i % ROWS;
        let token = token_first + i / ROWS;
        if row < a.rows && token < a.tokens {
            let at = token * a.out_rows + a.first + row;
            var sum = results[i];
            if a.has_bias != 0u {
                sum += half_of(bias[a.bias_base + row / 2u], row);
            }
            if a.add != 0u {
                sum += out[at];
            }
            out[at] = sum;
        }
    }
}
