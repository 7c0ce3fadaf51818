// Multiplies and adds what is in registers: what a device can compute at most without matrix units.

struct Arguments {
    rounds: u32,
}

// A number of each thread, in and out.
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

// Four sums of four numbers, so that none waits for the one before it: 16 multiplications and additions a round.
@compute @workgroup_size(256)
fn peak_multiply(@builtin(global_invocation_id) at: vec3<u32>) {
    let start = out[at.x];
    let factor = vec4<f32>(0.5);
    let more = vec4<f32>(start);
    var one = vec4<f32>(start);
    var two = vec4<f32>(start + 1.0);
    var three = vec4<f32>(start + 2.0);
    var four = vec4<f32>(start + 3.0);
    for (var i = 0u; i < a.rounds; i++) {
        one = fma(one, factor, more);
        two = fma(two, factor, more);
        three = fma(three, factor, more);
        four = fma(four, factor, more);
    }
    let sum = one + two + three + four;
    out[at.x] = sum.x + sum.y + sum.z + sum.w;
}
