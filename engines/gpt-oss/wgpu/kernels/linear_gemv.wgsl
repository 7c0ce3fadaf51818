// out (tokens, rows) = t (tokens, columns) times weight (rows, columns), plus bias, for up to TOKENS tokens. A matrix
// can be cut into pieces of rows, each with a launch of its own.
//
// Bound by reading the weights once: a workgroup reads four rows, neighbouring threads neighbouring words.

struct Arguments {
    rows: u32,
    // A multiple of 32.
    columns: u32,
    tokens: u32,
    // Whether out is added to.
    add: u32,
    has_bias: u32,
    weight_base: u32,
    bias_base: u32,
    // Workgroups along x.
    stride: u32,
    // Where these rows begin in out, and how many it has of each token.
    first: u32,
    out_rows: u32,
}

@group(0) @binding(0) var<storage, read> weight: array<u32>;
@group(0) @binding(1) var<storage, read> bias: array<u32>;
@group(0) @binding(2) var<storage, read> t: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

const ROWS = 4u;
var<workgroup> partial: array<f32, 64u * ROWS * TOKENS>;

// Workgroups over x, then y, each for four rows.
@compute @workgroup_size(64)
fn linear_gemv(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let first = (group.y * a.stride + group.x) * ROWS;
    let words = a.columns / 2u;
    var sums: array<f32, ROWS * TOKENS>;
    for (var c = tid; c < words; c += 64u) {
        // Rows and tokens beyond the end repeat the last one; what comes of it is not written.
        var w: array<u32, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            w[r] = weight[a.weight_base + min(first + r, a.rows - 1u) * words + c];
        }
        for (var m = 0u; m < TOKENS; m++) {
            let v = t[min(m, a.tokens - 1u) * words + c];
            for (var r = 0u; r < ROWS; r++) {
                sums[r * TOKENS + m] += low(w[r]) * v.x + high(w[r]) * v.y;
            }
        }
    }
    for (var i = 0u; i < ROWS * TOKENS; i++) {
        let sum = joined(sums[i]);
        if puts_sum() {
            partial[i * 64u + sum_slot(tid)] = sum;
        }
    }
    workgroupBarrier();
    let row = first + tid / TOKENS;
    let token = tid % TOKENS;
    if tid >= ROWS * TOKENS || row >= a.rows || token >= a.tokens {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < sum_slots(64u); i++) {
        sum += partial[tid * 64u + i];
    }
    let at = token * a.out_rows + a.first + row;
    if a.has_bias != 0u {
        sum += half_of(bias[a.bias_base + row / 2u], row);
    }
    if a.add != 0u {
        sum += out[at];
    }
    out[at] = sum;
}
