//! `cargo xtask test-arm64`: runs the cpu's kernels and the reference tests as code for 64-bit Arm, on an emulated one.
//!
//! The standard library is built from source as for the other platforms; here it is linked too, by Debian's cross compiler,
//! and qemu runs the tests. Their speed says nothing. On an Arm machine `cargo test` is all it takes.

use anyhow::{Result, bail};

use super::rust_src;
use crate::metadata::Metadata;
use crate::shell;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Where Debian keeps the C library of that architecture.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// Emulated processors, and what is run on each: all on one with every extension that qemu knows, and what has a choice of
/// instructions on one without them, and on one with dot products alone.
const PROCESSORS: &[(&str, &[&str])] =
    &[("max", &[]), ("cortex-a57", &["--lib", "--", CHOSEN]), ("neoverse-n1", &["--lib", "--", CHOSEN])];
/// Every kernel there is, at sizes that leave every rest of columns; the whole suite takes minutes under emulation.
const CHOSEN: &str = "quantized::tests::ragged_tail";

pub fn test() -> Result<()> {
    let missing: Vec<&str> = [LINKER, EMULATOR]
        .into_iter()
        .filter(|program| shell::output(shell::command(program).arg("--version")).is_err())
        .collect();
    if !missing.is_empty() {
        bail!(
            "{} not found: tests for {TARGET} are linked with {LINKER} and run by {EMULATOR}\n\
             hint: on Debian, apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
            missing.join(" and ")
        );
    }
    let library = rust_src::library()?;
    let variable = |name: &str| format!("CARGO_TARGET_{}_{name}", TARGET.replace('-', "_").to_uppercase());
    let target = Metadata::read()?.target_directory.join("arm64");
    for (processor, which) in PROCESSORS {
        shell::run(
            shell::cargo()
                .args(["test", "--locked", "-Zbuild-std", "--target", TARGET, "--package", "gpt-oss-cpu"])
                .args(*which)
                // build-std is unstable; this says we know. Nothing made this way is shipped.
                .env("RUSTC_BOOTSTRAP", "1")
                .env("__CARGO_TESTS_ONLY_SRC_ROOT", &library)
                // Apart from the everyday folder: another standard library would push that one's files out.
                .env("CARGO_TARGET_DIR", &target)
                .env(variable("LINKER"), LINKER)
                .env(variable("RUNNER"), format!("{EMULATOR} -cpu {processor} -L {LIBRARIES}")),
        )?;
    }
    Ok(())
}
