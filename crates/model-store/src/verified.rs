//! Remembers which files were hashed, so that a start does not read 14 GB again.
//!
//! A file counts as unchanged while size, modification time and identity (inode, or creation time on Windows) are what
//! they were. The memory is one small JSON file in our own state folder; losing it costs time and nothing else.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::progress::{Phase, Tracker};

const FILE_NAME: &str = "verified.json";
const VERSION: u32 = 1;
/// Some ten thousand files; a longer memory is broken.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Bytes hashed between two looks at the clock and the cancellation.
const READ_BYTES: usize = 4 << 20;

/// What tells that a file is still the one that was hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    size: u64,
    /// Nanoseconds since 1970.
    modified_ns: u64,
    /// Unix: when the inode changed, which nothing but the system can set. Windows: 0.
    changed_ns: i64,
    device: u64,
    /// Windows: the creation time; there is no stable interface to the file index.
    inode: u64,
}

impl Identity {
    fn of(meta: &Metadata) -> Identity {
        let modified = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let modified_ns = modified.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        let (changed_ns, device, inode) = system_identity(meta);
        Identity { size: meta.len(), modified_ns, changed_ns, device, inode }
    }
}

#[cfg(unix)]
fn system_identity(meta: &Metadata) -> (i64, u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    (meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec()), meta.dev(), meta.ino())
}

#[cfg(windows)]
fn system_identity(meta: &Metadata) -> (i64, u64, u64) {
    use std::os::windows::fs::MetadataExt as _;
    (0, 0, meta.creation_time())
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    sha256: String,
    #[serde(flatten)]
    identity: Identity,
}

#[derive(Serialize, Deserialize)]
struct Memory {
    version: u32,
    files: BTreeMap<String, Record>,
}

/// The memory. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub struct Verified {
    file: Arc<PathBuf>,
    records: Arc<Mutex<BTreeMap<String, Record>>>,
}

/// Why a file has no hash.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("hashing {path} was cancelled")]
    Cancelled { path: PathBuf },
    #[error("{path} changed while it was hashed")]
    Changed { path: PathBuf },
}

impl Verified {
    /// Opens the memory in `state_dir`, which is created. An unreadable memory is logged and started anew.
    pub fn open(state_dir: &Path) -> std::io::Result<Verified> {
        std::fs::create_dir_all(state_dir)?;
        let file = state_dir.join(FILE_NAME);
        let records = match read(&file) {
            Ok(records) => records,
            Err(e) => {
                tracing::warn!(path = %file.display(), error = %e, "what was verified is forgotten; files are hashed again");
                BTreeMap::new()
            }
        };
        Ok(Verified { file: Arc::new(file), records: Arc::new(Mutex::new(records)) })
    }

    /// The remembered hash of a file that did not change since. Errors of the file system count as "not known".
    pub fn known(&self, path: &Path) -> Option<String> {
        let meta = std::fs::metadata(path).ok()?;
        let records = self.lock();
        let record = records.get(path.to_str()?)?;
        (record.identity == Identity::of(&meta)).then(|| record.sha256.clone())
    }

    /// The file's hash: remembered, or computed and remembered. Reads the whole file, so call it where blocking is allowed.
    /// `progress` gets the bytes read so far.
    pub fn sha256(
        &self,
        path: &Path,
        cancel: &CancellationToken,
        mut progress: impl FnMut(u64),
    ) -> Result<String, HashError> {
        if let Some(known) = self.known(path) {
            return Ok(known);
        }
        let read = |source| HashError::Read { path: path.to_owned(), source };
        let mut file = std::fs::File::open(path).map_err(read)?;
        let before = Identity::of(&file.metadata().map_err(read)?);
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; READ_BYTES];
        let mut done = 0;
        loop {
            if cancel.is_cancelled() {
                return Err(HashError::Cancelled { path: path.to_owned() });
            }
            let n = file.read(&mut buffer).map_err(read)?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            done += n as u64;
            progress(done);
        }
        if Identity::of(&file.metadata().map_err(read)?) != before {
            return Err(HashError::Changed { path: path.to_owned() });
        }
        let sha256 = hex(&hasher.finalize());
        self.remember_identity(path, before, sha256.clone());
        Ok(sha256)
    }

    /// [`Verified::sha256`] on a thread where blocking is allowed; what it reports goes to `tracker` as `name`. Dropping the
    /// future ends the reading.
    pub(crate) async fn sha256_of(
        &self,
        name: &str,
        path: &Path,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, HashError> {
        let (done, mut watch) = watch::channel(0);
        tracker.set(name, Phase::Verifying, 0);
        let (verified, path, stop) = (self.clone(), path.to_owned(), cancel.child_token());
        let _stop_when_dropped = stop.clone().drop_guard();
        let mut task = tokio::task::spawn_blocking(move || {
            verified.sha256(&path, &stop, |bytes| {
                done.send_replace(bytes);
            })
        });
        loop {
            tokio::select! {
                result = &mut task => return result.expect("hashing does not panic"),
                Ok(()) = watch.changed() => tracker.set(name, Phase::Verifying, *watch.borrow()),
            }
        }
    }

    /// Notes a hash that was computed while the file was written.
    pub(crate) fn remember(&self, path: &Path, sha256: &str) {
        if let Ok(meta) = std::fs::metadata(path) {
            self.remember_identity(path, Identity::of(&meta), sha256.to_owned());
        }
    }

    pub(crate) fn forget(&self, path: &Path) {
        if let Some(path) = path.to_str() {
            self.lock().remove(path);
        }
    }

    fn remember_identity(&self, path: &Path, identity: Identity, sha256: String) {
        // A path that is not UTF-8 is hashed every time.
        let Some(key) = path.to_str() else { return };
        let mut records = self.lock();
        records.insert(key.to_owned(), Record { sha256, identity });
        records.retain(|path, _| Path::new(path).exists());
        if let Err(e) = write(&self.file, &records) {
            tracing::warn!(path = %self.file.display(), error = %e, "what was verified cannot be written down; the next start hashes again");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.records.lock().expect("no holder of the lock can panic")
    }
}

fn read(file: &Path) -> std::io::Result<BTreeMap<String, Record>> {
    let opened = match std::fs::File::open(file) {
        Ok(opened) => opened,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(e),
    };
    let mut text = String::new();
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let memory: Memory = serde_json::from_str(&text)?;
    if memory.version != VERSION {
        return Err(std::io::Error::other(format!("version {}, this build reads {VERSION}", memory.version)));
    }
    Ok(memory.files)
}

/// Whole or not at all: a new file takes the old one's place.
fn write(file: &Path, records: &BTreeMap<String, Record>) -> std::io::Result<()> {
    let json = serde_json::to_vec(&Memory { version: VERSION, files: records.clone() })?;
    let dir = file.parent().ok_or_else(|| std::io::Error::other("the memory has no folder"))?;
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    new.write_all(&json)?;
    new.persist(file).map_err(|e| e.error)?;
    Ok(())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests;
