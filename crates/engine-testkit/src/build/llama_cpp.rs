//! Whether the llama-cpp engine can be built here: it needs a toolchain that not every machine has.

use std::path::PathBuf;

use super::workspace_root;

/// The package of the engine.
pub(super) const PACKAGE: &str = "llama-cpp";
/// Written by `cargo xtask setup` where the toolchain is there: cargo's configuration with which llama.cpp is compiled.
const CONFIG: &str = "build/llama-cpp.toml";
/// Set where a machine without the toolchain is a failure.
const REQUIRE: &str = "REQUIRE_LLAMA_CPP";

pub(super) fn config() -> PathBuf {
    workspace_root().join(CONFIG)
}

/// Why a test with this engine cannot run; it is printed, and the test passes, unless `REQUIRE_LLAMA_CPP` is set.
///
/// # Panics
/// When it is set.
pub fn llama_cpp_is_missing() -> bool {
    let config = config();
    if config.is_file() {
        return false;
    }
    let why = format!("skipped: {} is not there; `cargo xtask setup` writes it", config.display());
    assert!(std::env::var_os(REQUIRE).is_none(), "{why}");
    println!("{why}");
    true
}
