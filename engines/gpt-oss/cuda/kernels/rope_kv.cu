// Turns queries and keys by their position, and puts keys and values into the blocks of the paged KV.

#define HEAD_DIM 64
#define BLOCK_TOKENS 64

struct RopeKvArgs {
    // (tokens, heads + 2 kv_heads, 64): queries, keys, values.
    const float *qkv;
    // (positions, 64): 32 cosines and 32 sines.
    const float *turns;
    // Below 0: the token is there to fill up, and nothing is stored for it.
    const int *positions;
    // Of each token: number of the block times 64, plus the place in it.
    const u32 *slots;
    // (tokens, heads, 64)
    bf16 *q;
    // (blocks, layers, kv_heads, 2, 64 places, 64): keys, then values.
    bf16 *kv;
    u32 heads;
    u32 kv_heads;
    u32 layer;
    u32 layers;
};

// A block for each token.
KERNEL(rope_kv, RopeKvArgs, 256) {
    const u64 token = blockIdx.x;
    const int position = a.positions[token];
    if (position < 0) {
        return;
    }
    const float *qkv = a.qkv + token * (a.heads + 2 * a.kv_heads) * HEAD_DIM;
    const float *turns = a.turns + static_cast<u64>(position) * HEAD_DIM;
    const u64 slot = a.slots[token];
    const u64 place = slot % BLOCK_TOKENS * HEAD_DIM;
    // Keys of head 0 of this layer.
    bf16 *block = a.kv + (slot / BLOCK_TOKENS * a.layers + a.layer) * a.kv_heads * 2 * BLOCK_TOKENS * HEAD_DIM;
    const u32 turned = a.heads + a.kv_heads;
    for (u32 i = threadIdx.x; i < turned * 32; i += 256) {
        const u32 head = i / 32, pair = i % 32;
        const float x = qkv[head * HEAD_DIM + pair], y = qkv[head * HEAD_DIM + pair + 32];
        const float cosine = turns[pair], sine = turns[pair + 32];
        bf16 *to = head < a.heads ? a.q + (token * a.heads + head) * HEAD_DIM
                                  : block + static_cast<u64>(head - a.heads) * 2 * BLOCK_TOKENS * HEAD_DIM + place;
        to[pair] = to_bf16(x * cosine - y * sine);
        to[pair + 32] = to_bf16(y * cosine + x * sine);
    }
    for (u32 i = threadIdx.x; i < a.kv_heads * HEAD_DIM; i += 256) {
        const u32 head = i / HEAD_DIM;
        bf16 *to = block + (static_cast<u64>(head) * 2 + 1) * BLOCK_TOKENS * HEAD_DIM + place;
        to[i % HEAD_DIM] = to_bf16(qkv[turned * HEAD_DIM + i]);
    }
}
