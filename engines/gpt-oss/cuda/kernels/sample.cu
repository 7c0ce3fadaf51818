// Chooses the next token of each row, as the SDK's sampler does (crates/engine-sdk/src/sampler.rs says the rules), where
// neither top_k, top_p nor min_p cut candidates away. Weights and their sums are f64; the sums are taken in another order,
// so a draw within 1e-13 of the border between two tokens may fall to the other one. 0 and -0 are equal here.

#define NOT_FINITE 1u
#define NONE_POSSIBLE 2u
#define NO_TOKEN 0xffffffffu
// Words of one row: temperature, seed (low, high), position, first change, changes, most likely ones wanted plus 1 or 0, 0.
#define ROW_WORDS 8
// Words of one change: token, whether it is out, bias, repetition, what is taken off, room for the logit as it was.
#define CHANGE_WORDS 6
// Words of an answer: status, token, its logprob, then token and logprob of up to 20 most likely ones.
#define MOST_LIKELY_MAX 20
#define ANSWER_WORDS (3 + 2 * MOST_LIKELY_MAX)
#define SAMPLE_THREADS 512
#define SAMPLE_WARPS (SAMPLE_THREADS / 32)

struct SampleArgs {
    // (rows, vocabulary), changed in place
    float *logits;
    // A bit for each token that the tokenizer has.
    const u32 *known;
    const u32 *rows;
    u32 *changes;
    u32 *answers;
    u32 vocabulary;
};

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw: a number in 0..1 as crates/engine-sdk/src/sampler/philox.rs has it.
DEVICE double sample_uniform(u32 seed_low, u32 seed_high, u32 position) {
    u32 c0 = position, c1 = 0, c2 = 0, c3 = 0, k0 = seed_low, k1 = seed_high;
    for (int round = 0; round < 10; round++) {
        const u32 high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
        const u32 high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    const u64 bits = (static_cast<u64>(c0) << 21) | (c1 >> 11);
    return static_cast<double>(bits) / 9007199254740992.0;
}

// The largest of (value, token), of equals the lower token, over the whole block. All threads get it.
DEVICE void sample_best(float &value, u32 &token, float *values, u32 *tokens) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(FULL_WARP, value, distance);
        const u32 other_token = __shfl_xor_sync(FULL_WARP, token, distance);
        if (other > value || (other == value && other_token < token)) {
            value = other;
            token = other_token;
        }
    }
    __syncthreads();
    if (lane == 0) {
        values[warp] = value;
        tokens[warp] = token;
    }
    __syncthreads();
    value = values[0];
    token = tokens[0];
    for (int w = 1; w < SAMPLE_WARPS; w++) {
        if (values[w] > value || (values[w] == value && tokens[w] < token)) {
            value = values[w];
            token = tokens[w];
        }
    }
}

DEVICE double sample_sum(double x, double *sums) {
    UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(FULL_WARP, x, distance);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = x;
    }
    __syncthreads();
    double all = 0.0;
    for (int w = 0; w < SAMPLE_WARPS; w++) {
        all += sums[w];
    }
    return all;
}

DEVICE bool sample_known(const u32 *known, u32 token) { return (known[token / 32] >> (token % 32)) & 1u; }

// Not past the largest finite number.
DEVICE float sample_finite(float x) { return fminf(fmaxf(x, -3.402823466e38f), 3.402823466e38f); }

