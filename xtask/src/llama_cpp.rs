//! The engine llama-cpp, which needs a toolchain that not every machine has: cmake and clang.
//!
//! Its C++ is compiled by the build script of `llama-cpp-sys-2`, which takes its choices from the environment. They are
//! written to a file of cargo's configuration, so that everybody who builds the engine builds the same one, once.

mod processor;
mod toolchain;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::metadata::Metadata;
use crate::{build, shell};
use processor::Processor;

/// The package, and the folder of its `manifest.json`.
const PLUGIN: (&str, &str) = ("llama-cpp", "engines/llama-cpp");
/// What cargo is given with `--config`; tests look for it here.
const CONFIG: &str = "llama-cpp.toml";

/// Devices it can be built for, the best first. They are features of the package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Device {
    Cuda,
    Metal,
    Vulkan,
    Cpu,
}

impl Device {
    fn name(self) -> &'static str {
        match self {
            Device::Cuda => "cuda",
            Device::Metal => "metal",
            Device::Vulkan => "vulkan",
            Device::Cpu => "cpu",
        }
    }
}

#[derive(Args)]
pub struct LlamaCppArguments {
    /// Devices to build for besides the cpu; may be given several times
    #[arg(long = "device")]
    devices: Vec<Device>,
    /// Processors to build for
    #[arg(long, default_value = "native")]
    cpu: Processor,
}

/// `cargo xtask llama-cpp`: the engine alone, optimized, for the devices and processors that are named.
pub fn run(arguments: &LlamaCppArguments) -> Result<()> {
    toolchain::cpu()?;
    let mut devices = arguments.devices.clone();
    devices.push(Device::Cpu);
    devices.sort_unstable();
    devices.dedup();
    let environment: Vec<_> =
        devices.iter().map(|device| toolchain::device(*device)).collect::<Result<_>>()?;
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    let what = format!("{}-{}", names.join("-"), arguments.cpu.name());
    let config = shell::build_dir().join(format!("llama-cpp-{what}.toml"));
    write(&config, &config_text(arguments.cpu))?;
    // A folder for each: cmake keeps what it was told first, and a build would have the instructions of the one before.
    let target = Metadata::read()?.target_directory;
    let own = target.join("llama-cpp").join(&what);
    let mut command = shell::cargo();
    command.envs(environment.into_iter().flatten());
    command.args(["build", "--lib", "--release", "--target-dir"]).arg(&own);
    shell::run(command.args(self::arguments(&config, &names.join(","))))?;
    let bin_dir = target.join("release");
    let folder = shell::root().join(PLUGIN.1);
    build::lay_out(PLUGIN.0, &folder, &own.join("release"), &bin_dir, |manifest| {
        describe(manifest, &names, arguments.cpu);
    })?;
    eprintln!("  built llama-cpp for {} into {}", names.join(", "), bin_dir.join("engines").display());
    Ok(())
}

/// The engine for the cpu of this machine, beside the other products; left out, with the reason, where it cannot be built.
pub fn product(release: bool, bin_dir: &Path) -> Result<()> {
    let Some(config) = install()? else { return Ok(()) };
    // A command of its own, the same as that of tests: otherwise llama.cpp would be compiled for each.
    let mut command = shell::cargo();
    command.args(["build", "--lib"]).args(arguments(&config, "cpu"));
    if release {
        command.arg("--release");
    }
    shell::run(&mut command)?;
    let folder = shell::root().join(PLUGIN.1);
    build::lay_out(PLUGIN.0, &folder, bin_dir, bin_dir, |manifest| {
        describe(manifest, &["cpu"], Processor::Native);
    })?;
    Ok(())
}

/// Says in a manifest what this build of it has.
fn describe(manifest: &mut Value, devices: &[&str], processor: Processor) {
    manifest["devices"] = json!(devices);
    let instructions: Vec<String> =
        processor.instructions().iter().map(|name| name.trim_start_matches("GGML_").to_lowercase()).collect();
    let processors = match processor {
        Processor::Native if instructions.is_empty() => "the processor that built it".to_owned(),
        Processor::Native => format!("processors with {}", instructions.join(", ")),
        level => format!("processors of level {}", level.name()),
    };
    let said = manifest["description"].as_str().unwrap_or_default();
    manifest["description"] =
        json!(format!("{said} Built for {}, and for {processors}.", devices.join(", ")));
}

/// Puts the toolchain in place and gives cargo's configuration; none, after saying why, where it cannot be had.
pub fn install() -> Result<Option<PathBuf>> {
    let config = shell::build_dir().join(CONFIG);
    if let Err(why) = toolchain::cpu() {
        eprintln!("  left out: the engine llama-cpp, and with it GGUF models: {why:#}");
        if config.exists() {
            std::fs::remove_file(&config).with_context(|| format!("cannot remove {}", config.display()))?;
        }
        return Ok(None);
    }
    let text = config_text(Processor::Native);
    let before = std::fs::read_to_string(&config).ok();
    if before.as_ref().is_some_and(|before| *before != text) {
        // cmake keeps what it was told first.
        for profile in [&[][..], &["--release"]] {
            shell::run(
                shell::cargo().args(["clean", "--quiet", "--package", "llama-cpp-sys-2"]).args(profile),
            )?;
        }
    }
    write(&config, &text)?;
    Ok(Some(config))
}

/// What cargo is told for a command about the package, `features` being the devices of the build.
pub fn arguments(config: &Path, features: &str) -> Vec<OsString> {
    let words = ["--locked", "--package", PLUGIN.0, "--features", features, "--config"];
    words.into_iter().map(OsString::from).chain([config.as_os_str().to_owned()]).collect()
}

/// Left as it is where it says so already.
fn write(config: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(config).is_ok_and(|there| there == text) {
        return Ok(());
    }
    std::fs::create_dir_all(shell::build_dir())
        .and_then(|()| std::fs::write(config, text))
        .with_context(|| format!("cannot write {}", config.display()))
}

/// The environment of the build script.
fn config_text(processor: Processor) -> String {
    let mut text = String::from("# Written by `cargo xtask` for this machine.\n[env]\n");
    let mut set = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} = \"{value}\"");
    };
    // Optimized whatever the profile is: the tests wait for it, and no profile compiles it anew.
    set("LLAMA_LIB_PROFILE", "Release");
    // Not CC and CXX: other packages would be compiled again for them.
    if let Some(clang) = toolchain::clang().filter(|_| !cfg!(windows)) {
        set("CMAKE_C_COMPILER", clang);
        set("CMAKE_CXX_COMPILER", &clang.replace("clang", "clang++"));
    }
    for instruction in processor.instructions() {
        set(instruction, "ON");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_names_the_devices_and_processors_of_its_build() {
        let mut manifest = json!({"devices": ["cpu"], "description": "GGUF models."});
        describe(&mut manifest, &["vulkan", "cpu"], Processor::V3);
        assert_eq!(manifest["devices"], json!(["vulkan", "cpu"]));
        let expected = "GGUF models. Built for vulkan, cpu, and for processors of level x86-64-v3.";
        assert_eq!(manifest["description"], expected);
    }

    #[test]
    fn the_best_device_comes_first() {
        let mut devices = [Device::Cpu, Device::Vulkan, Device::Cuda];
        devices.sort_unstable();
        assert_eq!(devices.map(Device::name), ["cuda", "vulkan", "cpu"]);
    }
}
