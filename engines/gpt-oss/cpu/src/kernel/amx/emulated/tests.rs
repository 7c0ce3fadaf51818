//! The emulation against encodings as an assembler writes them, and against numbers worked out by hand.

use super::decode::{Instruction, Rows, decode};
use super::machine::Machine;

/// General registers: number n holds n * 0x1000.
fn registers() -> [u64; 16] {
    std::array::from_fn(|n| n as u64 * 0x1000)
}

fn decoded(code: &[u8]) -> Option<(Instruction, usize)> {
    decode(|at| code.get(at).copied().unwrap_or(0xcc), &registers())
}

/// As the GNU assembler writes them.
#[test]
fn encodings_are_told_apart() {
    let rows = |start, stride| Rows { start, stride };
    let cases: [(&[u8], Instruction); 10] = [
        // ldtilecfg [rax]; [r12]; [rsi + 64]
        (&[0xc4, 0xe2, 0x78, 0x49, 0x00], Instruction::LoadConfig(0)),
        (&[0xc4, 0xc2, 0x78, 0x49, 0x04, 0x24], Instruction::LoadConfig(0xc000)),
        (&[0xc4, 0xe2, 0x78, 0x49, 0x46, 0x40], Instruction::LoadConfig(0x6040)),
        // tilerelease
        (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Instruction::Release),
        // tilezero tmm3
        (&[0xc4, 0xe2, 0x7b, 0x49, 0xd8], Instruction::Zero(3)),
        // tileloadd tmm6, [rsi + rax]; tmm4, [r9 + r10]
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x34, 0x06], Instruction::Load(6, rows(0x6000, 0))),
        (&[0xc4, 0x82, 0x7b, 0x4b, 0x24, 0x11], Instruction::Load(4, rows(0x9000, 0xa000))),
        // tilestored [rdi + rcx + 64], tmm1; [rdi + 2*rcx - 4096], tmm1
        (&[0xc4, 0xe2, 0x7a, 0x4b, 0x4c, 0x0f, 0x40], Instruction::Store(1, rows(0x7040, 0x1000))),
        (
            &[0xc4, 0xe2, 0x7a, 0x4b, 0x8c, 0x4f, 0x00, 0xf0, 0xff, 0xff],
            Instruction::Store(1, rows(0x6000, 0x2000)),
        ),
        // tdpbf16ps tmm2, tmm5, tmm6
        (&[0xc4, 0xe2, 0x4a, 0x5c, 0xd5], Instruction::DotBf16(2, 5, 6)),
    ];
    for (code, expected) in cases {
        assert_eq!(decoded(code), Some((expected, code.len())), "{code:02x?}");
    }
}

#[test]
fn what_is_none_of_them_is_refused() {
    let cases: [&[u8]; 8] = [
        // ud2
        &[0x0f, 0x0b],
        // tdpbssd tmm2, tmm5, tmm6
        &[0xc4, 0xe2, 0x4b, 0x5e, 0xd5],
        // vmovntdqa xmm0, [rax], which only shares the map
        &[0xc4, 0xe2, 0x79, 0x2a, 0x00],
        // W and L set
        &[0xc4, 0xe2, 0xf8, 0x49, 0xc0],
        &[0xc4, 0xe2, 0x7c, 0x49, 0xc0],
        // a tile beyond the eighth
        &[0xc4, 0x62, 0x7b, 0x49, 0xd8],
        // rows without an index: [rsi] is not what a tile is loaded from
        &[0xc4, 0xe2, 0x7b, 0x4b, 0x36],
        // relative to the instruction
        &[0xc4, 0xe2, 0x78, 0x49, 0x05, 0, 0, 0, 0],
    ];
    for code in cases {
        assert_eq!(decoded(code), None, "{code:02x?}");
    }
}

/// Tile 0 of sums, 1 and 2 of operands.
fn configured(rows: u8, columns: u8, pairs: u8) -> Machine {
    let mut config = [0u8; 64];
    config[0] = 1;
    for (tile, (bytes, rows)) in
        [(4 * columns, rows), (4 * pairs, rows), (4 * columns, pairs)].iter().enumerate()
    {
        config[16 + 2 * tile] = *bytes;
        config[48 + tile] = *rows;
    }
    let mut machine = Machine::RELEASED;
    // SAFETY: the address is that of the configuration.
    unsafe { machine.run(Instruction::LoadConfig(config.as_ptr() as u64)) };
    machine
}

fn load<const N: usize>(machine: &mut Machine, tile: usize, numbers: &[[u32; N]]) {
    let rows = Rows { start: numbers.as_ptr() as u64, stride: 4 * N as u64 };
    // SAFETY: the rows are those of the array, at least as long as a row of the tile.
    unsafe { machine.run(Instruction::Load(tile, rows)) };
}

