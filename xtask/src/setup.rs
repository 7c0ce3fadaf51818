//! Installs what the tests need into `build/`, after saying what and why.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell;

const REQUIREMENTS: &str = "tests/clients/requirements.txt";
const NODE_PACKAGE: &str = "tests/clients/package.json";
const NODE_LOCK: &str = "tests/clients/package-lock.json";

/// Where Debian puts the Vulkan loader, and others do.
const LOADERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libvulkan.so.1",
    "/usr/lib/aarch64-linux-gnu/libvulkan.so.1",
    "/usr/lib64/libvulkan.so.1",
    "/usr/lib/libvulkan.so.1",
];

/// Seconds for another apt that is at work, such as that of a system which updates itself; its own choice is to fail at once.
const APT_WAITS: &str = "-oDPkg::Lock::Timeout=300";

/// What the set-up has put in place.
pub struct Tools {
    /// The Python of the virtual environment, with the `openai` and `huggingface_hub` packages.
    pub python: PathBuf,
    /// The folder whose `node_modules` holds the `openai` package.
    pub node_dir: PathBuf,
    /// Node.js itself.
    pub node: PathBuf,
    pub cargo_deny: PathBuf,
}

/// Brings every tool in place. A second run finds them and takes no time.
pub fn install() -> Result<Tools> {
    let build = shell::build_dir();
    std::fs::create_dir_all(&build).with_context(|| format!("cannot create {}", build.display()))?;
    let venv = build.join("venv");
    let tools = Tools {
        python: executable(&venv, "python"),
        node_dir: build.join("node"),
        node: executable(&venv, "node"),
        cargo_deny: executable(&venv, "cargo-deny"),
    };
    python_packages(&venv, &tools)?;
    node_packages(&venv, &tools)?;
    software_gpu()?;
    Ok(tools)
}

/// A Vulkan driver that computes on the processor, and the checker of what the kernels become for it.
pub fn software_gpu() -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    let drivers = std::fs::read_dir("/usr/share/vulkan/icd.d").into_iter().flatten().flatten();
    if !drivers.into_iter().any(|d| d.file_name().to_string_lossy().starts_with("lvp_")) {
        apt_install(
            "mesa-vulkan-drivers",
            "lavapipe, on which the kernels in WGSL are tested without a GPU",
        )?;
    }
    if !LOADERS.iter().any(|loader| Path::new(loader).exists()) {
        apt_install("libvulkan1", "the Vulkan loader, through which lavapipe is found")?;
    }
    // Where there is a wheel of a newer one, it is among the Python packages.
    if !cfg!(target_arch = "x86_64") && shell::output(shell::command("spirv-val").arg("--version")).is_err() {
        apt_install("spirv-tools", "spirv-val, which checks what the kernels in WGSL become")?;
    }
    Ok(())
}

/// Rust links through the system's C compiler.
pub fn linker() -> Result<()> {
    if cfg!(windows) || shell::output(shell::command("cc").arg("--version")).is_ok() {
        return Ok(());
    }
    apt_install("gcc", "a C compiler, which Rust links with")?;
    apt_install("libc6-dev", "the C library's files for linking")
}

fn python_packages(venv: &Path, tools: &Tools) -> Result<()> {
    let wanted = read(REQUIREMENTS)?;
    let installed = venv.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|have| have == wanted) && tools.python.exists() {
        return Ok(());
    }
    say(
        "the official Python clients, Node.js and cargo-deny",
        "the system tests speak with the clients that users have, and the licences of dependencies are checked",
        &format!("{} through pip into build/venv", REQUIREMENTS),
    );
    if !tools.python.exists() {
        create_venv(venv)?;
    }
    shell::run(
        shell::command(&tools.python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--requirement", REQUIREMENTS]),
    )?;
    std::fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))
}

fn create_venv(venv: &Path) -> Result<()> {
    let python = if cfg!(windows) { "python" } else { "python3" };
    // Debian has a python3 whose venv module cannot make an environment; the module it lacks is ensurepip.
    let usable = shell::output(shell::command(python).args(["-c", "import venv, ensurepip"])).is_ok();
    if !usable {
        apt_install(
            "python3-venv",
            "Python with its venv module, to install the official clients apart from the system",
        )?;
    }
    shell::run(shell::command(python).args(["-m", "venv"]).arg(venv))
}

fn node_packages(venv: &Path, tools: &Tools) -> Result<()> {
    let wanted = read(NODE_PACKAGE)? + &read(NODE_LOCK)?;
    let installed = tools.node_dir.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    say(
        "the official Node client",
        "the system tests speak with it",
        &format!("{NODE_PACKAGE} through npm into build/node"),
    );
    let dir = &tools.node_dir;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for file in [NODE_PACKAGE, NODE_LOCK] {
        let from = shell::root().join(file);
        let to = dir.join(from.file_name().expect("the constants name files"));
        std::fs::copy(&from, &to).with_context(|| format!("cannot copy {file} to {}", to.display()))?;
    }
    shell::run(shell::command(executable(venv, "npm")).current_dir(dir).args([
        "ci",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--loglevel=error",
    ]))?;
    std::fs::write(&installed, wanted).with_context(|| format!("cannot write {}", installed.display()))
}

/// Installs a Debian package when this is a Debian and we may; otherwise says what a person has to do.
pub fn apt_install(package: &str, why: &str) -> Result<()> {
    if shell::output(shell::command("apt-get").arg("--version")).is_err() {
        bail!(
            "{why} is missing\nhint: install it with this system's package manager and run the command again"
        );
    }
    say(package, why, "apt-get");
    let mut sudo = Vec::new();
    if shell::output(shell::command("id").arg("-u"))?.trim() != "0" {
        sudo.push("sudo");
    }
    let apt = |words: &[&str]| {
        let start = sudo.iter().copied().chain(["apt-get", APT_WAITS]);
        let line: Vec<_> = start.chain(words.iter().copied()).collect();
        shell::run(shell::command(line[0]).args(&line[1..]).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "-qq"])?;
    apt(&["install", "-y", "-qq", "--no-install-recommends", package]).with_context(|| {
        format!("cannot install {package}\nhint: install it by hand and run the command again")
    })
}

pub fn say(what: &str, why: &str, how: &str) {
    eprintln!("  missing: {what}\n      why: {why}\n  install: {how}");
}

fn read(file: &str) -> Result<String> {
    std::fs::read_to_string(shell::root().join(file)).with_context(|| format!("cannot read {file}"))
}

fn executable(venv: &Path, name: &str) -> PathBuf {
    if cfg!(windows) { venv.join("Scripts").join(format!("{name}.exe")) } else { venv.join("bin").join(name) }
}
