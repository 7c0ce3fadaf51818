// out = x / sqrt(mean(x^2) + epsilon) * weight, rounded to bf16 at the end.

struct RmsnormArgs {
    const float *x;
    const bf16 *weight;
    // Which row of x becomes each row of out; null: the same.
    const u32 *rows;
    bf16 *out;
    u32 hidden;
    float epsilon;
};

// A block for each row.
KERNEL(rmsnorm, RmsnormArgs, 256) {
    SHARED(float, sums, 8);
    const u32 tid = threadIdx.x;
    const u64 from = a.rows == 0 ? blockIdx.x : a.rows[blockIdx.x];
    const float *x = a.x + from * a.hidden;
    float sum = 0.0f;
    for (u32 i = tid; i < a.hidden; i += 256) {
        sum += x[i] * x[i];
    }
    sum = warp_sum(sum);
    if (tid % 32 == 0) {
        sums[tid / 32] = sum;
    }
    __syncthreads();
    float all = 0.0f;
    for (int i = 0; i < 8; i++) {
        all += sums[i];
    }
    const float scale = 1.0f / sqrtf(all / static_cast<float>(a.hidden) + a.epsilon);
    u32 *out = reinterpret_cast<u32 *>(a.out + static_cast<u64>(blockIdx.x) * a.hidden);
    const u32 *weight = reinterpret_cast<const u32 *>(a.weight);
    for (u32 i = tid; i < a.hidden / 2; i += 256) {
        const u32 w = weight[i];
        out[i] = to_bf16_pair(x[2 * i] * scale * low_bf16(w), x[2 * i + 1] * scale * high_bf16(w));
    }
}
