//! Documents that programs write: the checked-in file has to be what the program prints today.

use anyhow::{Context, Result, bail};

use crate::{build, shell};

/// The file and the words that make the binary print it.
const DOCUMENTS: &[(&str, &[&str])] = &[
    ("docs/configuration.md", &["reference", "configuration"]),
    ("docs/commands.md", &["reference", "commands"]),
];

pub fn check() -> Result<()> {
    let mut stale = Vec::new();
    for (file, text) in documents()? {
        if std::fs::read_to_string(shell::root().join(file)).ok() != Some(text) {
            stale.push(file);
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    bail!("out of date: {}\nhint: `cargo xtask docs` writes them anew", stale.join(", "))
}

/// `cargo xtask docs`.
pub fn write() -> Result<()> {
    for (file, text) in documents()? {
        let path = shell::root().join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("  wrote {file}");
    }
    Ok(())
}

fn documents() -> Result<Vec<(&'static str, String)>> {
    let binary = build::program("llm-router")?;
    DOCUMENTS
        .iter()
        .map(|(file, words)| Ok((*file, shell::output(shell::command(&binary).args(*words))?)))
        .collect()
}
