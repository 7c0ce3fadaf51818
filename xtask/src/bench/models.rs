//! Writes the random weights that `cargo xtask bench cpu` runs on: ours as safetensors, the peer's as GGUF.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::build::{self, binary_name};
use crate::shell;

const SHAPES: [&str; 2] = ["small", "20b"];
/// The peer's files of a shape differ in what everything but the experts is stored in.
const FORMS: [&str; 2] = ["bf16", "q8_0"];

/// A file or folder that is there is taken for whole: each is made under another name first.
pub fn write_missing(folder: &Path, peer: bool) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for shape in SHAPES {
        write(folder, shape, &["--shape", shape])?;
        for form in FORMS.iter().filter(|_| peer) {
            write(folder, &format!("{shape}-{form}.gguf"), &["--shape", shape, "--gguf", form])?;
        }
    }
    Ok(())
}

/// The file that `cargo xtask bench llama` serves.
pub fn write_llama_file(folder: &Path) -> Result<PathBuf> {
    const NAME: &str = "small-q8_0.gguf";
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    write(folder, NAME, &["--shape", "small", "--gguf", "q8_0"])?;
    Ok(folder.join(NAME))
}

fn write(folder: &Path, name: &str, arguments: &[&str]) -> Result<()> {
    let target = folder.join(name);
    if target.exists() {
        return Ok(());
    }
    let program = build::build(true, &["gpt-oss-synth"])?.join(binary_name("gpt-oss-synth"));
    let partial = folder.join(format!("{name}.partial"));
    let out = [OsStr::new("--out"), partial.as_os_str()];
    shell::run(shell::command(program).args(arguments).args(out))?;
    std::fs::rename(&partial, &target).with_context(|| format!("cannot name {}", target.display()))
}
