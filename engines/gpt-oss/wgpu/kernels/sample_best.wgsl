// Of each part of each row that asks for them, the most likely tokens, best first.

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(3) var<storage, read> requests: array<u32>;

// A workgroup for each part (x) of a row (y).
@compute @workgroup_size(256)
fn sample_best(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let end = min((group.x + 1u) * a.part_tokens, a.vocabulary);
    var last = NOBODY;
    var last_token = 0u;
    // One after the other: the best of those that come behind the last one.
    for (var n = 0u; n + 1u < requests[group.y * ROW_WORDS + WANTED]; n++) {
        var best = 0u;
        var token = NOBODY;
        for (var i = group.x * a.part_tokens + tid; i < end; i += THREADS) {
            let bits = logits[group.y * a.vocabulary + i];
            let key = key_of(bits);
            let is_behind = key < last || (key == last && i > last_token);
            if is_behind && key > best && bits != OUT && is_known(i) {
                best = key;
                token = i;
            }
        }
        find_best(tid, best, token);
        last = keys[0];
        last_token = tokens[0];
        if tid == 0u {
            let to = group.y * STATE_WORDS + 2u * STAGE_WORDS + 2u * (group.x * MOST_LIKELY_MAX + n);
            state[to] = last_token;
            state[to + 1u] = bits_of(last);
        }
    }
}
