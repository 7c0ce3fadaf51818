//! The instructions of AMX. Intrinsics for them are unstable, so they are written out.
//!
//! What a thread keeps between two functions here is the tiles' configuration and nothing in them: each function clears
//! its sums, adds up all columns, and stores them. The compiler uses no tile registers by itself.

use std::arch::asm;
use std::marker::PhantomData;

/// Rows of a tile at most.
pub(super) const HEIGHT: usize = 16;
/// Words of a row of a tile: pairs of columns, or f32 sums.
pub(super) const WORDS: usize = 16;
/// Bytes of a row of a tile.
const ROW: usize = 4 * WORDS;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

/// Eight configured tiles of the calling thread: 0 to 3 are sums, 4 and 5 weights, 6 and 7 tokens. Released when dropped,
/// so that a thread without work has no state of tiles that the system would have to save.
pub(super) struct Tiles {
    /// Tiles are the thread's own.
    of_thread: PhantomData<*const ()>,
}

/// Where a product reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// Row after row.
    pub(super) weights: *const u8,
    /// Group after group, (words, 16) each.
    pub(super) packed: *const u32,
    pub(super) out: *mut f32,
    /// Words of a row of weights, whole tiles of them.
    pub(super) words: usize,
    /// Floats from one row of `out` to the next.
    pub(super) stride: usize,
}

impl Operands {
    /// The weights of the `n`-th tile of rows.
    fn weights(&self, n: usize) -> *const u8 {
        self.weights.wrapping_add(n * HEIGHT * 4 * self.words)
    }

    /// The products of the `n`-th tile of rows.
    fn out(&self, n: usize) -> *mut f32 {
        self.out.wrapping_add(n * HEIGHT * self.stride)
    }
}

