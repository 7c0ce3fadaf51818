//! Which instruction of AMX some bytes are, and where its operand in memory is.

/// An instruction with what it needs to know; tiles by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    /// From 64 bytes at this address.
    LoadConfig(u64),
    Release,
    Zero(usize),
    Load(usize, Rows),
    Store(usize, Rows),
    /// `tdpbf16ps`: sums, weights, tokens.
    DotBf16(usize, usize, usize),
}

/// Rows of a tile in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) start: u64,
    /// Bytes from one to the next.
    pub(super) stride: u64,
}

/// What is before the opcode of an instruction with a VEX prefix of three bytes.
struct Prefix {
    /// Added to the numbers of a register, an index and a base.
    r: usize,
    x: usize,
    b: usize,
    vvvv: usize,
    /// 0: none, 1: 66, 2: F3, 3: F2.
    pp: u8,
}

/// `byte(n)` is byte n of the code, `registers` are the general ones by their numbers. The instruction and its length, or
/// nothing if it is none of those here.
pub(super) fn decode(byte: impl Fn(usize) -> u8, registers: &[u64; 16]) -> Option<(Instruction, usize)> {
    const OPCODE: usize = 3;
    if byte(0) != 0xc4 {
        return None;
    }
    let (second, third) = (byte(1), byte(2));
    // The map of opcodes 0F 38, W and L 0.
    if second & 0x1f != 2 || third & 0x84 != 0 {
        return None;
    }
    // R, X, B and vvvv are stored inverted.
    let extension = |bit: u8| usize::from(!second >> bit & 1) << 3;
    let prefix = Prefix {
        r: extension(7),
        x: extension(6),
        b: extension(5),
        vvvv: usize::from(!third >> 3 & 15),
        pp: third & 3,
    };
    let modrm = byte(OPCODE + 1);
    let (mode, reg, rm) = (modrm >> 6, usize::from(modrm >> 3 & 7) + prefix.r, usize::from(modrm & 7));
    let opcode = byte(OPCODE);
    if mode == 3 {
        let instruction = match (opcode, prefix.pp, reg, rm) {
            (0x49, 0, 0, 0) if prefix.vvvv == 0 => Instruction::Release,
            (0x49, 3, tile @ 0..8, 0) if prefix.vvvv == 0 => Instruction::Zero(tile),
            (0x5c, 2, sums @ 0..8, weights) if prefix.b == 0 && prefix.vvvv < 8 => {
                Instruction::DotBf16(sums, weights, prefix.vvvv)
            }
            _ => return None,
        };
        return Some((instruction, OPCODE + 2));
    }
    let (rows, length) = memory(&byte, OPCODE + 1, &prefix, registers)?;
    let tile_rows = || (rm == 4 && prefix.vvvv == 0).then_some(rows);
    let instruction = match (opcode, prefix.pp, reg) {
        (0x49, 0, 0) if prefix.vvvv == 0 => Instruction::LoadConfig(rows.start),
        (0x4b, 3, tile @ 0..8) => Instruction::Load(tile, tile_rows()?),
        (0x4b, 2, tile @ 0..8) => Instruction::Store(tile, tile_rows()?),
        _ => return None,
    };
    Some((instruction, length))
}

/// The operand whose ModRM byte is at `modrm`: for tiles the index is the stride. Also the instruction's length.
fn memory(
    byte: &impl Fn(usize) -> u8,
    modrm: usize,
    prefix: &Prefix,
    registers: &[u64; 16],
) -> Option<(Rows, usize)> {
    const NO_INDEX: usize = 4;
    let (mode, rm) = (byte(modrm) >> 6, byte(modrm) & 7);
    let (base, stride, place) = if rm == 4 {
        let sib = byte(modrm + 1);
        let index = usize::from(sib >> 3 & 7) + prefix.x;
        let stride = if index == NO_INDEX { 0 } else { registers[index] << (sib >> 6) };
        (sib & 7, stride, modrm + 2)
    } else {
        (rm, 0, modrm + 1)
    };
    if mode == 0 && base == 5 {
        // No base, or relative to the instruction: nothing here is written so.
        return None;
    }
    let (displacement, length) = match mode {
        0 => (0, 0),
        1 => (i64::from(byte(place) as i8), 1),
        _ => (i64::from(i32::from_le_bytes([0, 1, 2, 3].map(|n| byte(place + n)))), 4),
    };
    let start = registers[usize::from(base) + prefix.b].wrapping_add_signed(displacement);
    // An address with an index that is no stride would be its sum, which `ldtilecfg` here never has.
    Some((Rows { start, stride }, place + length))
}
