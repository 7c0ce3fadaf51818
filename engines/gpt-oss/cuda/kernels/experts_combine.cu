// x += the weighted sum of what experts_down_mma made for each token's pairs.

struct ExpertsCombineArgs {
    // (pairs, hidden)
    const float *y;
    const float *weights;
    // Below 0: the token is there to fill up, and nobody made anything for it.
    const int *positions;
    // (tokens, hidden)
    float *x;
    u32 hidden;
    u32 chosen;
};

// A block for each token.
KERNEL(experts_combine, ExpertsCombineArgs, 256) {
    const u64 token = blockIdx.x;
    if (a.positions[token] < 0) {
        return;
    }
    for (u32 i = threadIdx.x; i < a.hidden; i += 256) {
        float sum = 0.0f;
        for (u32 c = 0; c < a.chosen; c++) {
            const u64 pair = token * a.chosen + c;
            sum += a.weights[pair] * a.y[pair * a.hidden + i];
        }
        a.x[token * a.hidden + i] += sum;
    }
}
