// x += the weighted sum of what the chosen experts made of each token.

struct Arguments {
    hidden: u32,
    chosen: u32,
}

// (pairs, hidden)
@group(0) @binding(0) var<storage, read> y: array<f32>;
// (pairs): see route.
@group(0) @binding(1) var<storage, read> weights: array<f32>;
// (tokens, hidden)
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
var<immediate> a: Arguments;

// A workgroup for each token.
@compute @workgroup_size(256)
fn experts_combine(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    for (var i = tid; i < a.hidden; i += 256u) {
        var sum = 0.0;
        for (var c = 0u; c < a.chosen; c++) {
            let pair = group.x * a.chosen + c;
            sum += weights[pair] * y[pair * a.hidden + i];
        }
        x[group.x * a.hidden + i] += sum;
    }
}
