//! `cargo xtask check-platforms`: type-checks the workspace for Windows and macOS without either.
//!
//! The standard library of those targets is checked from source (`-Zbuild-std`), which needs the sources of exactly
//! the compiler in use: rustup's `rust-src` component where it is installed, else Debian's package of it. No linker and
//! no foreign C compiler is needed, because nothing is linked: build scripts that compile C get a stand-in that writes
//! empty objects.

pub mod arm64;
mod rust_src;
mod stand_in;
pub mod wine;

use std::path::Path;

use anyhow::Result;

use crate::metadata::Metadata;
use crate::shell;

const TARGETS: &[&str] = &["x86_64-pc-windows-msvc", "aarch64-apple-darwin"];

pub fn check() -> Result<()> {
    let library = rust_src::library()?;
    let compiler = stand_in::compiler()?;
    // Apart from the everyday folder: another standard library under other flags would push that one's files out.
    let target_dir = Metadata::read()?.target_directory.join("platforms");
    for target in TARGETS {
        eprintln!("  {target}");
        check_one(target, &library, &compiler, &target_dir)?;
    }
    Ok(())
}

fn check_one(target: &str, library: &Path, compiler: &stand_in::Compiler, target_dir: &Path) -> Result<()> {
    let mut command = shell::cargo();
    command
        .args(["check", "--workspace", "--locked", "--quiet", "-Zbuild-std", "--target", target])
        // build-std is unstable; this says we know. Only for checking: nothing made this way is shipped.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", library)
        .env("CARGO_TARGET_DIR", target_dir)
        // Warnings of the other platform's code count too.
        .env("RUSTFLAGS", "-D warnings");
    let variable = target.replace('-', "_");
    command
        .env(format!("CC_{variable}"), &compiler.cc)
        .env(format!("CXX_{variable}"), &compiler.cc)
        .env(format!("AR_{variable}"), &compiler.ar)
        // cc asks xcrun for the SDK unless it is told where one is.
        .env("SDKROOT", &compiler.sdk);
    shell::run(&mut command)
}
