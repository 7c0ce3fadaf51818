//! The tiles of a thread, and what instructions do to them, by the operation sections of Intel's manual.

use super::decode::{Instruction, Rows};

const TILES: usize = 8;
const ROWS_MAX: usize = 16;
const ROW_BYTES_MAX: usize = 64;

type Row = [u8; ROW_BYTES_MAX];

#[derive(Clone)]
pub(super) struct Machine {
    pub(super) is_configured: bool,
    /// Bytes of a row and rows of each tile.
    pub(super) shapes: [(usize, usize); TILES],
    pub(super) tiles: [[Row; ROWS_MAX]; TILES],
}

impl Machine {
    pub(super) const RELEASED: Machine = Machine {
        is_configured: false,
        shapes: [(0, 0); TILES],
        tiles: [[[0; ROW_BYTES_MAX]; ROWS_MAX]; TILES],
    };

    /// Where a processor would raise an exception, this panics; in a signal handler that ends the process.
    ///
    /// # Safety
    /// Addresses of the instruction are those of memory that may be read, and written by a store.
    pub(super) unsafe fn run(&mut self, instruction: Instruction) {
        match instruction {
            // SAFETY: the caller's promise.
            Instruction::LoadConfig(address) => self.load_config(unsafe { &*(address as *const Row) }),
            Instruction::Release => *self = Machine::RELEASED,
            Instruction::Zero(tile) => {
                let (_, rows) = self.shape(tile);
                assert!(rows > 0);
                self.tiles[tile] = [[0; ROW_BYTES_MAX]; ROWS_MAX];
            }
            Instruction::Load(tile, at) => {
                let (bytes, rows) = self.shape(tile);
                let mut loaded = [[0; ROW_BYTES_MAX]; ROWS_MAX];
                for (row, loaded) in loaded.iter_mut().take(rows).enumerate() {
                    // SAFETY: the caller's promise.
                    let from = unsafe { std::slice::from_raw_parts(address(at, row), bytes) };
                    loaded[..bytes].copy_from_slice(from);
                }
                // Behind its rows and their bytes a tile is zero.
                self.tiles[tile] = loaded;
            }
            Instruction::Store(tile, at) => {
                let (bytes, rows) = self.shape(tile);
                for (row, stored) in self.tiles[tile].iter().take(rows).enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe { address(at, row).copy_from_nonoverlapping(stored.as_ptr(), bytes) };
                }
            }
            Instruction::DotBf16(sums, first, second) => self.dot_bf16(sums, first, second),
        }
    }

    fn shape(&self, tile: usize) -> (usize, usize) {
        assert!(self.is_configured, "tile {tile} without a configuration");
        self.shapes[tile]
    }

    fn load_config(&mut self, config: &Row) {
        let bytes =
            |tile: usize| usize::from(u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]));
        let rows = |tile: usize| usize::from(config[48 + tile]);
        *self = Machine::RELEASED;
        if config[0] == 0 {
            return;
        }
        assert_eq!(config[0], 1, "a palette there is");
        assert!(config[1..16].iter().chain(&config[32..48]).chain(&config[56..]).all(|byte| *byte == 0));
        for (tile, shape) in self.shapes.iter_mut().enumerate() {
            *shape = (bytes(tile), rows(tile));
            assert!(shape.0 <= ROW_BYTES_MAX && shape.1 <= ROWS_MAX, "tile {tile} of {shape:?}");
            assert_eq!(shape.0 == 0, shape.1 == 0, "tile {tile} of {shape:?}");
        }
        self.is_configured = true;
    }

    /// Of each row and column of sums: products of pairs of the first operand's row and the second's column are added up,
    /// even and odd ones apart and each rounded once, then both together, then to what was there. What is too small to be
    /// normal counts as zero everywhere.
    fn dot_bf16(&mut self, sums: usize, first: usize, second: usize) {
        assert!(sums != first && sums != second && first != second, "one tile twice");
        let ((first_bytes, first_rows), (second_bytes, second_rows)) =
            (self.shape(first), self.shape(second));
        let (bytes, rows) = self.shape(sums);
        assert_eq!(
            (rows, bytes, first_bytes / 4),
            (first_rows, second_bytes, second_rows),
            "tiles do not fit"
        );
        assert!(bytes.is_multiple_of(4) && first_bytes.is_multiple_of(4));
        for m in 0..rows {
            let mut temporary = [0.0; ROW_BYTES_MAX / 2];
            for k in 0..first_bytes / 4 {
                let pair = &self.tiles[first][m][4 * k..][..4];
                let pairs = &self.tiles[second][k][..bytes];
                // SAFETY: `install` has asked for it.
                unsafe { add_products(pair, pairs, &mut temporary) };
            }
            for (n, sum) in self.tiles[sums][m][..bytes].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let both = flushed(temporary[2 * n] + temporary[2 * n + 1]);
                *sum = flushed(flushed(f32::from_le_bytes(*sum)) + both).to_le_bytes();
            }
            self.tiles[sums][m][bytes..].fill(0);
        }
        self.tiles[sums][rows..].fill([0; ROW_BYTES_MAX]);
    }
}

/// Adds the products of a pair with each of `pairs`.
#[target_feature(enable = "fma")]
fn add_products(pair: &[u8], pairs: &[u8], sums: &mut [f32; ROW_BYTES_MAX / 2]) {
    for (at, (sum, number)) in sums.iter_mut().zip(pairs.as_chunks::<2>().0).enumerate() {
        let weight = [pair[at % 2 * 2], pair[at % 2 * 2 + 1]];
        *sum = flushed(bf16(weight).mul_add(bf16(*number), *sum));
    }
}

fn bf16(bytes: [u8; 2]) -> f32 {
    flushed(f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16))
}

/// With zero of the same sign for numbers below the smallest normal one.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

fn address(at: Rows, row: usize) -> *mut u8 {
    at.start.wrapping_add(at.stride.wrapping_mul(row as u64)) as *mut u8
}
