//! The units of 64-bit Arm: NEON, and the matrix and dot instructions of later versions.

use std::arch::{asm, is_aarch64_feature_detected};

use super::Unit;

pub fn has(unit: Unit) -> bool {
    match unit {
        Unit::NeonFma => is_aarch64_feature_detected!("neon"),
        Unit::NeonBf16 => is_aarch64_feature_detected!("bf16"),
        Unit::NeonDot => is_aarch64_feature_detected!("dotprod"),
        Unit::NeonI8mm => is_aarch64_feature_detected!("i8mm"),
        Unit::Avx2Fma
        | Unit::Avx512Fma
        | Unit::Avx512Bf16
        | Unit::Avx512Vnni
        | Unit::AmxBf16
        | Unit::AmxInt8 => false,
    }
}

pub fn turn(unit: Unit, turns: u64) -> u64 {
    match unit {
        // SAFETY: here and below: `peak` asserts that the unit is available, which asks the processor for it.
        Unit::NeonFma => unsafe { neon_fma(turns) },
        // SAFETY: as above.
        Unit::NeonBf16 => unsafe { neon_bf16(turns) },
        // SAFETY: as above.
        Unit::NeonDot => unsafe { neon_dot(turns) },
        // SAFETY: as above.
        Unit::NeonI8mm => unsafe { neon_i8mm(turns) },
        Unit::Avx2Fma
        | Unit::Avx512Fma
        | Unit::Avx512Bf16
        | Unit::Avx512Vnni
        | Unit::AmxBf16
        | Unit::AmxInt8 => unreachable!("{} is not of this architecture", unit.as_str()),
    }
}

/// Sixteen sums: four units with a latency of four cycles.
const SUMS: u64 = 16;

/// Twice the bf16 number 1, also near 1 as f32: sums stay normal numbers, and units work as hard as on real ones.
const INPUT: u32 = 0x3f80_3f80;

/// A function that runs an instruction on sixteen sums, `turns` times; `$sum` and `$input` are the shapes of registers.
macro_rules! vector_unit {
    ($name:ident, $feature:literal, $instruction:literal, $sum:literal, $input:literal, $operations:literal) => {
        #[target_feature(enable = $feature)]
        fn $name(turns: u64) -> u64 {
            // SAFETY: changes vector registers that are named and a counter; touches no memory.
            unsafe {
                asm!(
                    "dup v0.4s, {input:w}", "dup v1.4s, {input:w}",
                    "movi v16.16b, #0", "movi v17.16b, #0", "movi v18.16b, #0", "movi v19.16b, #0",
                    "movi v20.16b, #0", "movi v21.16b, #0", "movi v22.16b, #0", "movi v23.16b, #0",
                    "movi v24.16b, #0", "movi v25.16b, #0", "movi v26.16b, #0", "movi v27.16b, #0",
                    "movi v28.16b, #0", "movi v29.16b, #0", "movi v30.16b, #0", "movi v31.16b, #0",
                    "2:",
                    concat!($instruction, " v16.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v17.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v18.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v19.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v20.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v21.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v22.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v23.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v24.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v25.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v26.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v27.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v28.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v29.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v30.", $sum, ", v0.", $input, ", v1.", $input),
                    concat!($instruction, " v31.", $sum, ", v0.", $input, ", v1.", $input),
                    "subs {turns}, {turns}, #1",
                    "b.ne 2b",
                    turns = inout(reg) turns => _,
                    input = in(reg) INPUT,
                    out("v0") _, out("v1") _,
                    out("v16") _, out("v17") _, out("v18") _, out("v19") _,
                    out("v20") _, out("v21") _, out("v22") _, out("v23") _,
                    out("v24") _, out("v25") _, out("v26") _, out("v27") _,
                    out("v28") _, out("v29") _, out("v30") _, out("v31") _,
                    options(nomem, nostack),
                );
            }
            SUMS * $operations
        }
    };
}

vector_unit!(neon_fma, "neon", "fmla", "4s", "4s", 8);
vector_unit!(neon_bf16, "neon,bf16", "bfmmla", "4s", "8h", 32);
vector_unit!(neon_dot, "neon,dotprod", "sdot", "4s", "16b", 32);
vector_unit!(neon_i8mm, "neon,i8mm", "smmla", "4s", "16b", 64);
