// out (rows, hidden) = x / sqrt(mean(x^2) + epsilon) * weight, of all rows of x or of those that a list names.

struct Arguments {
    hidden: u32,
    epsilon: f32,
    // Where the list of rows begins in the step; all ones: every row.
    list_at: u32,
    weight_base: u32,
}

@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

var<workgroup> squares: array<f32, 256>;

// A workgroup for each row.
@compute @workgroup_size(256)
fn rmsnorm(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    var row = group.x;
    if a.list_at != 0xffffffffu {
        row = step[a.list_at + group.x];
    }
    var sum = 0.0;
    for (var i = tid; i < a.hidden; i += 256u) {
        let value = x[row * a.hidden + i];
        sum += value * value;
    }
    sum = joined(sum);
    if puts_sum() {
        squares[sum_slot(tid)] = sum;
    }
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
        if tid < half && tid + half < sum_slots(256u) {
            squares[tid] += squares[tid + half];
        }
        workgroupBarrier();
    }
    let scale = 1.0 / sqrt(squares[0] / f32(a.hidden) + a.epsilon);
    for (var i = tid; i < a.hidden; i += 256u) {
        out[group.x * a.hidden + i] = x[row * a.hidden + i] * scale * half_of(weight[a.weight_base + i / 2u], i);
    }
}
