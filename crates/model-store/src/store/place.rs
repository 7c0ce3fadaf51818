//! One file of a commit: found where it is, or fetched, and put where every user of the cache looks for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Inner, Look, StoreError, Wanted};
use crate::cache::lock::{self, LockError};
use crate::progress::{Phase, Tracker};

/// Times a file is fetched from its first byte before it is given up as corrupt.
const WHOLE_FETCHES_MAX: u32 = 2;

impl Inner {
    pub(super) async fn fetched(
        &self,
        wanted: Wanted<'_>,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
    ) -> Result<PathBuf, StoreError> {
        let Wanted { file, repo, commit } = wanted;
        let path = self.cache.file(repo, commit, file.path());
        if self.verified.known(&path).as_deref() == Some(&file.sha256) {
            return Ok(path);
        }
        // What is in place is whole, so no lock is needed to read it; the cache may even be read-only.
        if let Look::Good = self.look(file, &path, tracker, cancel).await? {
            return Ok(path);
        }
        let _turn = self.downloads.acquire().await.expect("the semaphore is never closed");
        let blob = self.cache.blob(repo, wanted.blob());
        let guard = Arc::new(self.lock(wanted, &blob, cancel).await?);
        if let Look::Good = self.look_or_remove(wanted, &path, tracker, cancel).await? {
            return Ok(path);
        }
        if let Look::Good = self.look_or_remove(wanted, &blob, tracker, cancel).await? {
            return self.linked(wanted, &blob, path);
        }
        let mut found = String::new();
        for _ in 0..WHOLE_FETCHES_MAX {
            found = self.download(wanted, tracker, cancel, guard.clone()).await?;
            if found == file.sha256 {
                let incomplete = self.cache.incomplete(repo, wanted.blob());
                std::fs::rename(&incomplete, &blob)
                    .map_err(|source| self.io("put in place", &blob, source))?;
                self.brought.note(&blob, file.size);
                tracker.set(&file.name, Phase::Verifying, file.size);
                return self.linked(wanted, &blob, path);
            }
            tracing::warn!(
                file = file.name,
                repo,
                found,
                expected = file.sha256,
                "a download is not what the manifest says"
            );
            self.remove_file(&self.cache.incomplete(repo, wanted.blob()))?;
        }
        Err(StoreError::Corrupt {
            file: file.name.clone(),
            repo: repo.to_owned(),
            expected: file.sha256.clone(),
            found,
        })
    }

    pub(super) async fn lock(
        &self,
        wanted: Wanted<'_>,
        blob: &Path,
        cancel: &CancellationToken,
    ) -> Result<lock::Guard, StoreError> {
        let path = self.cache.lock(wanted.repo, wanted.blob());
        let blobs = blob.parent().expect("a blob lies in a folder");
        lock::acquire(&path, blobs, wanted.blob(), cancel).await.map_err(|e| match e {
            LockError::Io(source) => self.io("lock", &path, source),
            LockError::Stalled => StoreError::Locked { path },
            LockError::Cancelled => StoreError::Cancelled,
        })
    }

    /// Looks at a place of the cache; what should not be there goes, so that it is fetched anew.
    async fn look_or_remove(
        &self,
        wanted: Wanted<'_>,
        path: &Path,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
    ) -> Result<Look, StoreError> {
        let look = self.look(wanted.file, path, tracker, cancel).await?;
        if let Look::Other { found } = &look {
            tracing::warn!(
                path = %path.display(), found, expected = wanted.file.sha256,
                "a file in the cache is not what its name says; it is fetched again"
            );
            // In a snapshot this is the link; its blob is looked at next.
            self.remove_file(path)?;
        }
        Ok(look)
    }

    pub(super) fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        self.verified.forget(path);
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(self.io("remove", path, e)),
            _ => Ok(()),
        }
    }

    /// Links the verified blob into the snapshot and remembers it under the name that engines open.
    fn linked(&self, wanted: Wanted<'_>, blob: &Path, path: PathBuf) -> Result<PathBuf, StoreError> {
        let Wanted { file, repo, commit } = wanted;
        let ours = self.brought.size(blob).is_some();
        self.cache
            .link(repo, wanted.blob(), commit, file.path())
            .map_err(|source| self.io("link into the snapshot", blob, source))?;
        // Where linking moves the blob, its new place is as much ours as the old one was.
        let moved = !blob.exists();
        if moved {
            self.brought.forget(blob);
        }
        if ours || !moved {
            self.brought.note(&path, file.size);
        }
        self.verified.remember(&path, &file.sha256);
        Ok(path)
    }
}
