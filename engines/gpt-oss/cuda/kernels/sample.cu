// Chooses the next token of each row, as the SDK's sampler does (crates/engine-sdk/src/sampler.rs says the rules), and leaves it
// where the next step reads it. Weights and their sums are f64; the sums are taken in another order, so a draw within 1e-13 of
// the border between two tokens may fall to the other one. Where top_p cuts, weights are whole multiples of 2^-45, so that
// their sum is the same in every order: a cut within 1e-8 of the border may fall beside it. 0 and -0 are equal here.

#define NOT_FINITE 1u
#define NONE_POSSIBLE 2u
#define NO_TOKEN 0xffffffffu
// Words of one row: temperature, seed (low, high), position, first change, changes, most likely ones wanted plus 1 or 0, top_k,
// top_p, min_p, mask plus 1 or 0, 0.
#define ROW_WORDS 12
// Words of one change: token, whether it is out, bias, repetition, what is taken off, room for the logit as it was.
#define CHANGE_WORDS 6
// Words of an answer: status, token, its logprob, then token and logprob of up to 20 most likely ones.
#define MOST_LIKELY_MAX 20
#define ANSWER_WORDS (3 + 2 * MOST_LIKELY_MAX)
#define SAMPLE_THREADS 512
#define SAMPLE_WARPS (SAMPLE_THREADS / 32)
#define SAMPLE_BINS 256
#define SAMPLE_ONE 35184372088832.0  // 2^45: the weights of 201,088 tokens are at most 1 each and sum up below 2^63

