// x += the weighted sum of what a token's experts make of act, for few tokens.

struct ExpertsDownGemvArgs {
    // (experts, hidden, intermediate / 32, 16) and without the 16.
    const u8 *blocks;
    const u8 *scales;
    // (experts, hidden)
    const bf16 *bias;
    // (pairs, intermediate)
    const bf16 *act;
    // Of each pair its expert, and how much it counts.
    const u32 *experts;
    const float *weights;
    // (tokens, hidden)
    float *x;
    u32 hidden;
    u32 intermediate;
    u32 chosen;
};

// A warp for each row of a token (y); four in a block (x).
KERNEL(experts_down_gemv, ExpertsDownGemvArgs, 128) {
    const u32 lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32, token = blockIdx.y;
    if (row >= a.hidden) {
        return;
    }
    const u32 columns = a.intermediate / 32;
    float sum = 0.0f;
    for (u32 i = 0; i < a.chosen; i++) {
        const u64 pair = static_cast<u64>(token) * a.chosen + i;
        const u32 expert = a.experts[pair];
        if (expert == NO_EXPERT) {
            return;
        }
        const u64 expert_row = static_cast<u64>(expert) * a.hidden + row;
        const u8 *blocks = a.blocks + expert_row * columns * 16, *scales = a.scales + expert_row * columns;
        const bf16 *act = a.act + pair * a.intermediate;
        float part = 0.0f;
        UNROLL_2
        for (u32 c = lane; c < columns; c += 32) {
            part += dot_block(load16(blocks + c * 16), act + 32 * c) * scale_of(scales[c]);
        }
        if (lane == 0) {
            part += from_bf16(a.bias[expert_row]);
        }
        sum += a.weights[pair] * part;
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        a.x[static_cast<u64>(token) * a.hidden + row] += sum;
    }
}
