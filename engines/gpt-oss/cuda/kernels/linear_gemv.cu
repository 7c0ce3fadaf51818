// out (tokens, rows) = t (tokens, columns) times weight (rows, columns), plus bias, for one to eight tokens.
//
// Bound by reading the weights once: each warp reads two rows, 16 bytes a lane, and multiplies them by all tokens.

struct LinearGemvArgs {
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

#define GEMV_ROWS 2

// A block of four warps for every eight rows.
template <int M>
DEVICE void linear_gemv(const LinearGemvArgs &a) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 first = (blockIdx.x * 4 + warp) * GEMV_ROWS;
    const bf16 *row[GEMV_ROWS];
    UNROLL
    for (int r = 0; r < GEMV_ROWS; r++) {
        // Rows and tokens beyond the end repeat the last one; what comes of it is not written.
        row[r] = a.weight + static_cast<u64>(min(first + r, a.rows - 1)) * a.columns;
    }
    const bf16 *t[M];
    float sums[GEMV_ROWS][M];
    UNROLL
    for (int m = 0; m < M; m++) {
        t[m] = a.t + static_cast<u64>(min(static_cast<u32>(m), a.tokens - 1)) * a.columns;
        UNROLL
        for (int r = 0; r < GEMV_ROWS; r++) {
            sums[r][m] = 0.0f;
        }
    }
    UNROLL_2
    for (u32 c = 8 * lane; c < a.columns; c += 256) {
        Quad w[GEMV_ROWS];
        UNROLL
        for (int r = 0; r < GEMV_ROWS; r++) {
            w[r] = load16(row[r] + c);
        }
        UNROLL
        for (int m = 0; m < M; m++) {
            const Quad v = load16(t[m] + c);
            UNROLL
            for (int r = 0; r < GEMV_ROWS; r++) {
                sums[r][m] = dot8(w[r], v, sums[r][m]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < GEMV_ROWS; r++) {
        UNROLL
        for (int m = 0; m < M; m++) {
            const float sum = warp_sum(sums[r][m]);
            if (lane == 0 && first + r < a.rows && m < static_cast<int>(a.tokens)) {
                float *out = a.out + static_cast<u64>(m) * a.rows + first + r;
                const float bias = a.bias == 0 ? 0.0f : from_bf16(a.bias[first + r]);
                *out = (a.add ? *out : 0.0f) + sum + bias;
            }
        }
    }
}

KERNEL(linear_gemv_1, LinearGemvArgs, 128) { linear_gemv<1>(a); }
KERNEL(linear_gemv_2, LinearGemvArgs, 128) { linear_gemv<2>(a); }
KERNEL(linear_gemv_4, LinearGemvArgs, 128) { linear_gemv<4>(a); }
KERNEL(linear_gemv_8, LinearGemvArgs, 128) { linear_gemv<8>(a); }
