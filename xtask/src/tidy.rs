//! The tree's own rules, each checked on every file that git knows or would add.

mod generated;
mod rules;

use std::path::PathBuf;

use anyhow::{Result, bail};
pub use generated::write as write_generated;

use crate::metadata::Metadata;
use crate::{arrows, shell};

/// A text file of the tree.
pub struct File {
    /// From the root, `/`-separated.
    pub path: String,
    pub text: String,
}

pub fn check() -> Result<()> {
    let files = files()?;
    let mut complaints: Vec<String> = files.iter().flat_map(rules::check).collect();
    for check in [|| arrows::check(&Metadata::read()?), generated::check as fn() -> Result<()>] {
        if let Err(e) = check() {
            complaints.push(format!("{e:#}"));
        }
    }
    if complaints.is_empty() {
        eprintln!("  {} files are tidy", files.len());
        return Ok(());
    }
    bail!("the tree is not tidy:\n{}", complaints.join("\n"))
}

/// Files that are text; pictures and weights are left out.
fn files() -> Result<Vec<File>> {
    let list = shell::output(shell::command("git").args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let root = shell::root();
    let read = |path: &str| -> Option<File> {
        let text = std::fs::read_to_string(root.join(PathBuf::from(path))).ok()?;
        Some(File { path: path.to_owned(), text })
    };
    Ok(list.split('\0').filter(|p| !p.is_empty()).filter_map(read).collect())
}
