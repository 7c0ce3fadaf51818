// What every kernel stands on: types, exact conversions, warp reductions, the tensor-core tile.
//
// Kernels include nothing. This file is put in front of each of them, and under g++ emulation/emulation.h before both.
// Numbers: bf16 is kept as its bits (`bf16`), two in a `u32` with the first in the low half. Sizes that can pass 2^31
// (weights, KV, logits) are multiplied as `u64`.

typedef unsigned char u8;
typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FULL_WARP 0xffffffffu
#define NEVER (-__int_as_float(0x7f800000))  // minus infinity

#ifndef EMULATED
#define DEVICE static __device__ __forceinline__
#define KERNEL(name, Args, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name(const Args a)
#define SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define UNROLL _Pragma("unroll")
#define UNROLL_2 _Pragma("unroll 2")
#endif

struct Quad {
    u32 x, y, z, w;
};

// 16 bytes that nobody writes while the kernel runs. The address is a multiple of 16.
DEVICE Quad load16(const void *from) {
#ifdef EMULATED
    emulation::check_aligned(from, 16);
    return *static_cast<const Quad *>(from);
#else
    const uint4 v = __ldg(static_cast<const uint4 *>(from));
    return Quad{v.x, v.y, v.z, v.w};
#endif
}

DEVICE void store16(void *to, Quad v) {
#ifdef EMULATED
    emulation::check_aligned(to, 16);
    *static_cast<Quad *>(to) = v;
#else
    *static_cast<uint4 *>(to) = make_uint4(v.x, v.y, v.z, v.w);
#endif
}

DEVICE float from_bf16(bf16 x) { return __uint_as_float(static_cast<u32>(x) << 16); }
DEVICE float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Rounds to nearest, ties to even. NaN stays NaN.
DEVICE bf16 to_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<bf16>((bits >> 16) | 0x40u);
    }
    return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

DEVICE u32 to_bf16_pair(float low, float high) {
    return static_cast<u32>(to_bf16(low)) | (static_cast<u32>(to_bf16(high)) << 16);
}

// The sum of 8 products of bf16 numbers, in order.
DEVICE float dot8(Quad a, Quad b, float sum) {
    sum += low_bf16(a.x) * low_bf16(b.x);
    sum += high_bf16(a.x) * high_bf16(b.x);
    sum += low_bf16(a.y) * low_bf16(b.y);
    sum += high_bf16(a.y) * high_bf16(b.y);
    sum += low_bf16(a.z) * low_bf16(b.z);
    sum += high_bf16(a.z) * high_bf16(b.z);
    sum += low_bf16(a.w) * low_bf16(b.w);
    sum += high_bf16(a.w) * high_bf16(b.w);
    return sum;
}

// All lanes of the warp have to come here together.
DEVICE float warp_sum(float x) {
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(FULL_WARP, x, distance);
    }
    return x;
}

DEVICE float warp_max(float x) {
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
    }
    return x;
}

// MXFP4 -----------------------------------------------------------------------------------------------------------

// 2^(s-127); NaN for 255. 2^-127 is below the smallest normal number.
DEVICE float scale_of(u8 s) {
    const u32 bits = s == 0 ? 1u << 22 : s == 255 ? 0x7fc00000u : static_cast<u32>(s) << 23;
    return __uint_as_float(bits);
}

// Eight codes, the first in the lowest bits, as bf16 pairs without their scale. Exact: two table look-ups by byte
// permutation give the halves of each bf16 number, and the permutation's sign mode spreads the codes' sign bits.
DEVICE Quad decode_e2m1(u32 codes) {
    u32 out[4];
    UNROLL
    for (int half = 0; half < 2; half++) {
        const u32 four = half == 0 ? codes : codes >> 16;
        const u32 which = four & 0x7777u;
        // bf16 of 0, 0.5, 1, 1.5 | 2, 3, 4, 6: 0000 3f00 3f80 3fc0 | 4000 4040 4080 40c0.
        const u32 low = __byte_perm(0xc0800000u, 0xc0804000u, which);
        u32 high = __byte_perm(0x3f3f3f00u, 0x40404040u, which);
        // A byte of 0x80 where the code is positive; its sign spread over the byte, 0xff, where it is negative.
        const u32 signs = __byte_perm(0x80808080u, 0x80808080u, four & 0xffffu);
        high |= (signs << 7) & 0x80808080u;
        out[2 * half] = __byte_perm(low, high, 0x5140);
        out[2 * half + 1] = __byte_perm(low, high, 0x7362);
    }
    return Quad{out[0], out[1], out[2], out[3]};
}

