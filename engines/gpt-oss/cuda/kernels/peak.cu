// What a device can do at most: reading memory, and multiplying on tensor cores. For comparison; no pass uses them.

struct PeakReadArgs {
    const u8 *from;
    // One number for each thread, so that reading has a purpose.
    u32 *out;
    // Of 16 bytes, over all threads.
    u64 quads;
};

KERNEL(peak_read, PeakReadArgs, 256) {
    const u64 threads = static_cast<u64>(gridDim.x) * 256, thread = static_cast<u64>(blockIdx.x) * 256 + threadIdx.x;
    u32 sum = 0;
#ifndef EMULATED
#pragma unroll 8
#endif
    for (u64 i = thread; i < a.quads; i += threads) {
        const Quad v = load16(a.from + i * 16);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    a.out[thread] = sum;
}

struct PeakMmaArgs {
    // One number for each thread.
    float *out;
    u32 rounds;
};

// Eight independent sums a warp, so that none waits for the one before.
KERNEL(peak_mma, PeakMmaArgs, 256) {
    float sums[8][4];
    const u32 x = 0x3f803f80u ^ (threadIdx.x & 1u);
    const u32 left[4] = {x, x, x, x}, right[2] = {x, x};
    UNROLL
    for (int j = 0; j < 8; j++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            sums[j][i] = 0.0f;
        }
    }
    for (u32 round = 0; round < a.rounds; round++) {
        UNROLL
        for (int j = 0; j < 8; j++) {
            mma_16x8x16(sums[j], left, right);
        }
    }
    float sum = 0.0f;
    UNROLL
    for (int j = 0; j < 8; j++) {
        sum += sums[j][0] + sums[j][1] + sums[j][2] + sums[j][3];
    }
    a.out[static_cast<u64>(blockIdx.x) * 256 + threadIdx.x] = sum;
}
