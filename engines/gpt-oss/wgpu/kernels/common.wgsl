// What every kernel begins with. Numbers of the model's shape that a kernel needs while it is compiled (HEAD_DIM, ...) are
// put before this as constants.
//
// There is no bf16 in WGSL: a word of 32 bits holds two of them and each is widened by a shift. Nothing depends on
// numbers below 2^-126, which some drivers take as 0.

const NEVER = -3.4028234e38;

fn low(word: u32) -> f32 { return bitcast<f32>(word << 16u); }

fn high(word: u32) -> f32 { return bitcast<f32>(word & 0xffff0000u); }

// The bf16 number at an even or odd place of a word.
fn half_of(word: u32, place: u32) -> f32 { return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (place & 1u) == 1u)); }

// Twice the value of an e2m1 code: 0, 1, 2, 3, 4, 6, 8, 12, and the same negative.
fn twice_e2m1(code: u32) -> f32 {
    let twice = f32((0xc8643210u >> ((code & 7u) << 2u)) & 15u);
    return select(twice, -twice, (code & 8u) != 0u);
}

// The first four elements of a word of a block, and the other four.
fn first_four(word: u32) -> vec4<f32> {
    return vec4<f32>(twice_e2m1(word), twice_e2m1(word >> 4u), twice_e2m1(word >> 8u), twice_e2m1(word >> 12u));
}

fn last_four(word: u32) -> vec4<f32> { return first_four(word >> 16u); }

// Half of a block's scale, for codes that are taken twice: 2^(byte - 128). A byte of 0 counts as no weight at all: 2^-127
// is below what every driver keeps.
fn half_scale(word: u32, place: u32) -> f32 {
    let byte = (word >> ((place & 3u) * 8u)) & 255u;
    return bitcast<f32>(byte << 23u) * 0.5;
}

// The exponent ends at 80: what is beyond is as good as 0, and nothing becomes infinite.
fn swiglu(gate: f32, up: f32, limit: f32, alpha: f32) -> f32 {
    let g = min(gate, limit);
    return g / (1.0 + exp(min(-alpha * g, 80.0))) * (clamp(up, -limit, limit) + 1.0);
}
