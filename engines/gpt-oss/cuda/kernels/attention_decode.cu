// Attention of single tokens over the paged KV, cut into parts along the context: each part has its own softmax, and
// attention_combine joins them.

#define GROUP_MAX 16

struct AttentionDecodeArgs {
    // (tokens, heads, 64)
    const bf16 *q;
    // See rope_kv.
    const bf16 *kv;
    // The tokens this is about, by their place in the batch.
    const u32 *entries;
    // By token; below 0: there to fill up.
    const int *positions;
    // Of each token, its sequence's row in the next two.
    const u32 *rows;
    // Where the blocks of each row begin in `tables`, and the number of the first of them in its sequence.
    const u32 *table_starts;
    const u32 *table_firsts;
    const u32 *tables;
    // (entries, heads, parts, 64): values, divided by nothing yet.
    float *values;
    // (entries, heads, parts, 2): largest score, and sum of the weights.
    float *sums;
    u32 heads;
    u32 kv_heads;
    u32 layer;
    u32 layers;
    // Positions a token looks back at, its own included; 0: all.
    u32 window;
    u32 parts;
};

// A block for each entry (x), head of keys (y) and part (z).
KERNEL(attention_decode, AttentionDecodeArgs, 128) {
    SHARED(float, queries, GROUP_MAX * 64);
    SHARED(float, scores, GROUP_MAX * 64);
    SHARED(float, factors, GROUP_MAX);
    const u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const u32 token = a.entries[blockIdx.x], kv_head = blockIdx.y, part = blockIdx.z;
    const int position = a.positions[token];
    if (position < 0) {
        return;
    }
    const u32 group = a.heads / a.kv_heads, row = a.rows[token];
    const u32 end = static_cast<u32>(position) + 1;
    const u32 begin = a.window != 0 && end > a.window ? end - a.window : 0;
    const u32 page_first = begin / 64, pages = (end + 63) / 64 - page_first;
    const u32 each = (pages + a.parts - 1) / a.parts;
    const u32 page_begin = page_first + min(part * each, pages), page_end = page_first + min((part + 1) * each, pages);

    for (u32 i = tid; i < group * 64; i += 128) {
        const u64 head = static_cast<u64>(token) * a.heads + kv_head * group + i / 64;
        queries[i] = from_bf16(a.q[head * 64 + i % 64]) * 0.125f;
    }
    // This thread's dimension of every second head.
    float sums[GROUP_MAX / 2];
    UNROLL
    for (int i = 0; i < GROUP_MAX / 2; i++) {
        sums[i] = 0.0f;
    }
    // Of head warp + 4 i, the same in all lanes.
    float largest[GROUP_MAX / 4], weights[GROUP_MAX / 4];
    UNROLL
    for (int i = 0; i < GROUP_MAX / 4; i++) {
        largest[i] = NEVER;
        weights[i] = 0.0f;
    }
    __syncthreads();
    for (u32 page = page_begin; page < page_end; page++) {
        const u64 block = a.tables[a.table_starts[row] + page - a.table_firsts[row]];
        const bf16 *keys = a.kv + ((block * a.layers + a.layer) * a.kv_heads + kv_head) * 2 * 64 * 64;
        const bf16 *values = keys + 64 * 64;
        {
            // Two threads for each key, half of its dimensions each.
            const u32 place = tid / 2, half = tid % 2 * 32;
            const bool visible = page * 64 + place >= begin && page * 64 + place < end;
            float dots[GROUP_MAX];
            UNROLL
            for (int g = 0; g < GROUP_MAX; g++) {
                dots[g] = 0.0f;
            }
            if (visible) {
                UNROLL
                for (int c = 0; c < 32; c += 8) {
                    const Quad k = load16(keys + place * 64 + half + c);
                    const float key[8] = {low_bf16(k.x), high_bf16(k.x), low_bf16(k.y), high_bf16(k.y),
                                          low_bf16(k.z), high_bf16(k.z), low_bf16(k.w), high_bf16(k.w)};
                    UNROLL
                    for (int g = 0; g < GROUP_MAX; g++) {
                        if (g < static_cast<int>(group)) {
                            UNROLL
                            for (int i = 0; i < 8; i++) {
                                dots[g] += key[i] * queries[g * 64 + half + c + i];
                            }
                        }
                    }
                }
            }
            UNROLL
            for (int g = 0; g < GROUP_MAX; g++) {
                if (g < static_cast<int>(group)) {
                    const float dot = dots[g] + __shfl_xor_sync(FULL_WARP, dots[g], 1);
                    if (half == 0) {
                        scores[g * 64 + place] = visible ? dot : NEVER;
                    }
                }
            }
        }
        __syncthreads();
        // Each warp takes every fourth head. Every page has a key that is seen, so the largest score is a number.
        UNROLL
        for (int i = 0; i < GROUP_MAX / 4; i++) {
            const u32 g = warp + 4 * i;
            if (g < group) {
                const float s0 = scores[g * 64 + lane], s1 = scores[g * 64 + 32 + lane];
                const float top = fmaxf(largest[i], warp_max(fmaxf(s0, s1)));
                const float factor = expf(largest[i] - top);
                const float w0 = expf(s0 - top), w1 = expf(s1 - top);
                largest[i] = top;
                weights[i] = weights[i] * factor + warp_sum(w0 + w1);
                scores[g * 64 + lane] = w0;
                scores[g * 64 + 32 + lane] = w1;
                if (lane == 0) {
                    factors[g] = factor;
                }
            }
        }
        __syncthreads();
        const u32 dim = tid % 64, parity = tid / 64;
        UNROLL
        for (int i = 0; i < GROUP_MAX / 2; i++) {
            const u32 g = 2 * i + parity;
            sums[i] *= g < group ? factors[g] : 0.0f;
        }
        const u32 from = page * 64 < begin ? begin - page * 64 : 0, to = min(end - page * 64, 64u);
        for (u32 place = from; place < to; place++) {
            const float value = from_bf16(values[place * 64 + dim]);
            UNROLL
            for (int i = 0; i < GROUP_MAX / 2; i++) {
                const u32 g = 2 * i + parity;
                if (g < group) {
                    sums[i] += scores[g * 64 + place] * value;
                }
            }
        }
        __syncthreads();
    }
    const u64 first_head = static_cast<u64>(blockIdx.x) * a.heads + kv_head * group;
    UNROLL
    for (int i = 0; i < GROUP_MAX / 2; i++) {
        const u32 g = 2 * i + tid / 64;
        if (g < group) {
            a.values[((first_head + g) * a.parts + part) * 64 + tid % 64] = sums[i];
        }
    }
    UNROLL
    for (int i = 0; i < GROUP_MAX / 4; i++) {
        const u32 g = warp + 4 * i;
        if (g < group && lane == 0) {
            float *sum = a.sums + ((first_head + g) * a.parts + part) * 2;
            sum[0] = largest[i];
            sum[1] = weights[i];
        }
    }
}
