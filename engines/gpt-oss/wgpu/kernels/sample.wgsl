// What the kernels that choose tokens share. They do what the SDK's sampler does (crates/engine-sdk/src/sampler.rs says the
// rules), where neither top_k, top_p nor min_p cut candidates away.
//
// There is no f64 in WGSL, and drivers may be off by a few bits in a division. So everything that decides is done with whole
// numbers: logits are compared and divided as bits, and weights are 64 bits wide (high word first) in steps of 2^-44. How far
// such a sum can be from the SDK's is known; a draw that falls nearer to the border between two tokens is not decided here
// but by the SDK, from the row's logits.

const NOBODY = 0xffffffffu;
// Minus infinity, as bits.
const OUT = 0xff800000u;

// Parts of a row, each of which has a workgroup.
const PARTS = 64u;
// Words of a row of the state: before and behind the changes, of each part a key, its token, the first token whose logit is
// no number, and the sum of weights (2); then of each part the most likely tokens (number and logit).
const PART_WORDS = 5u;
const STAGE_WORDS = PARTS * PART_WORDS;
const STATE_WORDS = 2u * STAGE_WORDS + PARTS * 2u * MOST_LIKELY_MAX;

// Words of a row of the requests: temperature, seed (low, high), position, first change, changes, how many most likely tokens
// are wanted plus 1 or 0, margin. Behind all rows the changes: token, whether it is out, bias, repetition, what is taken off,
// row, room for the logit as it was, 0.
const ROW_WORDS = 8u;
const CHANGE_WORDS = 8u;
const TEMPERATURE = 0u;
const SEED = 1u;
const POSITION = 3u;
const CHANGE_FIRST = 4u;
const CHANGES = 5u;
const WANTED = 6u;
const MARGIN = 7u;

struct Arguments {
    vocabulary: u32,
    // Tokens of a part.
    part_tokens: u32,
    rows: u32,
    // 0: logits as the model gave them. 1: as changed, and of known tokens alone.
    stage: u32,
    // Whether stage 0 ran.
    has_raw: u32,
    // Of all rows.
    changes: u32,
    // Where the tables of weights begin in the constants.
    tables_at: u32,
}

// A bit for each token that the tokenizer has, and the tables of e^-i for i below 32, e^-(i/2^8) and e^-(i/2^16) for i below
// 256, in steps of 2^-64.
@group(0) @binding(1) var<storage, read> constants: array<u32>;
@group(0) @binding(2) var<storage, read_write> state: array<u32>;
var<immediate> a: Arguments;

// a * b: high and low word.
fn product(one: u32, two: u32) -> vec2<u32> {
    let low_high = (one & 0xffffu) * (two >> 16u);
    let high_low = (one >> 16u) * (two & 0xffffu);
    let middle = (((one & 0xffffu) * (two & 0xffffu)) >> 16u) + (low_high & 0xffffu) + (high_low & 0xffffu);
    return vec2<u32>((one >> 16u) * (two >> 16u) + (low_high >> 16u) + (high_low >> 16u) + (middle >> 16u), one * two);
}

fn plus(one: vec2<u32>, two: vec2<u32>) -> vec2<u32> {
    let low = one.y + two.y;
    return vec2<u32>(one.x + two.x + select(0u, 1u, low < two.y), low);
}

// The upper 64 bits of the product, up to 3 less than they are.
fn product_high(one: vec2<u32>, two: vec2<u32>) -> vec2<u32> {
    let crossed = plus(vec2<u32>(0u, product(one.x, two.y).x), vec2<u32>(0u, product(one.y, two.x).x));
    return plus(product(one.x, two.x), crossed);
}

fn is_less(one: vec2<u32>, two: vec2<u32>) -> bool {
    return one.x < two.x || (one.x == two.x && one.y < two.y);
}

fn is_known(token: u32) -> bool { return ((constants[token / 32u] >> (token % 32u)) & 1u) != 0u; }

// Neither infinite nor no number.
fn is_finite(bits: u32) -> bool { return (bits & 0x7f800000u) != 0x7f800000u; }

// Larger for larger numbers; -0 is less than 0.
fn key_of(bits: u32) -> u32 { return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u); }

// What `key_of` was made from.
fn bits_of(key: u32) -> u32 { return select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u); }

