//! What compiles llama.cpp: found, installed where that can be, or named as missing.

use anyhow::{Result, bail};

use super::Device;
use crate::{setup, shell};

/// Versions of clang that llama.cpp has been compiled with, the newest first; the one without a number last.
const CLANGS: [&str; 8] =
    ["clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang"];

/// Of the versions that Debian has, the one this was built with.
const PREFERRED_CLANG: &str = "clang-16";

/// For the CPU, which every build has.
pub fn cpu() -> Result<()> {
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

pub fn clang() -> Option<&'static str> {
    CLANGS.into_iter().find(|clang| {
        let both = [(*clang).to_owned(), clang.replace("clang", "clang++")];
        both.iter().all(|program| shell::output(shell::command(program).arg("--version")).is_ok())
    })
}

/// For a device besides.
pub fn device(device: Device) -> Result<()> {
    match device {
        Device::Cpu => Ok(()),
        Device::Cuda if runs("nvcc") => Ok(()),
        Device::Cuda => bail!(
            "nvcc, which compiles llama.cpp's kernels for NVIDIA GPUs, is missing\nhint: install the CUDA toolkit, and put the \
             folder of nvcc on the PATH"
        ),
        Device::Metal if cfg!(target_os = "macos") => Ok(()),
        Device::Metal => {
            bail!("llama.cpp is compiled for Metal on macOS alone\nhint: leave `--device metal` out")
        }
        Device::Vulkan => vulkan(),
    }
}

/// The compiler of shaders, and on Debian the loader with the headers, which have no program to ask.
fn vulkan() -> Result<()> {
    if !runs("glslc") {
        setup::apt_install("glslc", "glslc, which compiles llama.cpp's shaders for Vulkan")?;
    }
    let header = |path: &str| std::path::Path::new("/usr/include").join(path).exists();
    if cfg!(target_os = "linux") {
        if !header("vulkan/vulkan.hpp") {
            setup::apt_install("libvulkan-dev", "the headers and the loader of Vulkan")?;
        }
        if !header("spirv/unified1/spirv.hpp") {
            setup::apt_install(
                "spirv-headers",
                "the headers of SPIR-V, which llama.cpp's code for Vulkan reads",
            )?;
        }
    }
    Ok(())
}

fn runs(program: &str) -> bool {
    shell::output(shell::command(program).arg("--version")).is_ok()
}
