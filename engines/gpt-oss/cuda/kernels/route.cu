// Which experts each token goes to, and how much each counts: the largest of the router's logits, of equals the one with
// the lower number, and the softmax over the chosen ones alone.

#define CHOSEN_MAX 8
// In place of an expert's number, for a token that is there to fill up.
#define NO_EXPERT 0xffffffffu

struct RouteArgs {
    // (tokens, experts)
    const float *logits;
    // Below 0: the token is there to fill up.
    const int *positions;
    // (tokens, chosen)
    u32 *experts;
    float *weights;
    u32 tokens;
    u32 experts_count;
    u32 chosen;
};

// A warp for each token, four in a block.
KERNEL(route, RouteArgs, 128) {
    const u32 lane = threadIdx.x % 32, token = blockIdx.x * 4 + threadIdx.x / 32;
    if (token >= a.tokens) {
        return;
    }
    const float *logits = a.logits + static_cast<u64>(token) * a.experts_count;
    float values[CHOSEN_MAX];
    u32 numbers[CHOSEN_MAX];
    float last = -NEVER, sum = 0.0f;
    int last_number = -1;
    UNROLL
    for (int i = 0; i < CHOSEN_MAX; i++) {
        values[i] = 0.0f;
        numbers[i] = 0;
        if (i < static_cast<int>(a.chosen)) {
            // The best of those that come behind the last one. Where there is none (NaN), expert 0.
            float best = NEVER;
            int number = 0x7fffffff;
            for (int e = static_cast<int>(lane); e < static_cast<int>(a.experts_count); e += 32) {
                const float v = logits[e];
                const bool behind = v < last || (v == last && e > last_number);
                if (behind && (v > best || number == 0x7fffffff)) {
                    best = v;
                    number = e;
                }
            }
            UNROLL
            for (int distance = 16; distance > 0; distance /= 2) {
                const float other = __shfl_xor_sync(FULL_WARP, best, distance);
                const int other_number = __shfl_xor_sync(FULL_WARP, number, distance);
                const bool is_better = other > best || (other == best && other_number < number);
                if (other_number != 0x7fffffff && (number == 0x7fffffff || is_better)) {
                    best = other;
                    number = other_number;
                }
            }
            last = best;
            last_number = number;
            numbers[i] = number == 0x7fffffff ? 0 : static_cast<u32>(number);
            values[i] = expf(best - (i == 0 ? best : values[0]));
            if (i == 0) {
                // Kept instead of its weight, which is 1, until all are known.
                values[0] = best;
                sum = 1.0f;
            } else {
                sum += values[i];
            }
        }
    }
    if (lane == 0) {
        const bool fills = a.positions[token] < 0;
        UNROLL
        for (int i = 0; i < CHOSEN_MAX; i++) {
            if (i < static_cast<int>(a.chosen)) {
                const u64 to = static_cast<u64>(token) * a.chosen + i;
                a.experts[to] = fills ? NO_EXPERT : numbers[i];
                a.weights[to] = (i == 0 ? 1.0f : values[i]) / sum;
            }
        }
    }
}