// A block for each row.
KERNEL(sample, SampleArgs, SAMPLE_THREADS) {
    SHARED(float, values, SAMPLE_WARPS);
    SHARED(u32, tokens, SAMPLE_WARPS);
    SHARED(double, sums, SAMPLE_WARPS);
    const u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const u32 *row = a.rows + static_cast<u64>(blockIdx.x) * ROW_WORDS;
    u32 *answer = a.answers + static_cast<u64>(blockIdx.x) * ANSWER_WORDS;
    float *logits = a.logits + static_cast<u64>(blockIdx.x) * a.vocabulary;
    const float temperature = __uint_as_float(row[0]);
    u32 *changes = a.changes + static_cast<u64>(row[4]) * CHANGE_WORDS;
    const u32 change_count = row[5];

    // The first logit that is no number, and the largest.
    float top = NEVER;
    u32 token = NO_TOKEN, bad = NO_TOKEN;
    for (u32 i = tid; i < a.vocabulary; i += SAMPLE_THREADS) {
        const float v = logits[i];
        if (!(v < -NEVER) && bad == NO_TOKEN) {
            bad = i;
        }
        if (v > top) {
            top = v;
            token = i;
        }
    }
    float nothing = 0.0f;
    sample_best(nothing, bad, values, tokens);
    if (bad != NO_TOKEN) {
        if (tid == 0) {
            answer[0] = NOT_FINITE;
            answer[1] = bad;
            answer[2] = __float_as_uint(logits[bad]);
        }
        return;
    }
    double normalizer = 0.0;
    if (row[6] != 0) {
        sample_best(top, token, values, tokens);
        double sum = 0.0;
        for (u32 i = tid; i < a.vocabulary; i += SAMPLE_THREADS) {
            sum += exp(static_cast<double>(logits[i]) - static_cast<double>(top));
        }
        normalizer = log(sample_sum(sum, sums)) + static_cast<double>(top);
        // One after the other: the best of those that come behind the last one.
        float last = -NEVER;
        u32 last_token = 0;
        for (u32 n = 0; n + 1 < row[6]; n++) {
            float best = NEVER;
            u32 best_token = NO_TOKEN;
            for (u32 i = tid; i < a.vocabulary; i += SAMPLE_THREADS) {
                const float v = logits[i];
                const bool behind = v < last || (v == last && i > last_token);
                if (behind && v > best && sample_known(a.known, i)) {
                    best = v;
                    best_token = i;
                }
            }
            sample_best(best, best_token, values, tokens);
            if (tid == 0) {
                answer[3 + 2 * n] = best_token;
                answer[4 + 2 * n] = __float_as_uint(static_cast<float>(static_cast<double>(best) - normalizer));
            }
            last = best;
            last_token = best_token;
        }
    }
    __syncthreads();
    // Tokens are named once each.
    for (u32 i = tid; i < change_count; i += SAMPLE_THREADS) {
        u32 *change = changes + i * CHANGE_WORDS;
        float v = logits[change[0]];
        change[5] = __float_as_uint(v);
        if (v > NEVER) {
            const float repetition = __uint_as_float(change[3]);
            v = sample_finite(v + __uint_as_float(change[2]));
            v = sample_finite(v > 0.0f ? v / repetition : v * repetition);
            v = sample_finite(v - __uint_as_float(change[4]));
        }
        logits[change[0]] = change[1] != 0 ? NEVER : v;
    }
    __syncthreads();

    top = NEVER;
    token = NO_TOKEN;
    for (u32 i = tid; i < a.vocabulary; i += SAMPLE_THREADS) {
        if (sample_known(a.known, i) && logits[i] > top) {
            top = logits[i];
            token = i;
        }
    }
    sample_best(top, token, values, tokens);
    if (token == NO_TOKEN) {
        if (tid == 0) {
            answer[0] = NONE_POSSIBLE;
        }
        return;
    }
    if (temperature != 0.0f) {
        // Each warp has a stretch of tokens, so that sums go in their order.
        const u32 steps = (a.vocabulary + 32 * SAMPLE_WARPS - 1) / (32 * SAMPLE_WARPS);
        const u32 begin = warp * steps * 32, end = min(begin + steps * 32, a.vocabulary);
        double sum = 0.0;
        for (u32 i = begin + lane; i < end; i += 32) {
            if (sample_known(a.known, i)) {
                sum += exp(static_cast<double>((logits[i] - top) / temperature));
            }
        }
        const double all = sample_sum(sum, sums);
        const double target = sample_uniform(row[1], row[2], row[3]) * all;
        double before = 0.0;
        u32 chosen_warp = SAMPLE_WARPS;
        for (u32 w = 0; w < SAMPLE_WARPS; w++) {
            if (before + sums[w] > target) {
                chosen_warp = w;
                break;
            }
            before += sums[w];
        }
        // Every thread has read the sums before one is written again, and `token` is the same in all of them.
        if (tid == 0) {
            tokens[0] = token;
        }
        __syncthreads();
        if (warp == chosen_warp) {
            u32 found = NO_TOKEN;
            for (u32 step = 0; step < steps && found == NO_TOKEN; step++) {
                const u32 i = begin + step * 32 + lane;
                double running = 0.0;
                if (i < end && sample_known(a.known, i)) {
                    running = exp(static_cast<double>((logits[i] - top) / temperature));
                }
                const bool has_weight = running > 0.0;
                UNROLL
                for (int distance = 1; distance < 32; distance *= 2) {
                    const double left = __shfl_sync(FULL_WARP, running, (lane - distance) & 31);
                    if (lane >= static_cast<u32>(distance)) {
                        running += left;
                    }
                }
                const u32 passes = __ballot_sync(FULL_WARP, before + running > target && has_weight);
                if (passes != 0) {
                    found = begin + step * 32 + static_cast<u32>(__popc((passes & (0u - passes)) - 1));
                }
                before += __shfl_sync(FULL_WARP, running, 31);
            }
            // Rounding can leave the running sum a hair short: then the likeliest, which is as good as the last.
            if (lane == 0 && found != NO_TOKEN) {
                tokens[0] = found;
            }
        }
        __syncthreads();
        token = tokens[0];
    }
    if (tid == 0) {
        answer[0] = 0;
        answer[1] = token;
        float raw = logits[token];
        for (u32 i = 0; i < change_count; i++) {
            if (changes[i * CHANGE_WORDS] == token) {
                raw = __uint_as_float(changes[i * CHANGE_WORDS + 5]);
            }
        }
        answer[2] = __float_as_uint(static_cast<float>(static_cast<double>(raw) - normalizer));
    }
}
