//! Whether this processor has the instructions that llama.cpp was compiled for: without one it would die of the first.

use engine_sdk::Status;
use llama_cpp_sys_2 as sys;

/// Something that GGML's code may use.
#[derive(Debug, Clone, Copy)]
struct Instructions {
    name: &'static str,
    /// This build uses them.
    compiled: bool,
    /// This processor has them.
    there: bool,
}

/// # Errors
/// `UNSUPPORTED` `unsupported_processor`, naming what is lacking.
pub(super) fn check() -> Result<(), Status> {
    let lacking = lacking(&used());
    if lacking.is_empty() {
        return Ok(());
    }
    let message = format!(
        "this build of llama-cpp is for processors with {}, which this one lacks\nhint: `cargo xtask llama-cpp --cpu x86-64-v2` \
         builds it for older ones",
        lacking.join(", ")
    );
    Err(Status::unsupported("unsupported_processor", message))
}

fn lacking(instructions: &[Instructions]) -> Vec<&'static str> {
    instructions.iter().filter(|i| i.compiled && !i.there).map(|i| i.name).collect()
}

#[cfg(target_arch = "x86_64")]
fn used() -> Vec<Instructions> {
    macro_rules! of {
        ($($function:ident: [$($name:tt)+];)+) => { vec![$(Instructions {
            name: stringify!($function).trim_start_matches("ggml_cpu_has_"),
            // SAFETY: answers from what it was compiled with.
            compiled: unsafe { sys::$function() } != 0,
            there: true $(&& std::is_x86_feature_detected!($name))+,
        }),+] };
    }
    of! {
        ggml_cpu_has_ssse3: ["ssse3"];
        ggml_cpu_has_avx: ["avx"];
        ggml_cpu_has_avx2: ["avx2"];
        ggml_cpu_has_bmi2: ["bmi2"];
        ggml_cpu_has_f16c: ["f16c"];
        ggml_cpu_has_fma: ["fma"];
        ggml_cpu_has_avx_vnni: ["avxvnni"];
        ggml_cpu_has_avx512: ["avx512f" "avx512cd" "avx512vl" "avx512dq" "avx512bw"];
        ggml_cpu_has_avx512_vbmi: ["avx512vbmi"];
        ggml_cpu_has_avx512_vnni: ["avx512vnni"];
        ggml_cpu_has_avx512_bf16: ["avx512bf16"];
    }
}

/// Elsewhere GGML's build uses what every processor of the kind has, or finds out when it runs.
#[cfg(not(target_arch = "x86_64"))]
fn used() -> Vec<Instructions> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_compiled_in_and_not_there_is_lacking() {
        let of = |name, compiled, there| Instructions { name, compiled, there };
        let all = [of("a", true, true), of("b", true, false), of("c", false, false), of("d", false, true)];
        assert_eq!(lacking(&all), ["b"]);
    }

    #[test]
    fn this_machine_has_what_its_own_build_uses() {
        assert_eq!(check(), Ok(()));
        assert!(cfg!(not(target_arch = "x86_64")) || used().iter().any(|i| i.compiled), "{:?}", used());
    }
}
