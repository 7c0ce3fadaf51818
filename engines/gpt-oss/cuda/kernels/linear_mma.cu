// out (tokens, rows) = t (tokens, columns) times weight (rows, columns), plus bias, for many tokens, on tensor cores.

struct LinearMmaArgs {
    const bf16 *weight;
    // Of each row; null: none.
    const bf16 *bias;
    const bf16 *t;
    float *out;
    u32 rows;
    // A multiple of 32.
    u32 columns;
    u32 tokens;
    // Whether out is added to.
    u32 add;
};

// Four times 16 bytes of a tile of 64 rows: this thread's part. Columns beyond the end are 0.
DEVICE void linear_fetch(Quad *part, const bf16 *from, u32 first_row, u32 rows, u32 columns, u32 c) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 place = i * TILE_THREADS + threadIdx.x;
        const u32 row = min(first_row + place / 8, rows - 1), column = c + 8 * (place % 8);
        part[i] = Quad{0, 0, 0, 0};
        if (column < columns) {
            part[i] = load16(from + static_cast<u64>(row) * columns + column);
        }
    }
}

DEVICE void linear_put(bf16 *tile, const Quad *part) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 place = i * TILE_THREADS + threadIdx.x;
        store16(tile + place / 8 * TILE_STRIDE + 8 * (place % 8), part[i]);
    }
}

// A block for every 64 rows (x) and 64 tokens (y).
KERNEL(linear_mma, LinearMmaArgs, TILE_THREADS) {
    SHARED(bf16, weights, TILE_ROWS * TILE_STRIDE);
    SHARED(bf16, tokens, TILE_TOKENS * TILE_STRIDE);
    const u32 first_row = blockIdx.x * TILE_ROWS, first_token = blockIdx.y * TILE_TOKENS;
    const int groups = static_cast<int>((min(a.tokens - first_token, static_cast<u32>(TILE_TOKENS)) + 7) / 8);
    float sums[TILE_TOKENS / 8][4];
    UNROLL
    for (int j = 0; j < TILE_TOKENS / 8; j++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            sums[j][i] = 0.0f;
        }
    }
    Quad weight_part[4], token_part[4];
    linear_fetch(weight_part, a.weight, first_row, a.rows, a.columns, 0);
    linear_fetch(token_part, a.t, first_token, a.tokens, a.columns, 0);
    for (u32 c = 0; c < a.columns; c += TILE_COLUMNS) {
        linear_put(weights, weight_part);
        linear_put(tokens, token_part);
        __syncthreads();
        if (c + TILE_COLUMNS < a.columns) {
            // On their way while the tensor cores work.
            linear_fetch(weight_part, a.weight, first_row, a.rows, a.columns, c + TILE_COLUMNS);
            linear_fetch(token_part, a.t, first_token, a.tokens, a.columns, c + TILE_COLUMNS);
        }
        multiply_tiles(sums, weights, tokens, groups);
        __syncthreads();
    }
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const u32 row = first_row + 16 * warp + lane / 4 + 8 * (i / 2);
        if (row >= a.rows) {
            continue;
        }
        const float bias = a.bias == 0 ? 0.0f : from_bf16(a.bias[row]);
        UNROLL
        for (int j = 0; j < TILE_TOKENS / 8; j++) {
            const u32 token = first_token + 8 * j + 2 * (lane % 4) + i % 2;
            if (token < a.tokens) {
                float *out = a.out + static_cast<u64>(token) * a.rows + row;
                *out = (a.add ? *out : 0.0f) + sums[j][i] + bias;
            }
        }
    }
}
