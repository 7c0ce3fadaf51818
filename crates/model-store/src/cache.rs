//! The layout of the Hugging Face cache: where a file's bytes, its name in a commit, its lock and a branch's commit lie.
//!
//! ```text
//! models--org--name/blobs/<sha256 or git id>            the bytes
//! models--org--name/snapshots/<commit>/<path>           a relative link to them
//! models--org--name/refs/<revision>                     the commit a branch meant when it was last fetched
//! .locks/models--org--name/<blob>.lock                  held while a blob is made
//! ```
//!
//! Callers pass only names that [`model_manifest::Manifest::check`] accepted.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) mod lock;

/// How a file of a commit leads to its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkMode {
    /// As on every system that allows it.
    Symlink,
    /// On Windows without the right to make symbolic links.
    HardLink,
    /// On file systems without either: the bytes move into the snapshot, as the hub's own client does it.
    Move,
}

/// One cache folder.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
    mode: OnceLock<LinkMode>,
}

impl Cache {
    pub fn new(dir: PathBuf) -> Cache {
        Cache { dir, mode: OnceLock::new() }
    }

    /// For tests of what other systems do.
    pub fn with_mode(dir: PathBuf, mode: LinkMode) -> Cache {
        Cache { dir, mode: OnceLock::from(mode) }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn blob(&self, repo: &str, blob: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(blob)
    }

    /// Where a download is kept until it is whole. The hub's own client used the same name for long.
    pub fn incomplete(&self, repo: &str, blob: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(format!("{blob}.incomplete"))
    }

    pub fn snapshot(&self, repo: &str, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }

    pub fn file(&self, repo: &str, commit: &str, path: &str) -> PathBuf {
        below(self.snapshot(repo, commit), path)
    }

    pub fn lock(&self, repo: &str, blob: &str) -> PathBuf {
        self.dir.join(".locks").join(folder_name(repo)).join(format!("{blob}.lock"))
    }

    fn repo(&self, repo: &str) -> PathBuf {
        self.dir.join(folder_name(repo))
    }

    /// Makes `path` of `commit` lead to `blob`, which exists. Replaces what was there.
    pub fn link(&self, repo: &str, blob: &str, commit: &str, path: &str) -> std::io::Result<()> {
        let target = self.blob(repo, blob);
        let file = self.file(repo, commit, path);
        let parent = parent(&file)?;
        std::fs::create_dir_all(parent)?;
        match self.mode()? {
            LinkMode::Symlink => {
                // From snapshots/<commit>/<folders…>/ up to the repository, and down again.
                let up = "../".repeat(2 + path.matches('/').count());
                let target = PathBuf::from(format!("{up}blobs/{blob}"));
                replace(parent, &file, |new| symlink(&target, new))
            }
            LinkMode::HardLink => replace(parent, &file, |new| std::fs::hard_link(&target, new)),
            LinkMode::Move => std::fs::rename(&target, &file),
        }
    }

    /// Notes which commit a branch or tag means. A note that is there stays: the user's other tools made it, and a model
    /// that was registered long ago must not take them back in time.
    pub fn note_revision(&self, repo: &str, revision: &str, commit: &str) -> std::io::Result<()> {
        if revision == commit {
            return Ok(());
        }
        let file = below(self.repo(repo).join("refs"), revision);
        let parent = parent(&file)?;
        std::fs::create_dir_all(parent)?;
        // With the rights of any new file: other users of a shared cache read it.
        let make = |path: &Path| std::fs::File::options().write(true).create_new(true).open(path);
        let mut new = tempfile::Builder::new().prefix(".ref-").make_in(parent, make)?;
        new.write_all(commit.as_bytes())?;
        match new.persist_noclobber(&file) {
            Err(e) if e.error.kind() != std::io::ErrorKind::AlreadyExists => Err(e.error),
            _ => Ok(()),
        }
    }

    fn mode(&self) -> std::io::Result<LinkMode> {
        if let Some(mode) = self.mode.get() {
            return Ok(*mode);
        }
        std::fs::create_dir_all(&self.dir)?;
        let mode = probe(&self.dir)?;
        Ok(*self.mode.get_or_init(|| mode))
    }
}

/// Tries what the file system allows.
fn probe(dir: &Path) -> std::io::Result<LinkMode> {
    let scratch = tempfile::Builder::new().prefix(".llm-router-").tempdir_in(dir)?;
    let file = scratch.path().join("file");
    std::fs::write(&file, b"")?;
    if symlink(Path::new("file"), &scratch.path().join("symlink")).is_ok() {
        return Ok(LinkMode::Symlink);
    }
    let hard = std::fs::hard_link(&file, scratch.path().join("hard"));
    Ok(if hard.is_ok() { LinkMode::HardLink } else { LinkMode::Move })
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    // A link with forward slashes exists and leads nowhere.
    let target: PathBuf = target.components().collect();
    std::os::windows::fs::symlink_file(target, link)
}

/// Makes something under a name of its own, and moves it to where `file` was: nobody ever sees `file` missing.
fn replace(
    parent: &Path,
    file: &Path,
    make: impl FnMut(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let new = tempfile::Builder::new().prefix(".link-").make_in(parent, make)?;
    new.into_temp_path().persist(file).map_err(|e| e.error)
}

fn parent(file: &Path) -> std::io::Result<&Path> {
    file.parent().ok_or_else(|| std::io::Error::other("a path without a folder"))
}

/// Joins a `/`-separated path part by part, which gives this system's separators.
pub(crate) fn below(dir: PathBuf, path: &str) -> PathBuf {
    path.split('/').fold(dir, |dir, part| dir.join(part))
}

/// `models--org--name`.
fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

#[cfg(test)]
mod tests;
