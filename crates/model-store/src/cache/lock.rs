//! One process makes a blob at a time, this product's or another's: the lock file that the hub's own client uses too.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use tokio_util::sync::CancellationToken;

/// Between two tries.
const POLL: Duration = Duration::from_millis(200);
/// A holder that writes nothing for this long has a problem that its user should know of. Hashing the 65 GB of a large
/// model from a slow disk takes ten minutes.
const STALL_MAX: Duration = Duration::from_secs(30 * 60);

#[derive(Debug)]
pub(crate) enum LockError {
    Io(std::io::Error),
    /// Another process holds it and does nothing.
    Stalled,
    Cancelled,
}

/// Held until dropped, or until the process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Guard {
    /// `None` on file systems that know no locks: a broken lock costs a second download, which the hash then judges.
    _file: Option<File>,
}

/// Waits for the lock at `path`. `blobs` is where its holder writes files whose names start with `blob`.
pub(crate) async fn acquire(
    path: &Path,
    blobs: &Path,
    blob: &str,
    cancel: &CancellationToken,
) -> Result<Guard, LockError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(LockError::Io)?;
    }
    let mut seen = (written(blobs, blob), Instant::now());
    loop {
        let file =
            File::options().create(true).truncate(false).write(true).open(path).map_err(LockError::Io)?;
        match file.try_lock() {
            // Another holder may have removed the file on leaving; a lock on what has no name excludes nobody.
            Ok(()) if still_named(&file, path) => return Ok(Guard { _file: Some(file) }),
            Ok(()) => continue,
            Err(TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => {
                tracing::warn!(path = %path.display(), "this file system has no locks; going on without");
                return Ok(Guard { _file: None });
            }
            Err(TryLockError::Error(e)) => return Err(LockError::Io(e)),
            Err(TryLockError::WouldBlock) => {}
        }
        let now = written(blobs, blob);
        if now != seen.0 {
            seen = (now, Instant::now());
        } else if seen.1.elapsed() > STALL_MAX {
            return Err(LockError::Stalled);
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = cancel.cancelled() => return Err(LockError::Cancelled),
        }
    }
}

/// Bytes and time of the newest file of the blob.
fn written(blobs: &Path, blob: &str) -> Option<(SystemTime, u64)> {
    let files = std::fs::read_dir(blobs).ok()?.filter_map(Result::ok);
    let of_blob = files.filter(|f| f.file_name().to_str().is_some_and(|name| name.starts_with(blob)));
    of_blob.filter_map(|f| f.metadata().ok()).filter_map(|m| Some((m.modified().ok()?, m.len()))).max()
}

#[cfg(unix)]
fn still_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Windows removes no file that somebody has open.
#[cfg(windows)]
fn still_named(_file: &File, _path: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_until_the_first_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".locks/x.lock");
        let cancel = CancellationToken::new();
        let first = acquire(&path, dir.path(), "x", &cancel).await.unwrap();
        let mut second = Box::pin(acquire(&path, dir.path(), "x", &cancel));
        assert!(tokio::time::timeout(POLL * 2, &mut second).await.is_err(), "it has to wait");
        drop(first);
        tokio::time::timeout(Duration::from_secs(10), second).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn waiting_can_be_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let cancel = CancellationToken::new();
        let _first = acquire(&path, dir.path(), "x", &cancel).await.unwrap();
        cancel.cancel();
        assert!(matches!(acquire(&path, dir.path(), "x", &cancel).await, Err(LockError::Cancelled)));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_lock_file_that_was_removed_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let cancel = CancellationToken::new();
        let _first = acquire(&path, dir.path(), "x", &cancel).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = acquire(&path, dir.path(), "x", &cancel).await.unwrap();
        assert!(path.exists());
    }
}
