//! Which processors the engine llama-cpp is compiled for.

use clap::ValueEnum;

/// GGML's code for the CPU is compiled for one set of instructions; the plugin refuses a processor that lacks one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Processor {
    /// That of this machine
    #[default]
    Native,
    /// Every x86 processor since about 2009
    #[value(name = "x86-64-v2")]
    V2,
    /// With AVX2, FMA and F16C: since about 2013
    #[value(name = "x86-64-v3")]
    V3,
    /// With AVX-512
    #[value(name = "x86-64-v4")]
    V4,
}

impl Processor {
    /// For people, and for names of folders.
    pub fn name(self) -> &'static str {
        match self {
            Processor::Native => "native",
            Processor::V2 => "x86-64-v2",
            Processor::V3 => "x86-64-v3",
            Processor::V4 => "x86-64-v4",
        }
    }

    /// GGML's names of what may be used. The build script knows only the instructions of Rust's own target, which are those of
    /// every machine.
    pub fn instructions(self) -> Vec<&'static str> {
        const V2: [&str; 1] = ["GGML_SSE42"];
        const V3: [&str; 5] = ["GGML_AVX", "GGML_AVX2", "GGML_BMI2", "GGML_FMA", "GGML_F16C"];
        const V4: [&str; 1] = ["GGML_AVX512"];
        match self {
            Processor::Native => of_this_machine(),
            Processor::V2 => V2.to_vec(),
            Processor::V3 => [&V2[..], &V3].concat(),
            Processor::V4 => [&V2[..], &V3, &V4].concat(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn of_this_machine() -> Vec<&'static str> {
    macro_rules! has {
        ($($name:tt)*) => { true $(&& std::is_x86_feature_detected!($name))* };
    }
    [
        ("GGML_SSE42", has!("sse4.2")),
        ("GGML_AVX", has!("avx")),
        ("GGML_AVX2", has!("avx2")),
        ("GGML_BMI2", has!("bmi2")),
        ("GGML_FMA", has!("fma")),
        ("GGML_F16C", has!("f16c")),
        ("GGML_AVX512", has!("avx512f" "avx512cd" "avx512vl" "avx512dq" "avx512bw")),
        ("GGML_AVX512_VBMI", has!("avx512vbmi")),
        ("GGML_AVX512_VNNI", has!("avx512vnni")),
        ("GGML_AVX512_BF16", has!("avx512bf16")),
    ]
    .into_iter()
    .filter_map(|(name, there)| there.then_some(name))
    .collect()
}

/// Elsewhere GGML's build finds out by itself.
#[cfg(not(target_arch = "x86_64"))]
fn of_this_machine() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_all_of_the_one_below() {
        let levels = [Processor::V2, Processor::V3, Processor::V4].map(Processor::instructions);
        for pair in levels.windows(2) {
            assert!(
                pair[1].len() > pair[0].len() && pair[0].iter().all(|name| pair[1].contains(name)),
                "{pair:?}"
            );
        }
    }
}
