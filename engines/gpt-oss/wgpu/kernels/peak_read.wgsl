// Reads memory from one end to the other, and does next to nothing with it: what a device can read at most.

struct Arguments {
    // Words of 16 bytes.
    quads: u32,
    // Threads of all workgroups.
    threads: u32,
}

@group(0) @binding(0) var<storage, read> memory: array<vec4<u32>>;
// A word of each thread.
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
var<immediate> a: Arguments;

@compute @workgroup_size(256)
fn peak_read(@builtin(global_invocation_id) at: vec3<u32>) {
    var mixed = vec4<u32>(0u, 0u, 0u, 0u);
    for (var i = at.x; i < a.quads; i += a.threads) {
        mixed ^= memory[i];
    }
    out[at.x] = mixed.x ^ mixed.y ^ mixed.z ^ mixed.w;
}
