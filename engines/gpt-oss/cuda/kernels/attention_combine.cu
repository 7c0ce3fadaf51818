// Joins what attention_decode made of the parts of a context, with the sink, which takes its share and has no value.

struct AttentionCombineArgs {
    // See attention_decode.
    const float *values;
    const float *sums;
    const bf16 *sinks;
    const u32 *entries;
    const int *positions;
    // (tokens, heads, 64)
    bf16 *out;
    u32 heads;
    u32 parts;
};

// A block for each entry (x) and two heads (y).
KERNEL(attention_combine, AttentionCombineArgs, 128) {
    const u32 head = blockIdx.y * 2 + threadIdx.x / 64, dim = threadIdx.x % 64;
    if (head >= a.heads) {
        return;
    }
    const u32 token = a.entries[blockIdx.x];
    bf16 *out = a.out + (static_cast<u64>(token) * a.heads + head) * 64 + dim;
    if (a.positions[token] < 0) {
        *out = 0;
        return;
    }
    const u64 first = (static_cast<u64>(blockIdx.x) * a.heads + head) * a.parts;
    const float sink = from_bf16(a.sinks[head]);
    float largest = sink;
    for (u32 part = 0; part < a.parts; part++) {
        largest = fmaxf(largest, a.sums[(first + part) * 2]);
    }
    float value = 0.0f, weight = expf(sink - largest);
    for (u32 part = 0; part < a.parts; part++) {
        // 0 for a part without a key: its largest score is minus infinity.
        const float factor = expf(a.sums[(first + part) * 2] - largest);
        weight += factor * a.sums[(first + part) * 2 + 1];
        value += factor * a.values[(first + part) * 64 + dim];
    }
    *out = to_bf16(value / weight);
}
