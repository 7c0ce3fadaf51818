// Of each expert, the pairs (token times chosen, plus which of its choices) that go to it.

struct Arguments {
    pairs: u32,
    // Room of a list.
    tokens_max: u32,
}

// See route.
@group(0) @binding(0) var<storage, read> numbers: array<u32>;
// (experts, tokens_max)
@group(0) @binding(1) var<storage, read_write> lists: array<u32>;
@group(0) @binding(2) var<storage, read_write> counts: array<u32>;
var<immediate> a: Arguments;

var<workgroup> count: atomic<u32>;

// A workgroup for each expert. The order in a list differs from run to run; nothing that is computed does.
@compute @workgroup_size(64)
fn experts_sort(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    if tid == 0u {
        atomicStore(&count, 0u);
    }
    workgroupBarrier();
    for (var pair = tid; pair < a.pairs; pair += 64u) {
        if numbers[pair] == group.x {
            let at = atomicAdd(&count, 1u);
            lists[group.x * a.tokens_max + at] = pair;
        }
    }
    workgroupBarrier();
    if tid == 0u {
        counts[group.x] = atomicLoad(&count);
    }
}
