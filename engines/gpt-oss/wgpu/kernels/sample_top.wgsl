// Of each part of each row, the highest logit and its token, and the first that is no number.

@group(0) @binding(0) var<storage, read> logits: array<u32>;

var<workgroup> bad: atomic<u32>;

// A workgroup for each part (x) of a row (y).
@compute @workgroup_size(256)
fn sample_top(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    if tid == 0u {
        atomicStore(&bad, NOBODY);
    }
    workgroupBarrier();
    let end = min((group.x + 1u) * a.part_tokens, a.vocabulary);
    var best = 0u;
    var token = NOBODY;
    for (var i = group.x * a.part_tokens + tid; i < end; i += THREADS) {
        var bits = logits[group.y * a.vocabulary + i];
        if bits == OUT {
            continue;
        }
        if !is_finite(bits) {
            atomicMin(&bad, i);
            continue;
        }
        // Equal to 0, and so not less.
        bits = select(bits, 0u, bits == 0x80000000u);
        if key_of(bits) > best && (a.stage == 0u || is_known(i)) {
            best = key_of(bits);
            token = i;
        }
    }
    find_best(tid, best, token);
    if tid == 0u {
        let to = group.y * STATE_WORDS + a.stage * STAGE_WORDS + group.x * PART_WORDS;
        state[to] = keys[0];
        state[to + 1u] = tokens[0];
        state[to + 2u] = atomicLoad(&bad);
    }
}
