// act (pairs, intermediate): gate and up of each expert for all its pairs, and their product by swiglu, on tensor cores.

struct ExpertsUpMmaArgs {
    // See experts_up_gemv.
    const u8 *blocks;
    const u8 *scales;
    const bf16 *bias;
    const bf16 *t;
    // See experts_sort.
    const u32 *lists;
    const u32 *counts;
    bf16 *act;
    u32 hidden;
    u32 intermediate;
    u32 chosen;
    u32 capacity;
    float limit;
    float alpha;
};

// Half a row of a tile of MXFP4 weights, a block of 32: this thread's part.
struct ExpertPart {
    Quad codes;
    float scale;
};

DEVICE ExpertPart experts_fetch(const u8 *blocks, const u8 *scales, u32 columns, u32 column) {
    if (column >= columns) {
        return ExpertPart{Quad{0, 0, 0, 0}, 0.0f};
    }
    return ExpertPart{load16(blocks + static_cast<u64>(column) * 16), scale_of(scales[column])};
}

DEVICE void experts_put(bf16 *to, const ExpertPart &part) {
    store16(to, decode_scaled(part.codes.x, part.scale));
    store16(to + 8, decode_scaled(part.codes.y, part.scale));
    store16(to + 16, decode_scaled(part.codes.z, part.scale));
    store16(to + 24, decode_scaled(part.codes.w, part.scale));
}

// Four times 16 bytes of the tile of activations whose rows are `rows`, in shared memory: this thread's part.
DEVICE void experts_fetch_tokens(Quad *part, const bf16 *from, const u32 *rows, u32 columns, u32 c) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 place = i * TILE_THREADS + threadIdx.x, column = c + 8 * (place % 8);
        part[i] = Quad{0, 0, 0, 0};
        if (column < columns) {
            part[i] = load16(from + static_cast<u64>(rows[place / 8]) * columns + column);
        }
    }
}

DEVICE void experts_put_tokens(bf16 *tile, const Quad *part) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 place = i * TILE_THREADS + threadIdx.x;
        store16(tile + place / 8 * TILE_STRIDE + 8 * (place % 8), part[i]);
    }
}

// sums += 64 rows of weights, of which this thread reads half of one, times up to 64 rows of activations.
DEVICE void experts_multiply(float (*sums)[4], const u8 *blocks, const u8 *scales, const bf16 *from, const u32 *rows,
                             u32 columns, int groups, bf16 *weights, bf16 *tokens) {
    const u32 half = threadIdx.x % 2, row = threadIdx.x / 2;
    ExpertPart part = experts_fetch(blocks, scales, columns / 32, half);
    Quad token_part[4];
    experts_fetch_tokens(token_part, from, rows, columns, 0);
    for (u32 c = 0; c < columns; c += TILE_COLUMNS) {
        experts_put(weights + row * TILE_STRIDE + 32 * half, part);
        experts_put_tokens(tokens, token_part);
        __syncthreads();
        if (c + TILE_COLUMNS < columns) {
            part = experts_fetch(blocks, scales, columns / 32, (c + TILE_COLUMNS) / 32 + half);
            experts_fetch_tokens(token_part, from, rows, columns, c + TILE_COLUMNS);
        }
        multiply_tiles(sums, weights, tokens, groups);
        __syncthreads();
    }
}

DEVICE void experts_clear(float (*sums)[4]) {
    UNROLL
    for (int j = 0; j < TILE_TOKENS / 8; j++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            sums[j][i] = 0.0f;
        }
    }
}

// A block for every 32 places (x), 64 pairs (y) and expert (z).
KERNEL(experts_up_mma, ExpertsUpMmaArgs, TILE_THREADS) {
    SHARED(bf16, weights, TILE_ROWS * TILE_STRIDE);
    SHARED(bf16, tokens, TILE_TOKENS * TILE_STRIDE);
    SHARED(u32, pairs, TILE_TOKENS);
    SHARED(u32, rows, TILE_TOKENS);
    const u32 expert = blockIdx.z, first = blockIdx.y * TILE_TOKENS, count = a.counts[expert];
    if (first >= count) {
        return;
    }
    const u32 here = min(count - first, static_cast<u32>(TILE_TOKENS));
    if (threadIdx.x < TILE_TOKENS) {
        const u32 pair = a.lists[static_cast<u64>(expert) * a.capacity + first + min(threadIdx.x, here - 1)];
        pairs[threadIdx.x] = pair;
        rows[threadIdx.x] = pair / a.chosen;
    }
    __syncthreads();
    // Of 16 rows the first 8 are gates and the others the ups that belong to them: both are then with one thread.
    const u32 row = threadIdx.x / 2, columns = a.hidden / 32, places = blockIdx.x * (TILE_ROWS / 2);
    const u32 loaded = places + row / 16 * 8 + row % 8;
    const u64 weight_row = (static_cast<u64>(expert) * a.intermediate + loaded) * 2 + row % 16 / 8;
    float sums[TILE_TOKENS / 8][4];
    experts_clear(sums);
    experts_multiply(sums, a.blocks + weight_row * columns * 16, a.scales + weight_row * columns, a.t, rows, a.hidden,
                     static_cast<int>(here + 7) / 8, weights, tokens);
    const u32 lane = threadIdx.x % 32, place = places + threadIdx.x / 32 * 8 + lane / 4;
    const u64 gate_row = (static_cast<u64>(expert) * a.intermediate + place) * 2;
    const float gate_bias = from_bf16(a.bias[gate_row]), up_bias = from_bf16(a.bias[gate_row + 1]);
    UNROLL
    for (int j = 0; j < TILE_TOKENS / 8; j++) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            const u32 token = 8 * j + 2 * (lane % 4) + i;
            if (token < here) {
                const float act = swiglu(sums[j][i] + gate_bias, sums[j][i + 2] + up_bias, a.limit, a.alpha);
                a.act[static_cast<u64>(pairs[token]) * a.intermediate + place] = to_bf16(act);
            }
        }
    }
}
