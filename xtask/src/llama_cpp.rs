//! The engine llama-cpp, which needs a toolchain that not every machine has: cmake and clang.
//!
//! Its C++ is compiled by the build script of `llama-cpp-sys-2`, which takes its choices from the environment. They are
//! written to a file of cargo's configuration, so that everybody who builds the engine builds the same one, once.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{setup, shell};

/// The package, and the folder of its `manifest.json`.
pub const PLUGIN: (&str, &str) = ("llama-cpp", "engines/llama-cpp");
/// What cargo is given with `--config`; tests look for it here.
const CONFIG: &str = "llama-cpp.toml";
/// Versions of clang that llama.cpp has been compiled with, the newest first; the one without a number last.
const CLANGS: [&str; 8] =
    ["clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang"];

/// Of the versions that Debian has, the one this was built with.
const PREFERRED_CLANG: &str = "clang-16";

/// Puts the toolchain in place and gives cargo's configuration; none, after saying why, where it cannot be had.
pub fn install() -> Result<Option<PathBuf>> {
    let config = shell::build_dir().join(CONFIG);
    if let Err(why) = toolchain() {
        eprintln!("  left out: the engine llama-cpp, and with it GGUF models: {why:#}");
        if config.exists() {
            std::fs::remove_file(&config).with_context(|| format!("cannot remove {}", config.display()))?;
        }
        return Ok(None);
    }
    let text = config_text();
    if std::fs::read_to_string(&config).ok().as_ref() != Some(&text) {
        std::fs::create_dir_all(shell::build_dir())
            .and_then(|()| std::fs::write(&config, text))
            .with_context(|| format!("cannot write {}", config.display()))?;
    }
    Ok(Some(config))
}

/// What cargo is told for a command about the package, `features` being the devices of the build.
pub fn arguments(config: &std::path::Path, features: &str) -> Vec<OsString> {
    let words = ["--locked", "--package", PLUGIN.0, "--features", features, "--config"];
    words.into_iter().map(OsString::from).chain([config.as_os_str().to_owned()]).collect()
}

fn toolchain() -> Result<()> {
    let runs = |program: &str| shell::output(shell::command(program).arg("--version")).is_ok();
    if !runs("cmake") {
        setup::apt_install("cmake", "cmake, which builds llama.cpp")?;
    }
    if clang().is_none() && !cfg!(windows) {
        let why = "clang, which compiles llama.cpp and reads its headers";
        // Debian 12 has it beside a `clang` of version 14, which llama.cpp was never compiled with here.
        setup::apt_install(PREFERRED_CLANG, why).or_else(|_| setup::apt_install("clang", why))?;
    }
    // Cargo takes the package for another one where tests are built with it, and would compile the C++ twice.
    if !runs("ccache") && setup::apt_install("ccache", "ccache, so that llama.cpp is compiled once").is_err()
    {
        eprintln!("  without ccache llama.cpp is compiled once for the product and once for the tests");
    }
    Ok(())
}

fn clang() -> Option<&'static str> {
    CLANGS.into_iter().find(|clang| {
        let both = [(*clang).to_owned(), clang.replace("clang", "clang++")];
        both.iter().all(|program| shell::output(shell::command(program).arg("--version")).is_ok())
    })
}

/// The environment of the build script.
fn config_text() -> String {
    let mut text = String::from("# Written by `cargo xtask setup` for this machine.\n[env]\n");
    let mut set = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} = \"{value}\"");
    };
    // Optimized whatever the profile is: the tests wait for it, and no profile compiles it anew.
    set("LLAMA_LIB_PROFILE", "Release");
    // Not CC and CXX: other packages would be compiled again for them.
    if let Some(clang) = clang().filter(|_| !cfg!(windows)) {
        set("CMAKE_C_COMPILER", clang);
        set("CMAKE_CXX_COMPILER", &clang.replace("clang", "clang++"));
    }
    for feature in processor() {
        set(feature, "ON");
    }
    text
}

/// What the processor of this machine has of the instructions that GGML has code for. The build script knows only those of
/// Rust's own target, which are those of every machine.
#[cfg(target_arch = "x86_64")]
fn processor() -> Vec<&'static str> {
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
fn processor() -> Vec<&'static str> {
    Vec::new()
}
