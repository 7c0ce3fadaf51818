// The embedding's row of each token: x (tokens, hidden). A token with CHOSEN is not known to the host yet: the rest of it says
// which row of the step before chose it.

#define CHOSEN 0x80000000u

struct EmbedArgs {
    const bf16 *table;
    const u32 *tokens;
    // (rows of the step before)
    const u32 *next;
    float *x;
    u32 hidden;
};

// A block for each token.
KERNEL(embed, EmbedArgs, 128) {
    const u64 token = blockIdx.x;
    const u32 named = a.tokens[token];
    const u32 id = named & CHOSEN ? a.next[named & ~CHOSEN] : named;
    const bf16 *row = a.table + static_cast<u64>(id) * a.hidden;
    for (u32 i = 8 * threadIdx.x; i < a.hidden; i += 8 * 128) {
        const Quad v = load16(row + i);
        float *x = a.x + token * a.hidden + i;
        store16(x, Quad{v.x << 16, v.x & 0xffff0000u, v.y << 16, v.y & 0xffff0000u});
        store16(x + 4, Quad{v.z << 16, v.z & 0xffff0000u, v.w << 16, v.w & 0xffff0000u});
    }
}
