// Kernels with one fault each, which the emulated device has to find. Only the emulation has them.

struct FaultArgs {
    u32 *out;
};

KERNEL(fault_other_barrier, FaultArgs, 64) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    a.out[threadIdx.x] = 1;
}

KERNEL(fault_passed_barrier, FaultArgs, 64) {
    if (threadIdx.x == 5) {
        return;
    }
    __syncthreads();
    a.out[threadIdx.x] = 1;
}

KERNEL(fault_half_a_warp, FaultArgs, 64) {
    if (threadIdx.x % 32 < 16) {
        a.out[threadIdx.x] = __shfl_xor_sync(FULL_WARP, threadIdx.x, 1);
    }
}

KERNEL(fault_other_operation, FaultArgs, 32) {
    if (threadIdx.x < 16) {
        a.out[threadIdx.x] = __shfl_xor_sync(FULL_WARP, threadIdx.x, 1);
    } else {
        a.out[threadIdx.x] = __ballot_sync(FULL_WARP, true);
    }
}

KERNEL(fault_unaligned, FaultArgs, 32) { a.out[threadIdx.x] = load16(a.out + 1).x; }

KERNEL(fault_too_much_shared, FaultArgs, 32) {
    SHARED(u32, room, 13000);
    a.out[threadIdx.x] = room[threadIdx.x];
}

// Every warp reads what the next one writes, and nobody waits: right or wrong by who runs first.
KERNEL(fault_missing_barrier, FaultArgs, 128) {
    SHARED(u32, numbers, 128);
    numbers[threadIdx.x] = threadIdx.x;
    a.out[threadIdx.x] = numbers[(threadIdx.x + 32) % 128];
}
