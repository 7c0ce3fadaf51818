// One matrix of the chosen experts times one token each. UP: gate and up, whose rows alternate, and the clamped swiglu of
// both: act (pairs, rows / 2). Else down: y (pairs, rows).
//
// Bound by reading the weights once: a workgroup reads four rows of MXFP4, neighbouring threads neighbouring words of eight
// elements.

struct Arguments {
    rows: u32,
    // A multiple of 32.
    columns: u32,
    chosen: u32,
    blocks_base: u32,
    // Bytes of the binding before the tensor.
    scales_base: u32,
    bias_base: u32,
    limit: f32,
    alpha: f32,
    // Experts that are bound: the first, and how many.
    expert_first: u32,
    experts: u32,
    // Words from the blocks of an expert to those of the next: in some files they lie apart.
    blocks_stride: u32,
}

// (pairs): see route.
@group(0) @binding(0) var<storage, read> numbers: array<u32>;
// UP: (tokens, columns), else (pairs, columns).
@group(0) @binding(1) var<storage, read> t: array<vec4<f32>>;
// (experts, rows, columns / 32, 16 bytes), and whatever lies between experts
@group(0) @binding(2) var<storage, read> blocks: array<u32>;
// (experts, rows, columns / 32) bytes
@group(0) @binding(3) var<storage, read> scales: array<u32>;
// (experts, rows) bf16
@group(0) @binding(4) var<storage, read> bias: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

const ROWS = 4u;
var<workgroup> partial: array<f32, 64u * ROWS>;
var<workgroup> results: array<f32, ROWS>;

// A workgroup for each four rows (x) of a pair (y).
@compute @workgroup_size(64)
fn experts_gemv(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let pair = group.y;
    // One before the first of them is beyond the last, too.
    let expert = numbers[pair] - a.expert_first;
    if expert >= a.experts {
        return;
    }
    let first = expert * a.rows + group.x * ROWS;
    let words = a.columns / 8u;
    var origin = pair;
    if UP {
        origin = pair / a.chosen;
    }
    var sums: array<f32, ROWS>;
    for (var w = tid; w < words; w += 64u) {
        let v0 = t[origin * (a.columns / 4u) + 2u * w];
        let v1 = t[origin * (a.columns / 4u) + 2u * w + 1u];
        for (var r = 0u; r < ROWS; r++) {
            let word = blocks[a.blocks_base + expert * a.blocks_stride + (group.x * ROWS + r) * words + w];
            let scale_at = a.scales_base + (first + r) * (a.columns / 32u) + w / 4u;
            let sum = dot(first_four(word), v0) + dot(last_four(word), v1);
            sums[r] += sum * half_scale(scales[scale_at / 4u], scale_at);
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        let sum = joined(sums[r]);
        if puts_sum() {
            partial[r * 64u + sum_slot(tid)] = sum;
        }
    }
    workgroupBarrier();
    if tid < ROWS {
        var sum = half_of(bias[a.bias_base + (first + tid) / 2u], first + tid);
        for (var i = 0u; i < sum_slots(64u); i++) {
            sum += partial[tid * 64u + i];
        }
        results[tid] = sum;
    }
    workgroupBarrier();
    if UP {
        if tid < ROWS / 2u {
            out[pair * (a.rows / 2u) + group.x * (ROWS / 2u) + tid] =
                swiglu(results[2u * tid], results[2u * tid + 1u], a.limit, a.alpha);
        }
    } else if tid < ROWS {
        out[pair * a.rows + group.x * ROWS + tid] = results[tid];
    }
}
