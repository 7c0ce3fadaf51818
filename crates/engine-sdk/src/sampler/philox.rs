//! The random numbers: Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw ("Parallel random
//! numbers: as easy as 1, 2, 3", 2011), which is also what GPU libraries ship. A number is a pure function of key and
//! counter, so it does not matter which device draws it, nor what else runs.

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key from round to round: the golden ratio and the square root of three, minus one.
const KEY_STEP: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;
/// Third word of the counter: what the number is for, so that further uses do not repeat these numbers.
const FOR_TOKEN: u32 = 0;

/// The number in `0..1` with which the token at `position` of a sequence with this seed is drawn.
///
/// Key: the seed, low word first. Counter: position, 0, 0, 0. Of the four words that come out the first two make a
/// number: `(word0 << 21 | word1 >> 11) / 2^53`. Seed 0 at position 0 gives 0.3990464708.
pub fn uniform(seed: u64, position: u32) -> f64 {
    let [first, second, ..] = philox4x32([position, 0, FOR_TOKEN, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(first) << 21 | u64::from(second >> 11);
    bits as f64 / (1u64 << 53) as f64
}

/// One block of Philox4x32-10.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let product = |m: u32, c: u32| u64::from(m) * u64::from(c);
        let (a, b) = (product(MULTIPLIER[0], counter[0]), product(MULTIPLIER[1], counter[2]));
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEP[0]), key[1].wrapping_add(KEY_STEP[1])];
    }
    counter
}