struct SampleArgs {
    // (rows, vocabulary), changed in place
    float *logits;
    // A bit for each token that the tokenizer has.
    const u32 *known;
    const u32 *rows;
    // In ascending order of tokens, each named once.
    u32 *changes;
    // (masks, vocabulary / 32 rounded up) A bit for each token that may be chosen, of the rows that name a mask.
    const u32 *masks;
    u32 *answers;
    // (rows) what was chosen; 0 where nothing could be
    u32 *next;
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

// `mask` may be null: then every known token is possible.
DEVICE bool sample_possible(const u32 *known, const u32 *mask, u32 token) {
    return sample_known(known, token) && (mask == 0 || sample_known(mask, token));
}

// Not past the largest finite number.
DEVICE float sample_finite(float x) { return fminf(fmaxf(x, -3.402823466e38f), 3.402823466e38f); }

// What may be drawn of a row.
struct SampleField {
    const float *logits;
    const u32 *known;
    const u32 *mask;
    u32 vocabulary;
    float top, temperature;
    // Of the rank of a token: what is behind this logit, and of those with this logit behind this token, is out.
    u32 cut, cut_token;
};

// Larger for larger numbers.
DEVICE u32 sample_key(float x) {
    const u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The logit that a token is drawn by, at most 0; minus infinity if it is out.
DEVICE float sample_logit(const SampleField &f, u32 i) {
    if (!sample_possible(f.known, f.mask, i) || !(f.logits[i] > NEVER)) {
        return NEVER;
    }
    const float v = (f.logits[i] - f.top) / f.temperature;
    const u32 key = sample_key(v);
    return key > f.cut || (key == f.cut && i <= f.cut_token) ? v : NEVER;
}

DEVICE u64 sample_mass(float v) { return static_cast<u64>(exp(static_cast<double>(v)) * SAMPLE_ONE); }

// Keeps the first tokens by rank: `count` of them, or if that is 0 the fewest that sum to `share` of all weights. The key of
// the last one is found digit by digit: how many tokens, or how much weight, is behind each value of the next digit?
DEVICE void sample_cut(SampleField &f, u32 count, float share, u32 *tokens) {
    SHARED(u64, bins, SAMPLE_WARPS * SAMPLE_BINS);
    SHARED(u64, found, 3);
    const u32 tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    u32 prefix = 0;
    u64 above = 0, target = count;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = tid; i < SAMPLE_WARPS * SAMPLE_BINS; i += SAMPLE_THREADS) {
            bins[i] = 0;
        }
        __syncthreads();
        for (u32 i = tid; i < f.vocabulary; i += SAMPLE_THREADS) {
            const float v = sample_logit(f, i);
            const u32 key = sample_key(v);
            if (v > NEVER && (shift == 24 || key >> (shift + 8) == prefix)) {
                atomicAdd(&bins[warp * SAMPLE_BINS + ((key >> shift) & 255)], count != 0 ? 1ull : sample_mass(v));
            }
        }
        __syncthreads();
        if (tid < SAMPLE_BINS) {
            for (u32 w = 1; w < SAMPLE_WARPS; w++) {
                bins[tid] += bins[w * SAMPLE_BINS + tid];
            }
        }
        __syncthreads();
        if (tid == 0) {
            if (count == 0 && shift == 24) {
                u64 all = 0;
                for (u32 digit = 0; digit < SAMPLE_BINS; digit++) {
                    all += bins[digit];
                }
                target = static_cast<u64>(ceil(static_cast<double>(share) * static_cast<double>(all)));
            }
            u32 digit = SAMPLE_BINS - 1;
            while (digit > 0 && above + bins[digit] < target) {
                above += bins[digit];
                digit--;
            }
            found[0] = digit;
            found[1] = above;
            found[2] = target;
        }
        __syncthreads();
        prefix = prefix << 8 | static_cast<u32>(found[0]);
        above = found[1];
        target = found[2];
        __syncthreads();
    }
    // Of those with this very logit as many as it takes, the lowest first.
    const float at = __uint_as_float(prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix);
    const u64 each = count != 0 ? 1 : sample_mass(at);
    const u64 missing = target > above ? target - above : 0;
    const u64 wanted = each == 0 ? f.vocabulary : (missing + each - 1) / each;
    const u32 steps = (f.vocabulary + 32 * SAMPLE_WARPS - 1) / (32 * SAMPLE_WARPS);
    const u32 begin = warp * steps * 32;
    u32 equal = 0;
    for (u32 step = 0; step < steps; step++) {
        const u32 i = begin + step * 32 + lane;
        const bool is_equal = i < f.vocabulary && sample_key(sample_logit(f, i)) == prefix;
        equal += __popc(__ballot_sync(FULL_WARP, is_equal));
    }
    if (lane == 0) {
        bins[warp] = equal;
    }
    __syncthreads();
    u64 before = 0;
    u32 chosen_warp = 0;
    while (chosen_warp < SAMPLE_WARPS && before + bins[chosen_warp] < wanted) {
        before += bins[chosen_warp];
        chosen_warp++;
    }
    if (tid == 0) {
        tokens[0] = NO_TOKEN;
    }
    __syncthreads();
    if (warp == chosen_warp) {
        for (u32 step = 0; step < steps; step++) {
            const u32 i = begin + step * 32 + lane;
            const bool is_equal = i < f.vocabulary && sample_key(sample_logit(f, i)) == prefix;
            const u32 lanes = __ballot_sync(FULL_WARP, is_equal);
            const u32 place = __popc(lanes & ((2u << lane) - 1));
            if (is_equal && before + place == wanted) {
                tokens[0] = i;
            }
            before += __popc(lanes);
        }
    }
    __syncthreads();
    f.cut = prefix;
    f.cut_token = tokens[0];
    __syncthreads();
}

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
    const u32 *mask = row[10] == 0 ? 0 : a.masks + static_cast<u64>(row[10] - 1) * ((a.vocabulary + 31) / 32);
    if (tid == 0) {
        a.next[blockIdx.x] = 0;
    }

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
    for (u32 i = tid; i < change_count; i += SAMPLE_THREADS) {
        u32 *change = changes + static_cast<u64>(i) * CHANGE_WORDS;
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
        if (sample_possible(a.known, mask, i) && logits[i] > top) {
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
        SampleField field{logits, a.known, mask, a.vocabulary, top, temperature, 0, NO_TOKEN};
        if (row[7] != 0) {
            sample_cut(field, row[7], 0.0f, tokens);
        }
        if (__uint_as_float(row[8]) < 1.0f) {
            sample_cut(field, 0, __uint_as_float(row[8]), tokens);
        }
        const double least = static_cast<double>(__uint_as_float(row[9]));
        // Each warp has a stretch of tokens, so that sums go in their order.
        const u32 steps = (a.vocabulary + 32 * SAMPLE_WARPS - 1) / (32 * SAMPLE_WARPS);
        const u32 begin = warp * steps * 32, end = min(begin + steps * 32, a.vocabulary);
        double sum = 0.0;
        for (u32 i = begin + lane; i < end; i += 32) {
            const double weight = exp(static_cast<double>(sample_logit(field, i)));
            sum += weight >= least ? weight : 0.0;
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
                if (i < end) {
                    const double weight = exp(static_cast<double>(sample_logit(field, i)));
                    running = weight >= least ? weight : 0.0;
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
        a.next[blockIdx.x] = token;
        // The first change that is not of a lower token: there may be as many as tokens.
        u32 from = 0, to = change_count;
        while (from < to) {
            const u32 middle = from + (to - from) / 2;
            if (changes[static_cast<u64>(middle) * CHANGE_WORDS] < token) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        const u32 *change = changes + static_cast<u64>(from) * CHANGE_WORDS;
        const bool is_changed = from < change_count && change[0] == token;
        const float raw = is_changed ? __uint_as_float(change[5]) : logits[token];
        answer[2] = __float_as_uint(static_cast<float>(static_cast<double>(raw) - normalizer));
    }
}
