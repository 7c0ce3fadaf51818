//! One router for a data folder: the lock that says so, and the note that says where it listens.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// What a running router leaves in its data folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub url: String,
    pub pid: u32,
    pub version: String,
}

/// Held while the router runs. The system frees the lock with the process, however that ends.
pub struct Instance {
    note_path: PathBuf,
    _lock: File,
}

pub enum Claim {
    /// Nobody else runs with this folder.
    Ours(Instance),
    /// Somebody does. The note is missing for the moment between their lock and their listener.
    Theirs(Option<Note>),
}

pub fn claim(data_dir: &Path) -> Result<Claim> {
    std::fs::create_dir_all(data_dir).with_context(|| {
        format!("cannot create the data folder {}; name another with --data-dir", data_dir.display())
    })?;
    // The lock has a file of its own: on Windows a locked file cannot be read by others.
    let path = data_dir.join("router.lock");
    let lock = File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(Claim::Ours(Instance { note_path: note_path(data_dir), _lock: lock })),
        Err(TryLockError::WouldBlock) => Ok(Claim::Theirs(read_note(data_dir))),
        Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// The router that runs with this folder, if one does.
pub fn running(data_dir: &Path) -> Option<Note> {
    // Without the lock file nothing has run here, and asking must not make folders.
    if !data_dir.join("router.lock").exists() {
        return None;
    }
    match claim(data_dir) {
        Ok(Claim::Theirs(note)) => note,
        Ok(Claim::Ours(_)) | Err(_) => None,
    }
}

impl Instance {
    /// Says where we listen. Whole or not at all: others read it at any time.
    pub fn announce(&self, url: &str) -> Result<()> {
        let note = Note {
            url: url.to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let partial = self.note_path.with_extension("partial");
        let text = serde_json::to_string(&note)?;
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, &self.note_path))
            .with_context(|| format!("cannot write {}", self.note_path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A note that stays is harmless: without the lock nobody believes it.
        let _ = std::fs::remove_file(&self.note_path);
    }
}

fn note_path(data_dir: &Path) -> PathBuf {
    data_dir.join("router.json")
}

fn read_note(data_dir: &Path) -> Option<Note> {
    serde_json::from_slice(&std::fs::read(note_path(data_dir)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_finds_the_first_and_the_third_nobody() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(running(dir.path()), None);
        let Claim::Ours(first) = claim(dir.path()).expect("the folder is ours") else {
            panic!("nobody else is there");
        };
        first.announce("http://127.0.0.1:1").expect("the note is written");
        let Claim::Theirs(Some(note)) = claim(dir.path()).expect("the lock can be tried") else {
            panic!("the first holds the lock and has left its note");
        };
        assert_eq!((note.url.as_str(), note.pid), ("http://127.0.0.1:1", std::process::id()));
        drop(first);
        assert_eq!(running(dir.path()), None);
        assert!(matches!(claim(dir.path()), Ok(Claim::Ours(_))));
    }
}
