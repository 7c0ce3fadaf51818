//! Runs other programs and says what it runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The repository's root. `cargo run` tells where this package lies; its parent is the root.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().expect("xtask lies in a folder of the repository").to_path_buf()
}

/// Where chores put what they install and make; ignored by git.
pub fn build_dir() -> PathBuf {
    root().join("build")
}

/// The cargo that runs us.
pub fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A program that starts in the repository's root and reads nothing.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(std::process::Stdio::null());
    command
}

/// Shows the command, runs it, and fails when it does.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("  $ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs without showing anything and gives what it printed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}\n{}", shown(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} printed bytes that are no text", shown(command)))
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}
