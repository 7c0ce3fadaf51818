// Turns queries and keys by their position, and puts keys and values into the blocks of the paged KV.

struct Arguments {
    heads: u32,
    kv_heads: u32,
    // Of each token, HEAD_DIM / 2 cosines and as many sines.
    turns_at: u32,
    // Of each token: number of the block times 64, plus the place in it.
    slots_at: u32,
}

@group(0) @binding(0) var<storage, read> step: array<u32>;
// (tokens, heads + 2 kv_heads, HEAD_DIM): queries, keys, values.
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
// (tokens, heads, HEAD_DIM)
@group(0) @binding(2) var<storage, read_write> q: array<f32>;
// (blocks, kv_heads, 2): keys (HEAD_DIM, 64 places), then values (64 places, HEAD_DIM).
@group(0) @binding(3) var<storage, read_write> kv: array<f32>;
var<immediate> a: Arguments;

const PAIRS = HEAD_DIM / 2u;

// A workgroup for each token.
@compute @workgroup_size(128)
fn rope_kv(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let token = group.x;
    let origin = token * (a.heads + 2u * a.kv_heads) * HEAD_DIM;
    let slot = step[a.slots_at + token];
    let place = slot % 64u;
    let block = slot / 64u * a.kv_heads * 2u * 64u * HEAD_DIM;
    let turned = a.heads + a.kv_heads;
    for (var i = tid; i < turned * PAIRS; i += 128u) {
        let head = i / PAIRS;
        let pair = i % PAIRS;
        let x = qkv[origin + head * HEAD_DIM + pair];
        let y = qkv[origin + head * HEAD_DIM + pair + PAIRS];
        let cosine = bitcast<f32>(step[a.turns_at + token * HEAD_DIM + pair]);
        let sine = bitcast<f32>(step[a.turns_at + token * HEAD_DIM + PAIRS + pair]);
        let first = x * cosine - y * sine;
        let second = y * cosine + x * sine;
        if head < a.heads {
            let to = (token * a.heads + head) * HEAD_DIM + pair;
            q[to] = first;
            q[to + PAIRS] = second;
        } else {
            let to = block + (head - a.heads) * 2u * 64u * HEAD_DIM + pair * 64u + place;
            kv[to] = first;
            kv[to + PAIRS * 64u] = second;
        }
    }
    for (var i = tid; i < a.kv_heads * HEAD_DIM; i += 128u) {
        let to = block + (i / HEAD_DIM * 2u + 1u) * 64u * HEAD_DIM + place * HEAD_DIM + i % HEAD_DIM;
        kv[to] = qkv[origin + turned * HEAD_DIM + i];
    }
}
