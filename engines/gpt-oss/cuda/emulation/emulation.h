// Runs CUDA kernels on the processor: one fibre for each thread of a block, blocks one after another.
//
// A thread runs until it comes to a barrier or to something its warp does together; who runs next is chosen by a seed.
// Found and reported: threads at different barriers, lanes at different warp operations, threads that wait for others
// that have ended, vector loads that are not aligned, more shared memory than there is. Shared memory begins as NaNs.
// Not found: anything about speed, banks of shared memory, or the order in which real memory shows writes.

#pragma once
#define EMULATED 1

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emulation {

struct Index {
    unsigned x, y, z;
};

struct Thread {
    Index thread, block;
};

extern thread_local Thread *current;
extern thread_local Index grid_size, block_size;

// All threads of the block; `line` tells barriers apart.
void barrier(int line);
void *shared(int which, size_t bytes);
void check_aligned(const void *address, size_t multiple);
void mma_16x8x16(float *d, const unsigned *a, const unsigned *b);
// `kind` 0: from lane ^ `other`. 1: from lane `other`. 2: the sum of 1 << lane where `value` is not 0. 3: nothing, only together.
unsigned exchange(int line, int kind, unsigned value, int other);

typedef void (*Body)(const void *arguments);
struct Registered {
    Registered(const char *name, size_t argument_bytes, unsigned threads, Body body);
};

inline float as_float(unsigned bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
inline unsigned as_bits(float f) {
    unsigned bits;
    memcpy(&bits, &f, 4);
    return bits;
}
inline float exchange_float(int line, int kind, float value, int other) {
    return as_float(exchange(line, kind, as_bits(value), other));
}
inline int exchange_float(int line, int kind, int value, int other) {
    return static_cast<int>(exchange(line, kind, static_cast<unsigned>(value), other));
}
inline unsigned exchange_float(int line, int kind, unsigned value, int other) {
    return exchange(line, kind, value, other);
}
inline double exchange_float(int line, int kind, double value, int other) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    const uint64_t low = exchange(line, kind, static_cast<unsigned>(bits), other);
    const uint64_t high = exchange(line, kind, static_cast<unsigned>(bits >> 32), other);
    bits = low | (high << 32);
    memcpy(&value, &bits, 8);
    return value;
}

// As the PTX manual's prmt in its default mode: each nibble of `which` takes one of eight bytes, or spreads its sign.
inline unsigned byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t bytes = (static_cast<uint64_t>(high) << 32) | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned nibble = (which >> (4 * i)) & 15;
        unsigned byte = (bytes >> (8 * (nibble & 7))) & 255;
        if (nibble & 8) {
            byte = byte & 128 ? 255 : 0;
        }
        out |= byte << (8 * i);
    }
    return out;
}

}  // namespace emulation

inline unsigned long long atomicAdd(unsigned long long *to, unsigned long long x) {
    return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
}
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

#define DEVICE static inline
#define KERNEL(name, Args, threads)                                                                        \
    static void name##_body(const Args &a);                                                                \
    static emulation::Registered name##_registered(#name, sizeof(Args), threads, [](const void *from) {    \
        name##_body(*static_cast<const Args *>(from));                                                     \
    });                                                                                                    \
    static void name##_body(const Args &a)
#define SHARED(T, name, n) T *const name = static_cast<T *>(emulation::shared(__COUNTER__, sizeof(T) * (n)))
#define UNROLL
#define UNROLL_2

#define threadIdx (emulation::current->thread)
#define blockIdx (emulation::current->block)
#define gridDim (emulation::grid_size)
#define blockDim (emulation::block_size)
#define __syncthreads() emulation::barrier(__LINE__)
#define __syncwarp() ((void)emulation::exchange(__LINE__, 3, 0, 0))
#define __shfl_xor_sync(mask, value, distance) emulation::exchange_float(__LINE__, 0, value, distance)
#define __shfl_sync(mask, value, lane) emulation::exchange_float(__LINE__, 1, value, lane)
#define __ballot_sync(mask, value) emulation::exchange(__LINE__, 2, (value) ? 1u : 0u, 0)
#define __popc(x) __builtin_popcount(x)
#define __byte_perm(low, high, which) emulation::byte_perm(low, high, which)
#define __uint_as_float(x) emulation::as_float(x)
#define __int_as_float(x) emulation::as_float(static_cast<unsigned>(x))
#define __float_as_uint(x) emulation::as_bits(x)
#define __umulhi(a, b) static_cast<unsigned>((static_cast<uint64_t>(a) * (b)) >> 32)
#define rsqrtf(x) (1.0f / sqrtf(x))
