// Joins what attention made of the parts of a context, with the sink, which takes its share and has no value.

struct Arguments {
    heads: u32,
    parts: u32,
    sinks_base: u32,
}

// See attention.
@group(0) @binding(0) var<storage, read> values: array<f32>;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read> sinks: array<u32>;
// (tokens, heads, HEAD_DIM)
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

// A workgroup for each head (x) of a token (y).
@compute @workgroup_size(64)
fn attention_combine(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    if tid >= HEAD_DIM {
        return;
    }
    let head = group.y * a.heads + group.x;
    let sink = half_of(sinks[a.sinks_base + group.x / 2u], group.x);
    var top = sink;
    for (var part = 0u; part < a.parts; part++) {
        top = max(top, sums[2u * (head * a.parts + part)]);
    }
    var value = 0.0;
    var weight = exp(sink - top);
    for (var part = 0u; part < a.parts; part++) {
        let at = head * a.parts + part;
        // A part without a key has no weight, and no largest score.
        if sums[2u * at + 1u] > 0.0 {
            let factor = exp(sums[2u * at] - top);
            weight += factor * sums[2u * at + 1u];
            value += factor * values[at * HEAD_DIM + tid];
        }
    }
    out[head * HEAD_DIM + tid] = value / weight;
}
