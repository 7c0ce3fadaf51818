// Of each part of each row, the sum of the tokens' weights. Stage 0 is at temperature 1, for probabilities.

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(3) var<storage, read> requests: array<u32>;

var<workgroup> sums: array<vec2<u32>, THREADS>;

// A workgroup for each part (x) of a row (y).
@compute @workgroup_size(256)
fn sample_weigh(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let stage = group.y * STATE_WORDS + a.stage * STAGE_WORDS;
    var key = 0u;
    for (var part = 0u; part < PARTS; part++) {
        key = max(key, state[stage + part * PART_WORDS]);
    }
    let top = bits_of(key);
    let asked = requests[group.y * ROW_WORDS + TEMPERATURE];
    // A row that takes the highest logit has no temperature, and its sum is not looked at.
    let temperature = select(asked, 0x3f800000u, a.stage == 0u || asked == 0u);
    let end = min((group.x + 1u) * a.part_tokens, a.vocabulary);
    var sum = vec2<u32>(0u, 0u);
    for (var i = group.x * a.part_tokens + tid; i < end; i += THREADS) {
        if a.stage == 0u || is_known(i) {
            sum = plus(sum, weight_beside(logits[group.y * a.vocabulary + i], top, temperature));
        }
    }
    sums[tid] = sum;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if tid < half {
            sums[tid] = plus(sums[tid], sums[tid + half]);
        }
        workgroupBarrier();
    }
    if tid == 0u {
        state[stage + group.x * PART_WORDS + 3u] = sums[0].x;
        state[stage + group.x * PART_WORDS + 4u] = sums[0].y;
    }
}
