//! `cargo xtask cuda-kernels` and `gpu-bundle`: the kernels for NVIDIA GPUs, compiled without one, and a folder with
//! everything that is to be seen on a machine that has one.

pub mod rows;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{build, setup, shell};

/// What compiles the kernels: images of this version load on drivers from 525 on, from 570 for Blackwell.
const NVRTC: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";
/// In the wheel, the folder of its libraries.
const LIBRARIES: &str = if cfg!(windows) { "nvidia/cuda_nvrtc/bin" } else { "nvidia/cuda_nvrtc/lib" };
const KERNELS: &str = "engines/gpt-oss/cuda/kernels";
const CHECK: &str = "gpt-oss-cuda-check";
/// Packages whose programs a bundle has, and engines beside them.
const PROGRAMS: [&str; 3] = [CHECK, "gpt-oss-synth", "llm-router"];
const ENGINE: &str = "gpt-oss-plugin";
/// In a bundle: the programs, which `run.sh` unpacks.
const PACKED: &str = "programs.tar.gz";
/// A bundle is carried to other machines.
const BUNDLE_BYTES_MAX: u64 = 40 << 20;

/// Where `build.rs` of `gpt-oss-cuda` looks for images.
fn images() -> PathBuf {
    shell::build_dir().join("cuda-kernels")
}

/// Compiles the kernels for every target into `build/cuda-kernels` and checks what they use; the next build has them.
pub fn kernels() -> Result<()> {
    let (image_dir, kernels) = (images(), shell::root().join(KERNELS));
    let text = sources(&kernels)?;
    let stamp = image_dir.join("compiled-from.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == text) {
        eprintln!("  the kernels in {} are up to date", image_dir.display());
        return Ok(());
    }
    let libraries = nvrtc()?;
    let program = build::program(CHECK)?;
    let variable = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };
    let before = std::env::var_os(variable).unwrap_or_default();
    let paths = std::iter::once(libraries).chain(std::env::split_paths(&before));
    let mut command = shell::command(program);
    command.arg("compile").arg("--out").arg(&image_dir).arg("--kernels").arg(&kernels);
    shell::run(command.env(variable, std::env::join_paths(paths)?))?;
    std::fs::write(&stamp, text).with_context(|| format!("cannot write {}", stamp.display()))
}

