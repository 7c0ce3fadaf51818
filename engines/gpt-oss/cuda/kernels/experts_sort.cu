// For each expert the list of its pairs of token and choice, in ascending order.

struct ExpertsSortArgs {
    // Of each pair its expert.
    const u32 *experts;
    // (experts, capacity): numbers of pairs.
    u32 *lists;
    u32 *counts;
    u32 pairs;
    u32 capacity;
};

// A block for each expert, which looks at all pairs.
KERNEL(experts_sort, ExpertsSortArgs, 256) {
    SHARED(u32, found, 8);
    const u32 expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 *list = a.lists + static_cast<u64>(expert) * a.capacity;
    u32 count = 0;
    for (u32 first = 0; first < a.pairs; first += 256) {
        const u32 pair = first + threadIdx.x;
        const bool is_mine = pair < a.pairs && a.experts[pair] == expert;
        const u32 lanes = __ballot_sync(FULL_WARP, is_mine);
        if (lane == 0) {
            found[warp] = __popc(lanes);
        }
        __syncthreads();
        u32 before = 0, all = 0;
        for (u32 w = 0; w < 8; w++) {
            before += w < warp ? found[w] : 0;
            all += found[w];
        }
        // A token has an expert once, so that lists have room; but not where the router's logits are no numbers.
        const u32 place = count + before + __popc(lanes & ((1u << lane) - 1));
        if (is_mine && place < a.capacity) {
            list[place] = pair;
        }
        count += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        a.counts[expert] = min(count, a.capacity);
    }
}