fn stored<const N: usize, const M: usize>(machine: &mut Machine, tile: usize) -> [[u32; N]; M] {
    let mut out = [[0x5555_5555; N]; M];
    let rows = Rows { start: out.as_mut_ptr() as u64, stride: 4 * N as u64 };
    // SAFETY: as above.
    unsafe { machine.run(Instruction::Store(tile, rows)) };
    out
}

/// Two bf16 numbers, the even column's first.
fn pair(even: f32, odd: f32) -> u32 {
    even.to_bits() >> 16 | odd.to_bits() & 0xffff_0000
}

/// Two rows of two pairs times two columns: by hand,
/// row 0: 10 + (1*5 + 2*6 + 3*-1 + 4*0.5) = 26 and 20 + (1*7 + 2*8 + 3*2 + 4*-2) = 41;
/// row 1: 30 + (-1*5 + 0.5*6 + 2*-1 + 8*0.5) = 30 and 40 + (-1*7 + 0.5*8 + 2*2 + 8*-2) = 25.
#[test]
fn products_are_those_worked_out_by_hand() {
    let mut machine = configured(2, 2, 2);
    load(&mut machine, 0, &[[10.0f32, 20.0], [30.0, 40.0]].map(|row| row.map(f32::to_bits)));
    load(&mut machine, 1, &[[pair(1.0, 2.0), pair(3.0, 4.0)], [pair(-1.0, 0.5), pair(2.0, 8.0)]]);
    load(&mut machine, 2, &[[pair(5.0, 6.0), pair(7.0, 8.0)], [pair(-1.0, 0.5), pair(2.0, -2.0)]]);
    // SAFETY: no memory.
    unsafe { machine.run(Instruction::DotBf16(0, 1, 2)) };
    assert_eq!(
        stored::<2, 2>(&mut machine, 0),
        [[26.0f32, 41.0], [30.0, 25.0]].map(|row| row.map(f32::to_bits))
    );
}

/// Even and odd columns are added up apart: 2^24 + 1 - 2^24 - 1 in one sum would lose the ones, here they meet in the odd
/// sum. And numbers too small to be normal are zeros, as they come in and as they would go out.
#[test]
fn sums_have_the_order_and_the_zeros_of_the_manual() {
    let two_24 = 16_777_216.0;
    let mut machine = configured(1, 1, 2);
    load(&mut machine, 0, &[[0.0f32.to_bits()]]);
    load(&mut machine, 1, &[[pair(two_24, 1.0), pair(-two_24, 2.0)]]);
    load(&mut machine, 2, &[[pair(1.0, 1.0)], [pair(1.0, 1.0)]]);
    // SAFETY: no memory.
    unsafe { machine.run(Instruction::DotBf16(0, 1, 2)) };
    assert_eq!(stored::<1, 1>(&mut machine, 0), [[3.0f32.to_bits()]]);

    for (sum, weight, number, expected) in [
        // A subnormal operand, a product of 2^-127, a sum that is subnormal, and the smallest that is not.
        (0u32, 0x0001u32, 0x3f80u32, 0u32),
        (0, 0x2000, 0x1f80, 0),
        (0x8000_0001, 0, 0x3f80, 0),
        (0, 0x2000, 0x2000, 0x0080_0000),
    ] {
        let mut machine = configured(1, 1, 1);
        load(&mut machine, 0, &[[sum]]);
        load(&mut machine, 1, &[[weight]]);
        load(&mut machine, 2, &[[number]]);
        // SAFETY: no memory.
        unsafe { machine.run(Instruction::DotBf16(0, 1, 2)) };
        assert_eq!(stored::<1, 1>(&mut machine, 0), [[expected]], "{weight:#x} * {number:#x} + {sum:#x}");
    }
}

/// What lies behind a tile's rows and columns is neither read nor written, and is zero in the tile.
#[test]
fn tiles_end_where_their_configuration_says() {
    let mut machine = configured(2, 3, 1);
    load(&mut machine, 0, &[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]);
    assert_eq!(
        stored::<4, 3>(&mut machine, 0),
        [[1, 2, 3, 0x5555_5555], [5, 6, 7, 0x5555_5555], [0x5555_5555; 4]]
    );
    assert_eq!(machine.tiles[0][0][12..], [0; 52]);
    assert_eq!(machine.tiles[0][2..], [[0; 64]; 14]);
    // SAFETY: no memory.
    unsafe { machine.run(Instruction::Zero(0)) };
    assert_eq!(stored::<3, 1>(&mut machine, 0), [[0; 3]]);
    // SAFETY: no memory.
    unsafe { machine.run(Instruction::Release) };
    assert!(!machine.is_configured);
}
