// The embedding's row of each token: x (tokens, hidden).

struct EmbedArgs {
    const bf16 *table;
    const u32 *tokens;
    float *x;
    u32 hidden;
};

// A block for each token.
KERNEL(embed, EmbedArgs, 128) {
    const u64 token = blockIdx.x;
    const bf16 *row = a.table + static_cast<u64>(a.tokens[token]) * a.hidden;
    for (u32 i = 8 * threadIdx.x; i < a.hidden; i += 8 * 128) {
        const Quad v = load16(row + i);
        float *x = a.x + token * a.hidden + i;
        store16(x, Quad{v.x << 16, v.x & 0xffff0000u, v.y << 16, v.y & 0xffff0000u});
        store16(x + 4, Quad{v.z << 16, v.z & 0xffff0000u, v.w << 16, v.w & 0xffff0000u});
    }
}