/// One of the products: clears sums, adds up columns, stores sums. `$moved` are addresses that go on from tile to tile by
/// `$bytes`, `$name` are fixed; `row`, `line` and `stride` are bytes between rows of weights, tokens and products.
macro_rules! product {
    (
        $operands:ident, zero: [$($sum:literal)*], step: [$($step:literal)*], store: [$($store:literal)*],
        moved: [$($moved:ident = $value:expr, + $bytes:literal;)*],
        fixed: [$($name:ident = $other:expr;)*]
    ) => {
        asm!(
            $(concat!("tilezero ", $sum),)*
            "2:",
            $($step,)*
            $(concat!("add {", stringify!($moved), "}, ", $bytes),)*
            "dec {count}",
            "jnz 2b",
            $($store,)*
            count = inout(reg) $operands.words / WORDS => _,
            row = in(reg) 4 * $operands.words,
            line = in(reg) ROW,
            stride = in(reg) 4 * $operands.stride,
            $($moved = inout(reg) $value => _,)*
            $($name = in(reg) $other,)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

impl Tiles {
    /// Tiles of so many rows of weights and sums, and of 16 words of tokens.
    ///
    /// # Safety
    /// The processor has tiles, the system lets this process use them, and nothing else in this thread does while the result
    /// lives.
    ///
    /// # Panics
    /// When `rows` is not from 1 to [`HEIGHT`].
    pub(super) unsafe fn configure(rows: usize) -> Tiles {
        assert!((1..=HEIGHT).contains(&rows), "{rows} rows of a tile");
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(ROW as u16);
        config.rows[..6].fill(rows as u8);
        config.rows[6..8].fill(WORDS as u8);
        // SAFETY: the caller's promise; reads the 64 bytes of the configuration.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                config = in(reg) &raw const config,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(readonly, nostack, preserves_flags),
            );
        }
        Tiles { of_thread: PhantomData }
    }

    /// Two tiles of rows times two groups of tokens.
    ///
    /// # Safety
    /// At the operands are so many rows of weights and tokens, and room for their products.
    pub(super) unsafe fn two_by_two(&self, at: Operands) {
        // SAFETY: the caller's promise, for memory; tiles are configured as long as `self` lives.
        unsafe {
            product!(
                at, zero: ["tmm0" "tmm1" "tmm2" "tmm3"],
                step: [
                    "tileloadd tmm6, [{first} + {line}]"
                    "tileloadd tmm4, [{upper} + {row}]"
                    "tdpbf16ps tmm0, tmm4, tmm6"
                    "tileloadd tmm7, [{second} + {line}]"
                    "tdpbf16ps tmm1, tmm4, tmm7"
                    "tileloadd tmm5, [{lower} + {row}]"
                    "tdpbf16ps tmm2, tmm5, tmm6"
                    "tdpbf16ps tmm3, tmm5, tmm7"
                ],
                store: [
                    "tilestored [{out} + {stride}], tmm0"
                    "tilestored [{out} + {stride} + 64], tmm1"
                    "tilestored [{out_lower} + {stride}], tmm2"
                    "tilestored [{out_lower} + {stride} + 64], tmm3"
                ],
                moved: [
                    first = at.packed, + "1024";
                    second = at.packed.wrapping_add(at.words * WORDS), + "1024";
                    upper = at.weights, + "64";
                    lower = at.weights(1), + "64";
                ],
                fixed: [
                    out = at.out;
                    out_lower = at.out(1);
                ]
            );
        }
    }

    /// A tile of rows times two groups of tokens.
    ///
    /// # Safety
    /// As for [`Tiles::two_by_two`].
    pub(super) unsafe fn one_by_two(&self, at: Operands) {
        // SAFETY: as there.
        unsafe {
            product!(
                at, zero: ["tmm0" "tmm1"],
                step: [
                    "tileloadd tmm4, [{upper} + {row}]"
                    "tileloadd tmm6, [{first} + {line}]"
                    "tdpbf16ps tmm0, tmm4, tmm6"
                    "tileloadd tmm7, [{second} + {line}]"
                    "tdpbf16ps tmm1, tmm4, tmm7"
                ],
                store: [
                    "tilestored [{out} + {stride}], tmm0"
                    "tilestored [{out} + {stride} + 64], tmm1"
                ],
                moved: [
                    first = at.packed, + "1024";
                    second = at.packed.wrapping_add(at.words * WORDS), + "1024";
                    upper = at.weights, + "64";
                ],
                fixed: [out = at.out;]
            );
        }
    }

    /// Four tiles of rows times one group of tokens: with fewer sums each would wait for the one before.
    ///
    /// # Safety
    /// As for [`Tiles::two_by_two`].
    pub(super) unsafe fn four_by_one(&self, at: Operands) {
        // SAFETY: as there.
        unsafe {
            product!(
                at, zero: ["tmm0" "tmm1" "tmm2" "tmm3"],
                step: [
                    "tileloadd tmm6, [{tokens} + {line}]"
                    "tileloadd tmm4, [{first} + {row}]"
                    "tdpbf16ps tmm0, tmm4, tmm6"
                    "tileloadd tmm5, [{second} + {row}]"
                    "tdpbf16ps tmm1, tmm5, tmm6"
                    "tileloadd tmm4, [{third} + {row}]"
                    "tdpbf16ps tmm2, tmm4, tmm6"
                    "tileloadd tmm5, [{fourth} + {row}]"
                    "tdpbf16ps tmm3, tmm5, tmm6"
                ],
                store: [
                    "tilestored [{out} + {stride}], tmm0"
                    "lea {first}, [{out} + {tile}]"
                    "tilestored [{first} + {stride}], tmm1"
                    "add {first}, {tile}"
                    "tilestored [{first} + {stride}], tmm2"
                    "add {first}, {tile}"
                    "tilestored [{first} + {stride}], tmm3"
                ],
                moved: [
                    tokens = at.packed, + "1024";
                    first = at.weights, + "64";
                    second = at.weights(1), + "64";
                    third = at.weights(2), + "64";
                    fourth = at.weights(3), + "64";
                ],
                fixed: [
                    out = at.out;
                    // Bytes from one tile of products to the next.
                    tile = 4 * HEIGHT * at.stride;
                ]
            );
        }
    }

    /// A tile of rows times one group of tokens.
    ///
    /// # Safety
    /// As for [`Tiles::two_by_two`].
    pub(super) unsafe fn one_by_one(&self, at: Operands) {
        // SAFETY: as there.
        unsafe {
            product!(
                at, zero: ["tmm0"],
                step: [
                    "tileloadd tmm4, [{upper} + {row}]"
                    "tileloadd tmm6, [{tokens} + {line}]"
                    "tdpbf16ps tmm0, tmm4, tmm6"
                ],
                store: ["tilestored [{out} + {stride}], tmm0"],
                moved: [
                    tokens = at.packed, + "1024";
                    upper = at.weights, + "64";
                ],
                fixed: [out = at.out;]
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles were configured in this thread, which `Tiles` cannot leave.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }
}
