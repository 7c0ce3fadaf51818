//! The product of [`super::bf16`] with AMX: tiles of 16 rows of weights times 16 tokens, in `tdpbf16ps`.
//!
//! Nothing has to be brought into another order: 16 rows of 16 words of weights, as they lie or as they were decoded, are
//! the first operand, and 16 words of a group of packed tokens are the second. Sums stay in tiles for all columns.
//!
//! Numbers of eight bits are not multiplied in tiles (`tdpbssd`). A scale for every 32 columns leaves half of such a tile
//! empty, and ends it after one instruction of 16 cycles with a store, loads, and three operations on each of 16 vectors,
//! some 30 cycles more than the unit is busy: at most a third of its peak, where sums of bf16 stay in their tile for
//! thousands of columns and may come near theirs, which is half as high. So the faster form is also the more exact one.
//!
//! **Never seen on Intel hardware.** Tests run the same machine code: where the processor lacks these instructions, each
//! is trapped and carried out by Intel's published operation ([`emulated`]). How fast it is nobody knows.

// Signals of other systems were never tried.
#[cfg(all(test, target_os = "linux"))]
mod emulated;
mod tiles;

use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

use super::bf16::{GROUP, Panel};
use tiles::{HEIGHT, Operands, Tiles, WORDS};

/// Bytes of a word.
const WORD: usize = 4;

/// Whether tiles are used, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amx {
    /// The processor has them, the system gives them to this process, and a small product came out right.
    Works,
    /// The processor has none, or none for bf16.
    Absent,
    /// The system does not give them to this process.
    NotPermitted,
    /// A small product came out wrong: whatever is the matter, other kernels are right.
    Wrong,
}

/// Asks the processor and the system, and tries a small product; once in a process.
pub(super) fn state() -> Amx {
    static STATE: OnceLock<Amx> = OnceLock::new();
    *STATE.get_or_init(|| {
        let there = has_tiles();
        #[cfg(all(test, target_os = "linux"))]
        let there = there || emulated::install();
        if !there {
            Amx::Absent
        } else if has_tiles() && !is_permitted() {
            Amx::NotPermitted
        } else if is_right() {
            Amx::Works
        } else {
            Amx::Wrong
        }
    })
}

/// Whether the processor has tiles of bf16, and the system saves them when it switches threads.
fn has_tiles() -> bool {
    /// Of leaf 7's EDX.
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    /// Of XCR0: the tiles' configuration and their data.
    const TILE_STATE: u64 = 0b11 << 17;
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: the processor has `xsave`, which this function asks of its callers; register 0 is always there.
        unsafe { _xgetbv(0) }
    }
    // `xsave` is told only where the system uses it.
    let leaf = if is_x86_feature_detected!("avx2") { __cpuid_count(7, 0).edx } else { 0 };
    leaf & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
        && is_x86_feature_detected!("xsave")
        // SAFETY: it was asked just now.
        && unsafe { enabled() } & TILE_STATE == TILE_STATE
}

