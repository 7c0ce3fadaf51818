//! `cargo xtask test-windows`: builds the self-test for Windows and runs it under wine, on the cpu and on a software GPU.
//!
//! The standard library is built from source as for the other platforms; mingw links it. wine hands Vulkan on to this
//! machine's lavapipe, for which it wants a display: Xvfb is one that nobody sees. Its Direct3D 12 cannot compile kernels
//! and is not tried. On Windows `llm-router selftest` is all it takes.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::rust_src;
use crate::metadata::Metadata;
use crate::{setup, shell};

const TARGET: &str = "x86_64-pc-windows-gnu";
const PACKAGE: &str = "gpt-oss-selftest";
const LINKER: &str = "x86_64-w64-mingw32-gcc";
/// A program that has to be there, the Debian package that has it, and why.
const NEEDED: [(&str, &str, &str); 3] = [
    (LINKER, "gcc-mingw-w64-x86-64-posix", "programs for Windows are linked with it"),
    ("/usr/lib/wine/wine64", "wine64", "programs for Windows run under it"),
    ("Xvfb", "xvfb", "wine has Vulkan only where there is a display"),
];
/// Of one run of the self-test.
const DEADLINE_SECONDS: u32 = 600;
/// What Rust asks Windows for random numbers with; Debian's wine 8 has none of it.
const RANDOM: &str = r"#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T count) {
  return SystemFunction036(to, (ULONG)count);
}
";

pub fn test() -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "wine is used on Linux with an x86-64 processor only\nhint: on Windows, llm-router selftest does the same"
    );
    for (program, package, why) in NEEDED {
        // All three know the word or refuse it; only one that is not there cannot be started.
        if shell::command(program).arg("--version").output().is_err() {
            setup::apt_install(package, why)?;
        }
    }
    setup::software_gpu()?;
    let folder = shell::build_dir().join("wine");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let program = built(&folder)?;
    let display = Display::start()?;
    let wine = Wine { program, prefix: folder.join("prefix"), display: display.name.clone() };
    let adapters = wine.run(&["adapters"])?;
    ensure!(adapters.contains(r#""id":"vulkan:0""#), "under wine there is no vulkan:0, but\n{adapters}");
    for device in ["cpu", "vulkan:0"] {
        let report = wine.run(&["run", "--device", device])?;
        let ok = report.lines().filter(|line| line.contains(r#""verdict":"ok""#)).count();
        let demo = report.lines().find(|line| line.contains("demo model, answers"));
        ensure!(ok > 0 && demo.is_some(), "the self-test on {device} told nothing:\n{report}");
        eprintln!("  {device} under wine: {ok} checks, all ok");
    }
    Ok(())
}

/// The self-test, with beside it what wine lacks.
fn built(folder: &Path) -> Result<PathBuf> {
    let library = rust_src::library()?;
    let target = Metadata::read()?.target_directory.join("windows");
    shell::run(
        shell::cargo()
            .args(["build", "--locked", "-Zbuild-std", "--target", TARGET, "--package", PACKAGE])
            // build-std is unstable; this says we know. Nothing made this way is shipped.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("__CARGO_TESTS_ONLY_SRC_ROOT", &library)
            // Apart from the everyday folder: another standard library would push that one's files out.
            .env("CARGO_TARGET_DIR", &target),
    )?;
    let program = folder.join(format!("{PACKAGE}.exe"));
    let made = target.join(TARGET).join("debug").join(format!("{PACKAGE}.exe"));
    std::fs::copy(&made, &program).with_context(|| format!("cannot copy {}", made.display()))?;
    let source = folder.join("random.c");
    std::fs::write(&source, RANDOM).with_context(|| format!("cannot write {}", source.display()))?;
    let random = folder.join("bcryptprimitives.dll");
    shell::run(shell::command(LINKER).arg("-shared").arg("-o").arg(random).arg(source).arg("-ladvapi32"))?;
    Ok(program)
}

struct Wine {
    program: PathBuf,
    prefix: PathBuf,
    display: String,
}

impl Wine {
    /// What the self-test prints.
    fn run(&self, words: &[&str]) -> Result<String> {
        eprintln!("  {PACKAGE}.exe {}", words.join(" "));
        let output = shell::command("timeout")
            .arg(DEADLINE_SECONDS.to_string())
            .arg(NEEDED[1].0)
            .arg(&self.program)
            .args(words)
            .env("WINEPREFIX", &self.prefix)
            // Its own remarks, of which there are many.
            .env("WINEDEBUG", "-all")
            .env("DISPLAY", &self.display)
            .output()
            .context("cannot start timeout, which runs wine")?;
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        // What failed is a line of the report, and not of the errors.
        ensure!(
            output.status.success(),
            "{PACKAGE}.exe {} under wine ended with {} ({DEADLINE_SECONDS} s at most)\n{report}{}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(report)
    }
}

/// A display that ends with us.
struct Display {
    server: Child,
    name: String,
}

impl Display {
    fn start() -> Result<Display> {
        let mut server = shell::command("Xvfb")
            .args(["-displayfd", "1", "-nolisten", "tcp", "-screen", "0", "640x480x24"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start Xvfb")?;
        let mut number = String::new();
        let out = server.stdout.take().expect("asked for");
        let read = BufReader::new(out).read_line(&mut number);
        let display = Display { server, name: format!(":{}", number.trim()) };
        read.context("cannot read which display Xvfb has")?;
        if number.trim().is_empty() {
            bail!("Xvfb ended before it had a display");
        }
        Ok(display)
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        // Nothing is left to do for one that has ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
