//! Finds the standard library's sources for the compiler in use.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell;

/// Debian's suite that carries current compilers' sources. They are the same for every architecture and every Debian.
const SUITE: &str = "trixie-backports";
const PACKAGE: &str = "rust-src";

/// The folder `library` with the workspace of the standard library.
pub fn library() -> Result<PathBuf> {
    let sysroot = shell::output(shell::command("rustc").args(["--print", "sysroot"]))?;
    let component = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if component.join("Cargo.lock").exists() {
        return Ok(component);
    }
    let version = compiler_version()?;
    let dir = shell::build_dir().join(format!("rust-src-{version}"));
    let library = dir.join(format!("usr/src/rustc-{version}/library"));
    if !library.join("Cargo.lock").exists() {
        from_debian(&version, &dir)?;
    }
    if !library.join("Cargo.lock").exists() {
        bail!("Debian's {PACKAGE} of Rust {version} does not hold {}", library.display());
    }
    Ok(library)
}

/// `1.95.0`.
fn compiler_version() -> Result<String> {
    let verbose = shell::output(shell::command("rustc").arg("-vV"))?;
    let line = verbose.lines().find_map(|l| l.strip_prefix("release: "));
    Ok(line.context("rustc -vV names no release")?.to_owned())
}

/// Fetches and unpacks the package. Everything of apt's that is written lies under `build/apt`, so that this machine's
/// own sources stay as they are and no root is needed.
fn from_debian(version: &str, into: &Path) -> Result<()> {
    eprintln!("  missing: the standard library's sources of Rust {version}");
    eprintln!("      why: to check the code for Windows and macOS on this machine");
    eprintln!("  install: Debian's {PACKAGE} from {SUITE} (45 MB), unpacked into build/ only");
    let apt = Apt::new().with_context(|| {
        format!("no {PACKAGE} here\nhint: `rustup component add rust-src` gives the same sources")
    })?;
    let listed = apt.run("apt-cache", &["madison", PACKAGE])?;
    let wanted = format!("{version}+");
    let debian_version = listed
        .lines()
        .filter_map(|line| line.split('|').nth(1).map(str::trim))
        .find(|v| v.starts_with(&wanted))
        .with_context(|| {
            format!(
                "{SUITE} has no {PACKAGE} of Rust {version}; it has\n{listed}\
                 hint: `rustup component add rust-src`, or a compiler that {SUITE} has"
            )
        })?;
    apt.run("apt-get", &["-qq", "download", &format!("{PACKAGE}={debian_version}")])?;
    let package = only_file(&apt.dir, ".deb")?;
    let partial = into.with_extension("partial");
    std::fs::create_dir_all(&partial).with_context(|| format!("cannot create {}", partial.display()))?;
    shell::output(shell::command("dpkg").arg("-x").arg(&package).arg(&partial))?;
    std::fs::rename(&partial, into).with_context(|| format!("cannot move to {}", into.display()))?;
    std::fs::remove_file(&package).with_context(|| format!("cannot remove {}", package.display()))
}

/// An apt whose sources, lists and downloads lie in `build/apt`.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn new() -> Result<Self> {
        // The address this machine's own apt uses for Debian, so that a mirror or proxy set up there serves here too.
        let targets = shell::output(shell::command("apt-get").args([
            "indextargets",
            "--format",
            "$(ORIGIN) $(LABEL) $(REPO_URI)",
        ]))?;
        let address = targets
            .lines()
            .find_map(|line| line.strip_prefix("Debian Debian "))
            .context("apt here has no Debian source")?;
        let dir = shell::build_dir().join("apt");
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = dir.join(folder);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let source = format!("deb [signed-by={keys}] {address} {SUITE} main\n");
        let list = dir.join("sources.list");
        std::fs::write(&list, source).with_context(|| format!("cannot write {}", list.display()))?;
        let apt = Apt { dir };
        apt.run("apt-get", &["-qq", "update"])?;
        Ok(apt)
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let option = |name: &str, path: &str| format!("-o{name}={}", self.dir.join(path).display());
        shell::output(
            shell::command(program)
                .current_dir(&self.dir)
                .arg(option("Dir::Etc::sourcelist", "sources.list"))
                .arg("-oDir::Etc::sourceparts=/dev/null")
                .arg(option("Dir::State::lists", "lists"))
                .arg(option("Dir::Cache", "cache"))
                // As root apt drops to a user of its own, who may not be able to write below this folder.
                .arg("-oAPT::Sandbox::User=root")
                .args(words),
        )
    }
}

fn only_file(dir: &Path, suffix: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .find(|p| p.to_string_lossy().ends_with(suffix))
        .with_context(|| format!("apt left no {suffix} in {}", dir.display()))
}
