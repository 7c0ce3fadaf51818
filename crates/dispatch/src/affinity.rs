//! Requests that begin alike go to the same replica, which then has the beginning in its cache.
//!
//! Rendezvous hashing: each pair of beginning and node has a fixed rank, and the best node with room is taken. Every router
//! comes to the same choice without talking to another, and a node that comes or goes moves only its own share.

/// What counts as the beginning of a prompt. Longer than the preamble that a chat template writes for everybody: a shorter
/// one would send all requests to one node. Prompts below it are read anew in no time and go where there is least to do.
pub const PREFIX_BYTES: usize = 1024;

/// Of a prompt as text. 0: too short for the choice to matter. `salt`: caches are not shared between different ones.
pub fn of_text(salt: u64, text: &str) -> u64 {
    match text.as_bytes().get(..PREFIX_BYTES) {
        Some(beginning) => hash(salt, beginning.iter().copied()).max(1),
        None => 0,
    }
}

/// Of a prompt as token ids, each of which stands for about four bytes of text.
pub fn of_tokens(salt: u64, ids: &[u32]) -> u64 {
    match ids.get(..PREFIX_BYTES / 4) {
        Some(beginning) => hash(salt, beginning.iter().flat_map(|id| id.to_le_bytes())).max(1),
        None => 0,
    }
}

/// The higher, the better the node for the beginning. Nodes get beginnings in proportion to `weight`.
pub(crate) fn rank(affinity: u64, node: &str, weight: u32) -> f64 {
    let hash = hash(affinity, node.bytes());
    // In (0, 1): 52 bits, so that neither end is reached.
    #[expect(clippy::cast_precision_loss, reason = "52 bits are exact in a double")]
    let share = ((hash >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
    -f64::from(weight.max(1)) / share.ln()
}

/// FNV-1a, stirred: nodes named `a` and `b` differ in one bit, ranks have to differ in all.
fn hash(seed: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = bytes.fold(BASIS ^ stir(seed), |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    hash = stir(hash);
    hash
}

/// The finalizer of SplitMix64: every bit of the input changes half of the output.
fn stir(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests;
