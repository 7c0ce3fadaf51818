//! A stand-in for the C compiler and archiver of a platform that is only type-checked: both write empty files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

pub struct Compiler {
    pub cc: PathBuf,
    pub ar: PathBuf,
    /// An empty folder in the place of a platform's SDK.
    pub sdk: PathBuf,
}

/// What `cc` is asked for is the object after `-o` (or `-Fo`), or what `-E` prints: there the questions that the `cc`
/// crate puts to tell compilers apart get clang's answer, because clang serves every one of these targets.
const CC: &str = r#"#!/bin/sh
# Written by `cargo xtask check-platforms`: makes empty objects, so that build scripts run where nothing is linked.
previous=
for word in "$@"; do
  case "$word" in
    -E) echo '#pragma clang'; echo '"clang"'; exit 0 ;;
    --version|-v) echo 'clang version 19.0.0'; exit 0 ;;
    -Fo*) : > "${word#-Fo}" ;;
  esac
  [ "$previous" = -o ] && : > "$word"
  previous=$word
done
exit 0
"#;

const AR: &str = r#"#!/bin/sh
# Written by `cargo xtask check-platforms`: the first word that looks like an archive is made, empty.
for word in "$@"; do
  case "$word" in
    -out:*) : > "${word#-out:}"; exit 0 ;;
    /out:*) : > "${word#/out:}"; exit 0 ;;
    *.a|*.lib) : > "$word"; exit 0 ;;
  esac
done
exit 0
"#;

pub fn compiler() -> Result<Compiler> {
    let dir = shell::build_dir().join("stand-in");
    let sdk = dir.join("sdk");
    std::fs::create_dir_all(&sdk).with_context(|| format!("cannot create {}", sdk.display()))?;
    // Named clang: build scripts look at the name to choose between the gcc and the MSVC way of spelling options.
    let compiler = Compiler { cc: dir.join("clang"), ar: dir.join("llvm-ar"), sdk };
    write_program(&compiler.cc, CC)?;
    write_program(&compiler.ar, AR)?;
    Ok(compiler)
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    shell::output(shell::command("chmod").arg("+x").arg(path)).map(|_| ())
}