// As bits: a / b rounded to the nearest number, of equally near ones to the even. b is over 0 and not below 2^-126; a result
// below that is 0, and one beyond the largest number infinite.
fn quotient(one: u32, two: u32) -> u32 {
    let sign = one & 0x80000000u;
    if (one & 0x7f800000u) == 0u {
        return sign;
    }
    var exponent = i32((one >> 23u) & 255u) - i32((two >> 23u) & 255u) + 127;
    var upper = (one & 0x7fffffu) | 0x800000u;
    let lower = (two & 0x7fffffu) | 0x800000u;
    if upper < lower {
        upper <<= 1u;
        exponent -= 1;
    }
    // 25 bits: the first is 1, the last one decides on rounding.
    var result = 1u;
    var rest = upper - lower;
    for (var i = 0u; i < 3u; i++) {
        rest <<= 8u;
        result = (result << 8u) | (rest / lower);
        rest %= lower;
    }
    let is_up = (result & 1u) != 0u && (rest != 0u || (result & 2u) != 0u);
    var mantissa = (result >> 1u) + select(0u, 1u, is_up);
    if mantissa == 0x1000000u {
        mantissa >>= 1u;
        exponent += 1;
    }
    if exponent <= 0 {
        return sign;
    }
    if exponent >= 255 {
        return sign | 0x7f800000u;
    }
    return sign | (u32(exponent) << 23u) | (mantissa & 0x7fffffu);
}

fn table(at: u32) -> vec2<u32> {
    return vec2<u32>(constants[a.tables_at + 2u * at], constants[a.tables_at + 2u * at + 1u]);
}

// e^x in steps of 2^-44, to the nearest or a hundredth of a step beside it. x as bits, and not over 0.
fn weight_of(x: u32) -> vec2<u32> {
    let exponent = (x >> 23u) & 255u;
    // From -32 on it is below a quarter of a step.
    if exponent >= 132u {
        return vec2<u32>(0u, 0u);
    }
    // -x in steps of 2^-48.
    let mantissa = (x & 0x7fffffu) | 0x800000u;
    var high_word = 0u;
    var low_word = 0u;
    if exponent >= 102u {
        let shift = exponent - 102u;
        low_word = mantissa << shift;
        high_word = select(0u, mantissa >> ((32u - shift) & 31u), shift > 0u);
    } else if exponent > 78u {
        low_word = mantissa >> (102u - exponent);
    }
    let whole = product_high(table(high_word >> 16u), table(32u + ((high_word >> 8u) & 255u)));
    // Of what is left, r below 2^-16: 1 - r + r^2 / 2.
    let linear = vec2<u32>(~(low_word >> 16u), ~(low_word << 16u));
    let rest = plus(linear, vec2<u32>(0u, product(low_word, low_word).x >> 1u));
    let weight = product_high(whole, product_high(table(288u + (high_word & 255u)), rest));
    let steps = vec2<u32>(weight.x >> 20u, (weight.x << 12u) | (weight.y >> 20u));
    return plus(steps, vec2<u32>(0u, (weight.y >> 19u) & 1u));
}

// The weight of a token beside that of the highest logit.
fn weight_beside(logit: u32, top: u32, temperature: u32) -> vec2<u32> {
    if logit == OUT {
        return vec2<u32>(0u, 0u);
    }
    let below = bitcast<u32>(bitcast<f32>(logit) - bitcast<f32>(top));
    return weight_of(quotient(below, temperature));
}

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw: a fraction of 2^64, as crates/engine-sdk/src/sampler/philox.rs has it.
fn uniform_of(seed_low: u32, seed_high: u32, position: u32) -> vec2<u32> {
    var counter = vec4<u32>(position, 0u, 0u, 0u);
    var key = vec2<u32>(seed_low, seed_high);
    for (var round = 0u; round < 10u; round++) {
        let one = product(0xd2511f53u, counter.x);
        let two = product(0xcd9e8d57u, counter.z);
        counter = vec4<u32>(two.x ^ counter.y ^ key.x, two.y, one.x ^ counter.w ^ key.y, one.y);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return vec2<u32>(counter.x, counter.y & 0xfffff800u);
}

const THREADS = 256u;
var<workgroup> keys: array<u32, THREADS>;
var<workgroup> tokens: array<u32, THREADS>;

// Leaves the largest key, of equals that of the lower token, in the first place.
fn find_best(tid: u32, key: u32, token: u32) {
    workgroupBarrier();
    keys[tid] = key;
    tokens[tid] = token;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if tid < half {
            let other = keys[tid + half];
            let other_token = tokens[tid + half];
            if other > keys[tid] || (other == keys[tid] && other_token < tokens[tid]) {
                keys[tid] = other;
                tokens[tid] = other_token;
            }
        }
        workgroupBarrier();
    }
}
