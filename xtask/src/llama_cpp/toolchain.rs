//! What compiles llama.cpp: found, installed where that can be, or named as missing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::Device;
use crate::debian::Suite;
use crate::{setup, shell};

/// Versions of clang that llama.cpp has been compiled with, the newest first; the one without a number last.
const CLANGS: [&str; 8] =
    ["clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang"];

/// Of the versions that Debian has, the one this was built with.
const PREFERRED_CLANG: &str = "clang-16";

/// What LunarG's SDK sets, and cmake and the build script look for: a folder with `include` and `lib`.
const VULKAN_SDK: &str = "VULKAN_SDK";
/// llama.cpp names types of `VK_EXT_layer_settings`, whatever it is built for. Debian 12 has 239.
const VULKAN_HEADERS_MIN: u32 = 272;
/// Debian's suite whose package has newer headers, and the package. They are the same for every Debian.
const NEWER_HEADERS: (&str, &str) = ("trixie", "libvulkan-dev");
/// What a linker finds as `-lvulkan`.
const LOADERS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libvulkan.so",
    "/usr/lib/aarch64-linux-gnu/libvulkan.so",
    "/usr/lib64/libvulkan.so",
    "/usr/lib/libvulkan.so",
];

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

/// For a device besides. Gives what has to be in the environment of the build.
pub fn device(device: Device) -> Result<Option<(&'static str, PathBuf)>> {
    match device {
        Device::Cpu => Ok(None),
        Device::Cuda if runs("nvcc") => Ok(None),
        Device::Cuda => bail!(
            "nvcc, which compiles llama.cpp's kernels for NVIDIA GPUs, is missing\nhint: install the CUDA toolkit, and put the \
             folder of nvcc on the PATH"
        ),
        Device::Metal if cfg!(target_os = "macos") => Ok(None),
        Device::Metal => {
            bail!("llama.cpp is compiled for Metal on macOS alone\nhint: leave `--device metal` out")
        }
        Device::Vulkan => Ok(vulkan()?.map(|sdk| (VULKAN_SDK, sdk))),
    }
}

/// The compiler of shaders, and on Linux the loader with the headers, which have no program to ask. Gives the folder with headers
/// that are newer than the system's, where those are too old.
fn vulkan() -> Result<Option<PathBuf>> {
    if !runs("glslc") {
        setup::apt_install("glslc", "glslc, which compiles llama.cpp's shaders for Vulkan")?;
    }
    if !cfg!(target_os = "linux") {
        return Ok(None);
    }
    let sdk = std::env::var_os(VULKAN_SDK).map(|sdk| Path::new(&sdk).join("include"));
    let find = |header: &str| {
        sdk.iter()
            .map(PathBuf::as_path)
            .chain([Path::new("/usr/include")])
            .map(|dir| dir.join(header))
            .find(|p| p.exists())
    };
    if find("vulkan/vulkan.hpp").is_none() || !LOADERS.iter().any(|path| Path::new(path).exists()) {
        setup::apt_install("libvulkan-dev", "the headers and the loader of Vulkan")?;
    }
    if find("spirv/unified1/spirv.hpp").is_none() {
        let why = "the headers of SPIR-V, which llama.cpp's code for Vulkan reads";
        setup::apt_install("spirv-headers", why)?;
    }
    let core =
        find("vulkan/vulkan_core.h").context("the headers of Vulkan are not where they were installed")?;
    let version = header_version(&core)?;
    if version >= VULKAN_HEADERS_MIN {
        return Ok(None);
    }
    let too_old = format!(
        "{} is of version {version} of Vulkan's headers, and llama.cpp needs {VULKAN_HEADERS_MIN} (1.3.{VULKAN_HEADERS_MIN})",
        core.display()
    );
    let hint = format!(
        "hint: unpack newer ones, such as those of Debian 13's libvulkan-dev, as FOLDER/include/vulkan, and set {VULKAN_SDK}=FOLDER; \
         LunarG's SDK sets it by itself"
    );
    // Whoever has named a folder gets no other one.
    if sdk.is_some() {
        bail!("{too_old}\n{hint}");
    }
    newer_headers(&too_old).map(Some).with_context(|| format!("{too_old}\n{hint}"))
}

/// The folder that [`VULKAN_SDK`] is to name, with Debian's newer headers.
fn newer_headers(why: &str) -> Result<PathBuf> {
    let (suite, package) = NEWER_HEADERS;
    let dir = shell::build_dir().join(format!("{package}-{suite}"));
    let sdk = dir.join("usr");
    let core = sdk.join("include/vulkan/vulkan_core.h");
    if !core.exists() {
        setup::say(
            "newer headers of Vulkan",
            why,
            &format!("Debian's {package} from {suite}, unpacked into build/ only"),
        );
        let suite = Suite::open(suite)?;
        let versions = suite.versions(package)?;
        let version = versions.first().with_context(|| format!("the suite has no {package}"))?;
        suite.unpack(package, version, &dir)?;
    }
    let version = header_version(&core)?;
    ensure!(version >= VULKAN_HEADERS_MIN, "{} is of version {version}, too", core.display());
    Ok(sdk)
}

/// `#define VK_HEADER_VERSION 309`; it counts on over 1.3 and 1.4.
fn version_in(text: &str) -> Option<u32> {
    let of = |line: &str| line.strip_prefix("#define VK_HEADER_VERSION ")?.trim().parse().ok();
    text.lines().find_map(of)
}

fn header_version(core: &Path) -> Result<u32> {
    let text = std::fs::read_to_string(core).with_context(|| format!("cannot read {}", core.display()))?;
    version_in(&text).with_context(|| format!("{} does not say its version", core.display()))
}

fn runs(program: &str) -> bool {
    shell::output(shell::command(program).arg("--version")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_their_version() {
        let text = "// Version of this file\n#define VK_HEADER_VERSION 239\n\n#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 3, VK_HEADER_VERSION)\n";
        assert_eq!(version_in(text), Some(239));
        assert_eq!(version_in("#define VK_HEADER_VERSION_COMPLETE 7\n"), None);
    }
}