/// All that the images are made from, in one text.
fn sources(kernels: &Path) -> Result<String> {
    let mut text = format!("{NVRTC}\n");
    for path in files(kernels)? {
        text += &std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(text)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}

/// The compiler's libraries, installed if they are not there.
fn nvrtc() -> Result<PathBuf> {
    let folder = shell::build_dir().join("nvrtc");
    let installed = folder.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|have| have == NVRTC) {
        return Ok(folder.join(LIBRARIES));
    }
    let tools = setup::install()?;
    setup::say(
        "NVRTC, the compiler of CUDA C++ as a library",
        "the kernels for NVIDIA GPUs are compiled ahead of time, so that users need a driver only",
        &format!("{NVRTC} through pip into {}", folder.display()),
    );
    shell::run(
        shell::command(&tools.python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--no-deps", "--upgrade", "--target"])
            .arg(&folder)
            .arg(NVRTC),
    )?;
    std::fs::write(&installed, NVRTC).with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(folder.join(LIBRARIES))
}

/// The operators once more, with kernels that watch where they read and write.
pub fn sanitized_tests() -> Result<()> {
    let asan = shell::output(shell::command("gcc").arg("-print-file-name=libasan.so"))?;
    let target = crate::metadata::Metadata::read()?.target_directory.join("sanitized");
    shell::run(
        shell::cargo()
            .args(["test", "--package", "gpt-oss-cuda", "--test", "operators", "--locked"])
            .env("GPT_OSS_CUDA_SANITIZE", "address,undefined")
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", format!("env LD_PRELOAD={}", asan.trim()))
            // Fibres have stacks of their own; what the test program itself forgets is not at stake.
            .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0"),
    )
}

/// The kernels once more, where memory that two threads use with no barrier between them is a fault, whoever came first. The
/// thread sanitizer is told of fibres by the emulation; the test harness is not instrumented, so a program without threads runs them.
pub fn raced_kernels() -> Result<()> {
    let tsan = shell::output(shell::command("gcc").arg("-print-file-name=libtsan.so"))?;
    let target = crate::metadata::Metadata::read()?.target_directory.join("sanitized");
    let cargo = |words: &[&str]| {
        let mut command = shell::cargo();
        command
            .args(words)
            .env("GPT_OSS_CUDA_SANITIZE", "thread")
            .env("CARGO_TARGET_DIR", &target)
            // Where addresses are spread too far the sanitizer does not start.
            .env(
                "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
                format!("env LD_PRELOAD={} setarch -R", tsan.trim()),
            );
        command
    };
    let mut fault =
        cargo(&["test", "--package", "gpt-oss-cuda", "--test", "emulation", "--locked", "--", "a_missing"]);
    let said = fault.output().context("cannot run the kernel that lacks a barrier")?;
    if !String::from_utf8_lossy(&said.stderr).contains("data race emulation/faults.cu") {
        bail!("the thread sanitizer did not find the barrier that fault_missing_barrier lacks");
    }
    shell::run(&mut cargo(&["run", "--package", CHECK, "--locked", "--", "devices", "--emulated"]))
}

/// `cargo xtask gpu-bundle`: one folder that needs only a driver.
pub fn bundle() -> Result<()> {
    kernels()?;
    let folder = shell::build_dir().join("gpu-bundle");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let bin_dir = build::build(true, &[&PROGRAMS[..], &[ENGINE]].concat())?;
    let bin = folder.join("bin");
    for program in PROGRAMS {
        let name = build::binary_name(program);
        copy(&bin_dir.join(&name), &bin.join(&name))?;
        strip(&bin.join(&name))?;
    }
    let engine =
        build::lay_out(ENGINE, &shell::root().join("engines/gpt-oss/plugin"), &bin_dir, &bin_dir, |_| {})?;
    let name = engine.file_name().context("an engine's folder has a name")?;
    for file in files(&engine)? {
        let to = bin.join("engines").join(name).join(file.file_name().context("a file has a name")?);
        copy(&file, &to)?;
        if to.extension().is_none_or(|kind| kind != "json") {
            strip(&to)?;
        }
    }
    // Half of what they are: the router alone has 26 MB.
    shell::run(shell::command("tar").arg("-czf").arg(folder.join(PACKED)).arg("-C").arg(&folder).arg("bin"))?;
    std::fs::remove_dir_all(&bin).with_context(|| format!("cannot remove {}", bin.display()))?;
    let commit = shell::output(shell::command("git").args(["rev-parse", "--short", "HEAD"]))?;
    std::fs::write(folder.join(rows::COMMIT), commit.trim()).context("cannot write the commit's name")?;
    for (from, to) in [(KERNELS, "kernels"), ("assets/demo-model", "demo-model")] {
        for file in files(&shell::root().join(from))? {
            let name = file.file_name().context("a file has a name")?.to_owned();
            copy(&file, &folder.join(to).join(name))?;
        }
    }
    copy(&shell::root().join("engines/gpt-oss/cuda-check/run.sh"), &folder.join("run.sh"))?;
    let bytes = size(&folder)?;
    eprintln!("  {} has {:.1} MiB", folder.display(), bytes as f64 / f64::from(1 << 20));
    if bytes > BUNDLE_BYTES_MAX {
        bail!("the bundle has {bytes} bytes, and may have {BUNDLE_BYTES_MAX}");
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file is in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    std::fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Symbols are most of a program.
fn strip(program: &Path) -> Result<()> {
    if cfg!(windows) { Ok(()) } else { shell::run(shell::command("strip").arg(program)) }
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for path in files(folder)? {
        bytes += if path.is_dir() { size(&path)? } else { path.metadata()?.len() };
    }
    Ok(bytes)
}
