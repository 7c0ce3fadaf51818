// Attention of up to 16 neighbouring tokens of a sequence over its paged KV, on tensor cores, one head for each warp.

struct AttentionPrefillArgs {
    // (tokens, heads, 64)
    const bf16 *q;
    // See rope_kv.
    const bf16 *kv;
    const bf16 *sinks;
    // Of each tile four numbers: its first token, how many, their sequence's row, 0.
    const u32 *tiles;
    const int *positions;
    // See attention_decode.
    const u32 *table_starts;
    const u32 *table_firsts;
    const u32 *tables;
    // (tokens, heads, 64)
    bf16 *out;
    u32 heads;
    u32 kv_heads;
    u32 layer;
    u32 layers;
    // Positions a token looks back at, its own included; 0: all.
    u32 window;
};

// A block for each tile (x) and up to four heads that share keys (y).
KERNEL(attention_prefill, AttentionPrefillArgs, 128) {
    SHARED(bf16, keys, 64 * TILE_STRIDE);
    SHARED(bf16, values, 64 * TILE_STRIDE);
    const u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const u32 g = lane / 4, t = lane % 4;
    const u32 group = a.heads / a.kv_heads, quarters = (group + 3) / 4;
    const u32 kv_head = blockIdx.y / quarters, in_group = blockIdx.y % quarters * 4 + warp;
    const bool works = in_group < group;
    const u32 head = kv_head * group + min(in_group, group - 1);
    const u32 first_token = a.tiles[4 * blockIdx.x], count = a.tiles[4 * blockIdx.x + 1];
    const u32 row = a.tiles[4 * blockIdx.x + 2];
    const u32 position = static_cast<u32>(a.positions[first_token]);
    const u32 end = position + count;
    const u32 begin = a.window != 0 && position + 1 > a.window ? position + 1 - a.window : 0;

    // Rows g and g + 8 of the tile; beyond its end the last one again, which is not written.
    const u32 mine[2] = {min(g, count - 1), min(g + 8, count - 1)};
    u32 query[4][4];
    UNROLL
    for (int k = 0; k < 4; k++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const u64 token = first_token + mine[i % 2];
            query[k][i] = pair_at(a.q + (token * a.heads + head) * 64 + 16 * k + 8 * (i / 2) + 2 * t);
        }
    }
    // Softmax of each of the two rows, begun with the sink.
    const float sink = from_bf16(a.sinks[head]);
    float largest[2] = {sink, sink}, weights[2] = {1.0f, 1.0f};
    float sums[8][4];
    UNROLL
    for (int j = 0; j < 8; j++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            sums[j][i] = 0.0f;
        }
    }
    for (u32 page = begin / 64; page * 64 < end; page++) {
        const u64 block = a.tables[a.table_starts[row] + page - a.table_firsts[row]];
        const bf16 *from = a.kv + ((block * a.layers + a.layer) * a.kv_heads + kv_head) * 2 * 64 * 64;
        UNROLL
        for (int i = 0; i < 4; i++) {
            const u32 place = i * 128 + tid, key = place / 8, column = 8 * (place % 8);
            // Nobody wrote what is behind the end; a weight of 0 times garbage may be NaN.
            const bool known = page * 64 + key >= begin && page * 64 + key < end;
            Quad k = {0, 0, 0, 0}, v = {0, 0, 0, 0};
            if (known) {
                k = load16(from + key * 64 + column);
                v = load16(from + 64 * 64 + key * 64 + column);
            }
            store16(keys + key * TILE_STRIDE + column, k);
            store16(values + key * TILE_STRIDE + column, v);
        }
        __syncthreads();
        if (works) {
            float scores[8][4];
            UNROLL
            for (int j = 0; j < 8; j++) {
                UNROLL
                for (int i = 0; i < 4; i++) {
                    scores[j][i] = 0.0f;
                }
                UNROLL
                for (int k = 0; k < 4; k++) {
                    const bf16 *at = keys + (8 * j + g) * TILE_STRIDE + 16 * k + 2 * t;
                    const u32 b[2] = {pair_at(at), pair_at(at + 8)};
                    mma_16x8x16(scores[j], query[k], b);
                }
            }
            float top[2] = {largest[0], largest[1]};
            UNROLL
            for (int j = 0; j < 8; j++) {
                UNROLL
                for (int i = 0; i < 4; i++) {
                    const u32 key = page * 64 + 8 * j + 2 * t + i % 2, own = position + mine[i / 2];
                    const bool visible = key <= own && (a.window == 0 || key + a.window > own);
                    scores[j][i] = visible ? scores[j][i] * 0.125f : NEVER;
                    top[i / 2] = fmaxf(top[i / 2], scores[j][i]);
                }
            }
            // The four lanes of a row.
            float factor[2], added[2] = {0.0f, 0.0f};
            UNROLL
            for (int r = 0; r < 2; r++) {
                top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 1));
                top[r] = fmaxf(top[r], __shfl_xor_sync(FULL_WARP, top[r], 2));
                factor[r] = expf(largest[r] - top[r]);
                largest[r] = top[r];
            }
            UNROLL
            for (int j = 0; j < 8; j++) {
                UNROLL
                for (int i = 0; i < 4; i++) {
                    scores[j][i] = expf(scores[j][i] - top[i / 2]);
                    added[i / 2] += scores[j][i];
                    sums[j][i] *= factor[i / 2];
                }
            }
            UNROLL
            for (int r = 0; r < 2; r++) {
                added[r] += __shfl_xor_sync(FULL_WARP, added[r], 1);
                added[r] += __shfl_xor_sync(FULL_WARP, added[r], 2);
                weights[r] = weights[r] * factor[r] + added[r];
            }
            UNROLL
            for (int k = 0; k < 4; k++) {
                // Sums of one product are laid out as the left side of the next one is.
                const float *s0 = scores[2 * k], *s1 = scores[2 * k + 1];
                const u32 weight[4] = {to_bf16_pair(s0[0], s0[1]), to_bf16_pair(s0[2], s0[3]),
                                       to_bf16_pair(s1[0], s1[1]), to_bf16_pair(s1[2], s1[3])};
                UNROLL
                for (int j = 0; j < 8; j++) {
                    const bf16 *at = values + (16 * k + 2 * t) * TILE_STRIDE + 8 * j + g;
                    const u32 b[2] = {
                        at[0] | static_cast<u32>(at[TILE_STRIDE]) << 16,
                        at[8 * TILE_STRIDE] | static_cast<u32>(at[9 * TILE_STRIDE]) << 16,
                    };
                    mma_16x8x16(sums[j], weight, b);
                }
            }
        }
        __syncthreads();
    }
    if (!works) {
        return;
    }
    UNROLL
    for (int r = 0; r < 2; r++) {
        const u32 in_tile = g + 8 * r;
        if (in_tile < count) {
            bf16 *out = a.out + (static_cast<u64>(first_token + in_tile) * a.heads + head) * 64;
            UNROLL
            for (int j = 0; j < 8; j++) {
                const u32 pair = to_bf16_pair(sums[j][2 * r] / weights[r], sums[j][2 * r + 1] / weights[r]);
                *reinterpret_cast<u32 *>(out + 8 * j + 2 * t) = pair;
            }
        }
    }
}
