//! Finds the standard library's sources for the compiler in use.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::debian::Suite;
use crate::{setup, shell};

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

fn from_debian(version: &str, into: &Path) -> Result<()> {
    setup::say(
        &format!("the standard library's sources of Rust {version}"),
        "to check the code for Windows and macOS on this machine",
        &format!("Debian's {PACKAGE} from {SUITE} (45 MB), unpacked into build/ only"),
    );
    let suite = Suite::open(SUITE).with_context(|| {
        format!("no {PACKAGE} here\nhint: `rustup component add rust-src` gives the same sources")
    })?;
    let versions = suite.versions(PACKAGE)?;
    let wanted = format!("{version}+");
    let debian_version = versions.iter().find(|v| v.starts_with(&wanted)).with_context(|| {
        format!(
            "{SUITE} has no {PACKAGE} of Rust {version}, only {}\nhint: `rustup component add rust-src`, or a compiler that \
             {SUITE} has",
            versions.join(", ")
        )
    })?;
    suite.unpack(PACKAGE, debian_version, into)
}
