//! The peak of each unit that multiplies: its instruction over and over, on registers, with enough sums that none waits.

#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::time::{Duration, Instant};

use core_affinity::CoreId;

use super::{median_of, on_each};

/// Of one round. Long enough for a core to reach the clock it keeps under such work.
const ROUND: Duration = Duration::from_millis(40);
/// Turns of a loop between two looks at the clock.
const TURNS: u64 = 2000;

/// A kind of instruction that multiplies and adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// 8 f32 a vector.
    Avx2Fma,
    /// 16 f32 a vector.
    Avx512Fma,
    /// `vdpbf16ps`: 32 bf16 a vector, sums in f32.
    Avx512Bf16,
    /// `vpdpbusd`: 64 bytes a vector, sums in i32.
    Avx512Vnni,
    /// `tdpbf16ps`: tiles of 16 times 32 bf16.
    AmxBf16,
    /// `tdpbssd`: tiles of 16 times 64 bytes.
    AmxInt8,
    /// `fmla`: 4 f32 a vector.
    NeonFma,
    /// `bfmmla`: 2 times 4 with 4 times 2 bf16.
    NeonBf16,
    /// `sdot`: 16 bytes a vector.
    NeonDot,
    /// `smmla`: 2 times 8 with 8 times 2 bytes.
    NeonI8mm,
}

impl Unit {
    pub const ALL: [Unit; 10] = [
        Unit::Avx2Fma,
        Unit::Avx512Fma,
        Unit::Avx512Bf16,
        Unit::Avx512Vnni,
        Unit::AmxBf16,
        Unit::AmxInt8,
        Unit::NeonFma,
        Unit::NeonBf16,
        Unit::NeonDot,
        Unit::NeonI8mm,
    ];

    /// Those that multiply bf16 weights, widened to f32 where there is nothing better.
    pub const FOR_BF16: &[Unit] =
        &[Unit::Avx2Fma, Unit::Avx512Fma, Unit::Avx512Bf16, Unit::AmxBf16, Unit::NeonFma, Unit::NeonBf16];

    /// Those that multiply 8-bit weights with 8-bit activations.
    pub const FOR_INT8: &[Unit] = &[Unit::Avx512Vnni, Unit::AmxInt8, Unit::NeonDot, Unit::NeonI8mm];

    pub fn as_str(self) -> &'static str {
        match self {
            Unit::Avx2Fma => "avx2-fma",
            Unit::Avx512Fma => "avx512-fma",
            Unit::Avx512Bf16 => "avx512-bf16",
            Unit::Avx512Vnni => "avx512-vnni",
            Unit::AmxBf16 => "amx-bf16",
            Unit::AmxInt8 => "amx-int8",
            Unit::NeonFma => "neon-fma",
            Unit::NeonBf16 => "neon-bf16",
            Unit::NeonDot => "neon-dot",
            Unit::NeonI8mm => "neon-i8mm",
        }
    }

    /// Whether this processor has it and this process may use it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return x86::has(self);
        #[cfg(target_arch = "aarch64")]
        return arm::has(self);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        false
    }

    /// Runs its loop `turns` times; gives the operations of one turn.
    fn turn(self, turns: u64) -> u64 {
        #[cfg(target_arch = "x86_64")]
        return x86::turn(self, turns);
        #[cfg(target_arch = "aarch64")]
        return arm::turn(self, turns);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        unreachable!("{} is not available, which was asserted before {turns} turns", self.as_str())
    }
}

/// Operations a second of the threads on `cores` together.
///
/// # Panics
/// When the unit is not available.
pub fn peak(cores: &[CoreId], unit: Unit, rounds: u32) -> f64 {
    assert!(unit.is_available(), "this processor has no {}", unit.as_str());
    median_of(rounds, |_| {
        on_each(cores, |_| {
            let start = Instant::now();
            let mut operations = 0;
            while start.elapsed() < ROUND {
                operations += unit.turn(TURNS) * TURNS;
            }
            operations as f64 / start.elapsed().as_secs_f64()
        })
        .iter()
        .sum()
    })
}
