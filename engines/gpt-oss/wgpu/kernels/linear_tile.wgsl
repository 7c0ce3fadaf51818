// out (tokens, rows) = t (tokens, columns) times weight (rows, columns), plus bias, for many tokens: tiles of 64 rows and 32
// tokens, so that a weight is read once for 32 tokens. The arguments are those of linear_gemv.

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

// A row of 32 numbers takes 33 places, so that numbers below one another are in different banks.
var<workgroup> weights: array<f32, 64 * 33>;
var<workgroup> inputs: array<f32, 32 * 33>;

// A workgroup for each 64 rows (x) and 32 tokens (y). Each thread has four rows of two tokens.
@compute @workgroup_size(256)
fn linear_tile(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let row_first = group.x * 64u;
    let token_first = group.y * 32u;
    let tx = tid % 16u;
    let ty = tid / 16u;
    var sums: array<f32, 8>;
    for (var k = 0u; k < a.columns; k += 32u) {
        for (var i = tid; i < 1024u; i += 256u) {
            let r = i / 16u;
            let c = i % 16u;
            let word = weight[a.weight_base + min(row_first + r, a.rows - 1u) * (a.columns / 2u) + k / 2u + c];
            weights[r * 33u + 2u * c] = low(word);
            weights[r * 33u + 2u * c + 1u] = high(word);
        }
        for (var i = tid; i < 1024u; i += 256u) {
            let m = i / 32u;
            let c = i % 32u;
            inputs[m * 33u + c] = t[min(token_first + m, a.tokens - 1u) * a.columns + k + c];
        }
        workgroupBarrier();
        for (var c = 0u; c < 32u; c++) {
            let first = inputs[ty * 33u + c];
            let second = inputs[(ty + 16u) * 33u + c];
            for (var r = 0u; r < 4u; r++) {
                let w = weights[(tx + 16u * r) * 33u + c];
                sums[r] += w * first;
                sums[4u + r] += w * second;
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 8u; i++) {
        let row = row_first + tx + 16u * (i % 4u);
        let token = token_first + ty + 16u * (i / 4u);
        if row < a.rows && token < a.tokens {
            let at = token * a.out_rows + a.first + row;
            var sum = sums[i];
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
