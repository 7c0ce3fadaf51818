// act (pairs, intermediate): gate and up of each pair's expert, and their product by swiglu, for few tokens.

struct ExpertsUpGemvArgs {
    // (experts, 2 intermediate, hidden / 32, 16) and without the 16; gate and up alternate by row.
    const u8 *blocks;
    const u8 *scales;
    // (experts, 2 intermediate)
    const bf16 *bias;
    // (tokens, hidden)
    const bf16 *t;
    // Of each pair its expert.
    const u32 *experts;
    bf16 *act;
    u32 hidden;
    u32 intermediate;
    u32 chosen;
    float limit;
    float alpha;
};

DEVICE float swiglu(float gate, float up, float limit, float alpha) {
    const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return g / (1.0f + expf(-alpha * g)) * (u + 1.0f);
}

// A warp for each place of a pair (y); four in a block (x).
KERNEL(experts_up_gemv, ExpertsUpGemvArgs, 128) {
    const u32 lane = threadIdx.x % 32, place = blockIdx.x * 4 + threadIdx.x / 32, pair = blockIdx.y;
    const u32 expert = a.experts[pair];
    if (expert == NO_EXPERT || place >= a.intermediate) {
        return;
    }
    const u32 columns = a.hidden / 32;
    const u64 row = static_cast<u64>(expert) * 2 * a.intermediate + 2 * place;
    const u8 *gate = a.blocks + row * columns * 16, *up = gate + static_cast<u64>(columns) * 16;
    const u8 *gate_scales = a.scales + row * columns, *up_scales = gate_scales + columns;
    const bf16 *t = a.t + static_cast<u64>(pair / a.chosen) * a.hidden;
    float gate_sum = 0.0f, up_sum = 0.0f;
    UNROLL_2
    for (u32 c = lane; c < columns; c += 32) {
        const Quad gate_codes = load16(gate + c * 16), up_codes = load16(up + c * 16);
        gate_sum += dot_block(gate_codes, t + 32 * c) * scale_of(gate_scales[c]);
        up_sum += dot_block(up_codes, t + 32 * c) * scale_of(up_scales[c]);
    }
    gate_sum = warp_sum(gate_sum);
    up_sum = warp_sum(up_sum);
    if (lane == 0) {
        const float g = gate_sum + from_bf16(a.bias[row]), u = up_sum + from_bf16(a.bias[row + 1]);
        a.act[static_cast<u64>(pair) * a.intermediate + place] = to_bf16(swiglu(g, u, a.limit, a.alpha));
    }
}
