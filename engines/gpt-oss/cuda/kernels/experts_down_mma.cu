// y (pairs, hidden): what each expert makes of the act of all its pairs, bias included, on tensor cores.

struct ExpertsDownMmaArgs {
    // See experts_down_gemv.
    const u8 *blocks;
    const u8 *scales;
    const bf16 *bias;
    const bf16 *act;
    // See experts_sort.
    const u32 *lists;
    const u32 *counts;
    float *y;
    u32 hidden;
    u32 intermediate;
    u32 capacity;
};

// A block for every 64 rows (x), 64 pairs (y) and expert (z).
KERNEL(experts_down_mma, ExpertsDownMmaArgs, TILE_THREADS) {
    SHARED(bf16, weights, TILE_ROWS * TILE_STRIDE);
    SHARED(bf16, tokens, TILE_TOKENS * TILE_STRIDE);
    SHARED(u32, pairs, TILE_TOKENS);
    const u32 expert = blockIdx.z, first = blockIdx.y * TILE_TOKENS, count = a.counts[expert];
    if (first >= count) {
        return;
    }
    const u32 here = min(count - first, static_cast<u32>(TILE_TOKENS));
    if (threadIdx.x < TILE_TOKENS) {
        pairs[threadIdx.x] = a.lists[static_cast<u64>(expert) * a.capacity + first + min(threadIdx.x, here - 1)];
    }
    __syncthreads();
    const u32 columns = a.intermediate / 32, first_row = blockIdx.x * TILE_ROWS;
    const u64 weight_row = static_cast<u64>(expert) * a.hidden + min(first_row + threadIdx.x / 2, a.hidden - 1);
    float sums[TILE_TOKENS / 8][4];
    experts_clear(sums);
    experts_multiply(sums, a.blocks + weight_row * columns * 16, a.scales + weight_row * columns, a.act, pairs,
                     a.intermediate, static_cast<int>(here + 7) / 8, weights, tokens);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 row = first_row + 16 * warp + lane / 4 + 8 * (i / 2);
        if (row >= a.hidden) {
            continue;
        }
        const float bias = from_bf16(a.bias[static_cast<u64>(expert) * a.hidden + row]);
        UNROLL
        for (int j = 0; j < TILE_TOKENS / 8; j++) {
            const u32 token = 8 * j + 2 * (lane % 4) + i % 2;
            if (token < here) {
                a.y[static_cast<u64>(pairs[token]) * a.hidden + row] = sums[j][i] + bias;
            }
        }
    }
}
