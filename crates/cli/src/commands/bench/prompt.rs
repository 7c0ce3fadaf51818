//! Prompts of a given length that no cache has seen: words by chance.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Common short words: most tokenizers have one token for each, the space before it included.
const WORDS: [&str; 32] = [
    "time", "year", "way", "day", "man", "thing", "life", "hand", "part", "place", "case", "week", "work",
    "point", "home", "water", "room", "area", "money", "story", "fact", "month", "lot", "right", "study",
    "book", "eye", "job", "word", "side", "kind", "head",
];

#[derive(Debug, Clone, Copy)]
pub struct Prompts {
    seed: u64,
}

impl Prompts {
    pub fn new(seed: u64) -> Prompts {
        Prompts { seed }
    }

    /// Request `number`'s prompt. Two numbers differ from their first words on, so that a server's prefix cache finds
    /// nothing.
    pub fn text(&self, words: u32, number: u64) -> String {
        let mut random = StdRng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let words: Vec<&str> = (0..words).map(|_| WORDS[random.random_range(0..WORDS.len())]).collect();
        words.join(" ")
    }
}