DEVICE u32 scaled_pair(u32 pair, float scale) {
    // Exact: a power of two changes the exponent alone, and the lower half of the product is 0.
    const u32 low = __float_as_uint(low_bf16(pair) * scale) >> 16;
    const u32 high = __float_as_uint(high_bf16(pair) * scale) & 0xffff0000u;
    return low | high;
}

// Eight weights as bf16 pairs, scale included.
DEVICE Quad decode_scaled(u32 codes, float scale) {
    const Quad v = decode_e2m1(codes);
    return Quad{scaled_pair(v.x, scale), scaled_pair(v.y, scale), scaled_pair(v.z, scale),
                scaled_pair(v.w, scale)};
}

// A block of 32 weights, without its scale, times 32 activations at `t` (a multiple of 16 bytes).
DEVICE float dot_block(Quad codes, const bf16 *t) {
    float sum = dot8(decode_e2m1(codes.x), load16(t), 0.0f);
    sum = dot8(decode_e2m1(codes.y), load16(t + 8), sum);
    sum = dot8(decode_e2m1(codes.z), load16(t + 16), sum);
    return dot8(decode_e2m1(codes.w), load16(t + 24), sum);
}

// Tensor cores ----------------------------------------------------------------------------------------------------

// d = a (16x16, row-major) times b (16x8, column-major) + d, bf16 to f32, by one warp. With g = lane / 4, t = lane % 4:
//   a[0] (g, 2t..) a[1] (g+8, 2t..) a[2] (g, 2t+8..) a[3] (g+8, 2t+8..)   b[0] (2t.., g) b[1] (2t+8.., g)
//   d[0] (g, 2t) d[1] (g, 2t+1) d[2] (g+8, 2t) d[3] (g+8, 2t+1)
// as the PTX manual has it ("Matrix Fragments for mma.m16n8k16").
DEVICE void mma_16x8x16(float *d, const u32 *a, const u32 *b) {
#ifdef EMULATED
    emulation::mma_16x8x16(d, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// A block of 128 threads multiplies a tile of 64 rows of weights by up to 64 tokens, 64 columns at a time.
#define TILE_ROWS 64
#define TILE_TOKENS 64
#define TILE_COLUMNS 64
#define TILE_THREADS 128
// bf16 numbers from row to row in shared memory. 36 words: the 32 lanes of a fragment then lie in 32 banks.
#define TILE_STRIDE 72

// The pair of bf16 numbers at `at`, an even place.
DEVICE u32 pair_at(const bf16 *at) { return *reinterpret_cast<const u32 *>(at); }

// sums[8][4] += this warp's 16 of the rows times the first 8 * groups tokens.
DEVICE void multiply_tiles(float (*sums)[4], const bf16 *rows, const bf16 *tokens, int groups) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t = lane % 4;
    const bf16 *row = rows + (16 * warp + g) * TILE_STRIDE + 2 * t;
    const bf16 *token = tokens + g * TILE_STRIDE + 2 * t;
    UNROLL
    for (int k = 0; k < TILE_COLUMNS; k += 16) {
        const u32 a[4] = {pair_at(row + k), pair_at(row + 8 * TILE_STRIDE + k), pair_at(row + k + 8),
                          pair_at(row + 8 * TILE_STRIDE + k + 8)};
        UNROLL
        for (int j = 0; j < TILE_TOKENS / 8; j++) {
            if (j < groups) {
                const bf16 *at = token + 8 * j * TILE_STRIDE + k;
                const u32 b[2] = {pair_at(at), pair_at(at + 8)};
                mma_16x8x16(sums[j], a, b);
            }
        }
    }
}
