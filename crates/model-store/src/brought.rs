//! Remembers which files of the shared cache came from us, so that a removal takes those and nothing else.
//!
//! The cache belongs to the user's other tools as well. A file that lay there before is theirs for ever, also when a model of
//! ours uses it. Losing this memory costs disk space and nothing else: what is not known to be ours stays.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

const FILE_NAME: &str = "brought.json";
const VERSION: u32 = 1;
/// Some ten thousand files; a longer memory is broken.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// Size in bytes by absolute path.
    files: BTreeMap<PathBuf, u64>,
}

#[derive(Debug)]
pub(crate) struct Brought {
    path: PathBuf,
    files: Mutex<BTreeMap<PathBuf, u64>>,
}

impl Brought {
    /// What cannot be read is said, and counts as nothing.
    pub fn open(state_dir: &Path) -> Brought {
        let path = state_dir.join(FILE_NAME);
        let files = read(&path).unwrap_or_else(|reason| {
            tracing::warn!(path = %path.display(), reason, "what was brought into the cache is not known; it stays there");
            BTreeMap::new()
        });
        Brought { path, files: Mutex::new(files) }
    }

    pub fn note(&self, file: &Path, size: u64) {
        let mut files = self.files();
        if files.insert(file.to_owned(), size) != Some(size) {
            self.save(&files);
        }
    }

    pub fn forget(&self, file: &Path) {
        let mut files = self.files();
        if files.remove(file).is_some() {
            self.save(&files);
        }
    }

    /// Its size, if it is ours.
    pub fn size(&self, file: &Path) -> Option<u64> {
        self.files().get(file).copied()
    }

    /// In place of the old one, so that an end in between leaves one of the two whole.
    fn save(&self, files: &BTreeMap<PathBuf, u64>) {
        let kept = Kept { version: VERSION, files: files.clone() };
        let written = serde_json::to_vec(&kept).map_err(std::io::Error::other).and_then(|json| {
            let mut new = tempfile::NamedTempFile::new_in(self.path.parent().unwrap_or(Path::new(".")))?;
            new.write_all(&json)?;
            new.persist(&self.path).map_err(|e| e.error)?;
            Ok(())
        });
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "what was brought into the cache cannot be noted");
        }
    }

    /// Nothing that holds the lock can panic half way through a change.
    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, u64>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<BTreeMap<PathBuf, u64>, String> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > FILE_BYTES_MAX => return Err(format!("it has {} bytes", meta.len())),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(e.to_string()),
    }
    let json = std::fs::read(path).map_err(|e| e.to_string())?;
    let kept: Kept = serde_json::from_slice(&json).map_err(|e| e.to_string())?;
    if kept.version != VERSION {
        return Err(format!("it has version {}, this is {VERSION}", kept.version));
    }
    Ok(kept.files)
}
