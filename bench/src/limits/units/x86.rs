//! The units of x86: AVX2, AVX-512 and AMX.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;

use super::Unit;

pub fn has(unit: Unit) -> bool {
    match unit {
        Unit::Avx2Fma => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        Unit::Avx512Fma => is_x86_feature_detected!("avx512f"),
        Unit::Avx512Bf16 => is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f"),
        Unit::Avx512Vnni => is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512f"),
        Unit::AmxBf16 => amx_bit(22) && amx_permitted(),
        Unit::AmxInt8 => amx_bit(25) && amx_permitted(),
        Unit::NeonFma | Unit::NeonBf16 | Unit::NeonDot | Unit::NeonI8mm => false,
    }
}

pub fn turn(unit: Unit, turns: u64) -> u64 {
    match unit {
        // SAFETY: here and below: `peak` asserts that the unit is available, which asks the processor for it.
        Unit::Avx2Fma => unsafe { avx2_fma(turns) },
        // SAFETY: as above.
        Unit::Avx512Fma => unsafe { avx512_fma(turns) },
        // SAFETY: as above.
        Unit::Avx512Bf16 => unsafe { avx512_bf16(turns) },
        // SAFETY: as above.
        Unit::Avx512Vnni => unsafe { avx512_vnni(turns) },
        // SAFETY: as above, and the system was asked too.
        Unit::AmxBf16 => unsafe { amx_bf16(turns) },
        // SAFETY: as above.
        Unit::AmxInt8 => unsafe { amx_int8(turns) },
        Unit::NeonFma | Unit::NeonBf16 | Unit::NeonDot | Unit::NeonI8mm => {
            unreachable!("{} is not of this architecture", unit.as_str())
        }
    }
}

/// Twelve sums: two units with a latency of four to five cycles need ten.
const SUMS: u64 = 12;

/// Twice the bf16 number 1, also near 1 as f32: sums stay normal numbers, and units work as hard as on real ones.
const INPUT: u32 = 0x3f80_3f80;

/// A function that runs an instruction on twelve sums, `turns` times.
macro_rules! vector_unit {
    ($name:ident, $feature:literal, $instruction:literal, $r:literal, $operations:literal) => {
        #[target_feature(enable = $feature)]
        fn $name(turns: u64) -> u64 {
            // SAFETY: changes vector registers that are named and a counter; touches no memory.
            unsafe {
                asm!(
                    "vmovd xmm0, {input:e}",
                    concat!("vpbroadcastd ", $r, "1, xmm0"), concat!("vpbroadcastd ", $r, "0, xmm0"),
                    "vpxor xmm2, xmm2, xmm2", "vpxor xmm3, xmm3, xmm3",
                    "vpxor xmm4, xmm4, xmm4", "vpxor xmm5, xmm5, xmm5",
                    "vpxor xmm6, xmm6, xmm6", "vpxor xmm7, xmm7, xmm7",
                    "vpxor xmm8, xmm8, xmm8", "vpxor xmm9, xmm9, xmm9",
                    "vpxor xmm10, xmm10, xmm10", "vpxor xmm11, xmm11, xmm11",
                    "vpxor xmm12, xmm12, xmm12", "vpxor xmm13, xmm13, xmm13",
                    "2:",
                    concat!($instruction, " ", $r, "2, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "3, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "4, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "5, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "6, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "7, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "8, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "9, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "10, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "11, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "12, ", $r, "0, ", $r, "1"),
                    concat!($instruction, " ", $r, "13, ", $r, "0, ", $r, "1"),
                    "dec {turns}",
                    "jnz 2b",
                    turns = inout(reg) turns => _,
                    input = in(reg) INPUT,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                    out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                    out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                    options(nomem, nostack),
                );
            }
            SUMS * $operations
        }
    };
}

vector_unit!(avx2_fma, "avx2,fma", "vfmadd231ps", "ymm", 16);
vector_unit!(avx512_fma, "avx512f", "vfmadd231ps", "zmm", 32);
vector_unit!(avx512_bf16, "avx512f,avx512bf16", "vdpbf16ps", "zmm", 64);
vector_unit!(avx512_vnni, "avx512f,avx512vnni", "vpdpbusd", "zmm", 128);

/// Bits of leaf 7's EDX; 24 says that there are tiles at all.
fn amx_bit(bit: u32) -> bool {
    let edx = __cpuid_count(7, 0).edx;
    edx >> 24 & 1 == 1 && edx >> bit & 1 == 1
}

/// The state of tiles is large: Linux gives it only to processes that ask.
#[cfg(target_os = "linux")]
fn amx_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: takes two numbers and touches no memory of ours. A kernel that does not know it says so.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// How another system gives tiles to a process was never tried.
#[cfg(not(target_os = "linux"))]
fn amx_permitted() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<TileConfig>() == 64);

/// Eight tiles of 16 rows of 64 bytes.
static TILES: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Four sums of two by two tiles, the shape a matrix product has.
macro_rules! tile_unit {
    ($name:ident, $instruction:literal, $operations:literal) => {
        /// # Safety
        /// The processor has the instruction and the system lets this process use tiles.
        unsafe fn $name(turns: u64) -> u64 {
            // SAFETY: the caller's promise. Reads two statics; tiles are released again.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tileloadd tmm4, [{input} + {stride}]", "tileloadd tmm5, [{input} + {stride}]",
                    "tileloadd tmm6, [{input} + {stride}]", "tileloadd tmm7, [{input} + {stride}]",
                    "2:",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "dec {turns}",
                    "jnz 2b",
                    "tilerelease",
                    config = in(reg) &raw const TILES,
                    input = in(reg) &raw const TILE,
                    stride = in(reg) 64usize,
                    turns = inout(reg) turns => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(readonly, nostack),
                );
            }
            4 * $operations
        }
    };
}

/// 16 rows of 64 bytes.
static TILE: [u32; 256] = [INPUT; 256];

tile_unit!(amx_bf16, "tdpbf16ps", 16384);
tile_unit!(amx_int8, "tdpbssd", 32768);
