//! Builds what `cargo xtask bench cpu` is measured beside: llama.cpp at its best, from a pinned source package.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::build::binary_name;
use crate::{setup, shell};

/// Pins the package by its sha256, which pip checks.
const REQUIREMENTS: &str = "bench/peer-requirements.txt";
/// As the package's file and folder are called.
const PACKAGE: &str = "llama_cpp_python-0.3.36";
/// Of the package's folder.
const SOURCE: &str = "vendor/llama.cpp";
const PROGRAMS: [&str; 2] = ["llama-bench", "llama-server"];
/// Built by gcc 12 it crashes in prefill on machines with AMX.
const CLANG: &str = "clang-16";
/// A program that has to be there, the Debian package that has it, and why.
const NEEDED: [(&str, &str, &str); 4] = [
    (CLANG, "clang-16", "the compiler that the peer is built with"),
    ("cmake", "cmake", "the peer is configured with CMake"),
    ("ninja", "ninja-build", "the peer is built with Ninja"),
    ("tar", "tar", "the peer's source package is an archive"),
];

/// The folder with the peer's programs: built on the first call, which takes a quarter of an hour on two cores.
pub fn find_or_build() -> Result<PathBuf> {
    let folder = shell::build_dir().join("llama.cpp");
    let bin_dir = folder.join("build").join("bin");
    if PROGRAMS.iter().all(|name| bin_dir.join(binary_name(name)).exists()) {
        return Ok(bin_dir);
    }
    if cfg!(windows) {
        bail!(
            "the peer is built on Linux and macOS only\nhint: name a folder that has it with --peer, or go without it with --no-peer"
        );
    }
    for (program, package, why) in NEEDED {
        if shell::output(shell::command(program).arg("--version")).is_err() {
            setup::apt_install(package, why)?;
        }
    }
    if !openmp_is_there() {
        setup::apt_install("libomp-16-dev", "OpenMP of clang, with which the peer's threads wait least")?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let source = unpacked(&folder)?;
    let build = folder.join("build");
    shell::run(shell::command("cmake").args(["-G", "Ninja", "-S"]).arg(&source).arg("-B").arg(&build).args(
        [
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_C_COMPILER=clang-16",
            "-DCMAKE_CXX_COMPILER=clang++-16",
            "-DGGML_NATIVE=ON",
            "-DBUILD_SHARED_LIBS=OFF",
            "-DLLAMA_OPENSSL=OFF",
            "-DLLAMA_BUILD_TESTS=OFF",
            "-DLLAMA_BUILD_EXAMPLES=OFF",
        ],
    ))?;
    shell::run(shell::command("ninja").arg("-C").arg(&build).args(PROGRAMS))?;
    Ok(bin_dir)
}

fn openmp_is_there() -> bool {
    let mut command = shell::command(CLANG);
    command.args(["-fopenmp", "-x", "c", "-fsyntax-only", "-include", "omp.h", "/dev/null"]);
    shell::output(&mut command).is_ok()
}

/// Downloads and unpacks the source, where that has not been done.
fn unpacked(folder: &Path) -> Result<PathBuf> {
    let source = folder.join(PACKAGE).join(SOURCE);
    if source.join("CMakeLists.txt").exists() {
        return Ok(source);
    }
    let archive = folder.join(format!("{PACKAGE}.tar.gz"));
    if !archive.exists() {
        shell::run(
            shell::command("python3")
                .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"])
                .args(["--no-deps", "--no-binary", "llama-cpp-python", "--requirement", REQUIREMENTS, "--dest"])
                .arg(folder),
        )
        .context("the peer's source package could not be downloaded\nhint: name a folder that has llama-bench and llama-server with --peer")?;
    }
    shell::run(shell::command("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder))?;
    if !source.exists() {
        bail!("{} has no {PACKAGE}/{SOURCE}", archive.display());
    }
    Ok(source)
}
