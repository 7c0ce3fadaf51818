// Changes the logits of the tokens that a request names, once each, and notes what they were.

@group(0) @binding(0) var<storage, read_write> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> requests: array<u32>;

// Not past the largest finite number.
fn kept_finite(x: f32) -> f32 { return clamp(x, -3.4028234e38, 3.4028234e38); }

// A thread for each change.
@compute @workgroup_size(64)
fn sample_change(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x >= a.changes {
        return;
    }
    let change = a.rows * ROW_WORDS + at.x * CHANGE_WORDS;
    let place = requests[change + 5u] * a.vocabulary + requests[change];
    let was = logits[place];
    requests[change + 6u] = was;
    // What is out stays out, and what is no number is told of.
    if !is_finite(was) {
        return;
    }
    let repetition = requests[change + 3u];
    var v = kept_finite(bitcast<f32>(was) + bitcast<f32>(requests[change + 2u]));
    if v > 0.0 {
        let divided = quotient(bitcast<u32>(v), repetition);
        v = bitcast<f32>(select(0x7f7fffffu, divided, is_finite(divided)));
    } else {
        v = kept_finite(v * bitcast<f32>(repetition));
    }
    v = kept_finite(v - bitcast<f32>(requests[change + 4u]));
    logits[place] = select(bitcast<u32>(v), OUT, requests[change + 1u] != 0u);
}