/// The state of tiles is large, so Linux gives it to processes that ask; to all their threads.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: takes two numbers and touches no memory of ours. A kernel that does not know it says so.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// How another system gives tiles to a process was never tried.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Multiplies small whole numbers, whose products and sums are exact in any order; every kind of rest is in it.
fn is_right() -> bool {
    const ROWS: usize = 5 * HEIGHT + 3;
    const COLUMNS: usize = 4 * WORDS;
    const GROUPS: usize = 3;
    let weight = |row: usize, column: usize| ((row * 5 + column * 3) % 13) as f32 - 6.0;
    let token = |column: usize, token: usize| ((column * 7 + token * 11) % 17) as f32 - 8.0;
    let half = |x: f32| x.to_bits() >> 16;
    let mut bytes = Vec::with_capacity(ROWS * COLUMNS / 2 * WORD);
    for (row, pair) in (0..ROWS).flat_map(|row| (0..COLUMNS / 2).map(move |pair| (row, 2 * pair))) {
        let word = half(weight(row, pair)) | half(weight(row, pair + 1)) << 16;
        bytes.extend(word.to_le_bytes());
    }
    let mut packed = Vec::with_capacity(GROUPS * COLUMNS / 2 * GROUP);
    for (group, pair) in (0..GROUPS).flat_map(|group| (0..COLUMNS / 2).map(move |pair| (group, 2 * pair))) {
        let tokens = group * GROUP..(group + 1) * GROUP;
        packed.extend(tokens.map(|t| half(token(pair, t)) | half(token(pair + 1, t)) << 16));
    }
    let mut out = vec![f32::NAN; ROWS * GROUPS * GROUP];
    // SAFETY: `state` has found that there are tiles, and the system lets this process use them.
    unsafe { multiply(Panel { bytes: &bytes, rows: ROWS, words: COLUMNS / 2 }, &packed, &mut out) };
    out.iter().enumerate().all(|(at, got)| {
        let (row, t) = (at / (GROUPS * GROUP), at % (GROUPS * GROUP));
        *got == (0..COLUMNS).map(|column| weight(row, column) * token(column, t)).sum::<f32>()
    })
}

/// `out`, (rows, 16 * groups), = weights times `packed`, (groups, words, 16).
pub(super) fn product(panel: Panel<'_>, packed: &[u32], out: &mut [f32]) {
    assert_eq!(state(), Amx::Works, "this processor has no tiles that can be used");
    // SAFETY: as asserted.
    unsafe { multiply(panel, packed, out) }
}

/// # Safety
/// The processor has tiles, and the system lets this process use them.
unsafe fn multiply(panel: Panel<'_>, packed: &[u32], out: &mut [f32]) {
    let Panel { bytes, rows, words } = panel;
    assert!(words > 0 && words.is_multiple_of(WORDS), "rows of whole tiles");
    let groups = packed.len() / (words * GROUP);
    assert_eq!(bytes.len(), rows * words * WORD);
    assert_eq!(packed.len(), groups * words * GROUP);
    assert_eq!(out.len(), rows * groups * GROUP);
    let out = out.as_mut_ptr();
    let at = |row: usize, group: usize| Operands {
        // Inside the arrays, as asserted, for a row and a group that are there.
        weights: bytes[row * words * WORD..].as_ptr(),
        packed: packed[group * words * GROUP..].as_ptr(),
        out: out.wrapping_add(row * groups * GROUP + group * GROUP),
        words,
        stride: groups * GROUP,
    };
    let whole = rows / HEIGHT * HEIGHT;
    let pairs = groups / 2 * 2;
    // SAFETY: here and below: the caller's promise, and from each row and group on there are as many of them as the
    // function takes, by the lengths asserted above.
    unsafe {
        if whole > 0 {
            let tiles = Tiles::configure(HEIGHT);
            for group in (0..pairs).step_by(2) {
                let mut row = 0;
                while row + 2 * HEIGHT <= whole {
                    tiles.two_by_two(at(row, group));
                    row += 2 * HEIGHT;
                }
                if row < whole {
                    tiles.one_by_two(at(row, group));
                }
            }
            if pairs < groups {
                let mut row = 0;
                while row + 4 * HEIGHT <= whole {
                    tiles.four_by_one(at(row, pairs));
                    row += 4 * HEIGHT;
                }
                while row < whole {
                    tiles.one_by_one(at(row, pairs));
                    row += HEIGHT;
                }
            }
        }
        if whole < rows {
            let tiles = Tiles::configure(rows - whole);
            for group in (0..pairs).step_by(2) {
                tiles.one_by_two(at(whole, group));
            }
            if pairs < groups {
                tiles.one_by_one(at(whole, pairs));
            }
        }
    }
}

#[cfg(test)]
mod tests;
