//! Fetches one blob: goes on where an earlier try ended, hashes while it writes, and survives a bad line.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::pieces::{IDLE_MAX, Pieces};
use super::{Inner, StoreError, Wanted};
use crate::cache::lock::Guard;
use crate::hub::HubError;
use crate::progress::{Phase, Tracker};
use crate::verified::hex;

/// Pieces between network and disk. One is some 16 to 64 kB.
const QUEUE_MAX: usize = 64;
const READ_BYTES: usize = 4 << 20;
/// Failures of one file altogether, those included that were followed by progress: enough for a line that breaks every
/// 50 MB of a 5 GB shard, and an end for one that breaks after every byte.
const FAILURES_MAX: u32 = 100;

/// A file being written: what is in it is in the hash.
struct Partial {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
    /// The lock outlives the future that took it for as long as a thread still writes.
    _guard: Arc<Guard>,
}

impl Inner {
    /// Brings `<blob>.incomplete` to its full size and returns the sha256 of it, right or wrong.
    pub(super) async fn download(
        &self,
        wanted: Wanted<'_>,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
        guard: Arc<Guard>,
    ) -> Result<String, StoreError> {
        let Wanted { file, repo, .. } = wanted;
        let path = self.cache.incomplete(repo, wanted.blob());
        let mut partial = self.open_partial(wanted, path, tracker, cancel, guard).await?;
        let policy = self.hub.retry();
        let (mut in_a_row, mut failures) = (0, 0);
        while partial.len < file.size {
            let before = partial.len;
            let (back, result) = self.receive(wanted, partial, tracker).await;
            partial = back;
            let (error, ended_early) = match result {
                Ok(()) if partial.len == file.size => break,
                Ok(()) => {
                    let message = format!("{} ended after {} bytes", file.path(), partial.len);
                    (HubError::Protocol { message }, true)
                }
                Err(Failed::Write(source)) => return Err(self.write_error(&partial, file.size, source)),
                Err(Failed::Hub(error)) => (error, false),
            };
            failures += 1;
            in_a_row = if partial.len > before { 1 } else { in_a_row + 1 };
            let restarted = partial.len < before;
            let pause = if ended_early || restarted {
                Some(policy.pause_after(in_a_row))
            } else {
                error.pause(policy, in_a_row)
            };
            let fetch_error =
                |source| StoreError::Fetch { file: file.name.clone(), repo: repo.to_owned(), source };
            match pause {
                Some(pause) if in_a_row < policy.attempts && failures < FAILURES_MAX => {
                    tracing::debug!(file = file.name, at = partial.len, error = %error, ?pause, "the download goes on after a pause");
                    tokio::time::sleep(pause).await;
                }
                _ => return Err(fetch_error(Box::new(error))),
            }
        }
        let task = tokio::task::spawn_blocking(move || match partial.file.sync_all() {
            Ok(()) => Ok(hex(&partial.hasher.finalize())),
            Err(source) => Err((partial.path, source)),
        });
        let synced = task.await.expect("writing to disk does not panic");
        synced.map_err(|(path, source)| self.io("write", &path, source))
    }

    /// Opens what an earlier try left, and hashes it.
    async fn open_partial(
        &self,
        wanted: Wanted<'_>,
        path: PathBuf,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
        guard: Arc<Guard>,
    ) -> Result<Partial, StoreError> {
        let size = wanted.file.size;
        tracker.set(&wanted.file.name, Phase::Downloading, 0);
        let (stop, at) = (cancel.child_token(), path.clone());
        let _stop_when_dropped = stop.clone().drop_guard();
        let task = tokio::task::spawn_blocking(move || open(path, size, guard, &stop));
        match task.await.expect("reading a file does not panic") {
            Ok(Some(partial)) => {
                tracker.set(&wanted.file.name, Phase::Downloading, partial.len);
                Ok(partial)
            }
            Ok(None) => Err(StoreError::Cancelled),
            Err(source) => Err(self.io("open", &at, source)),
        }
    }

    /// One request, read as far as it goes. The partial file comes back whatever happened.
    async fn receive(
        &self,
        wanted: Wanted<'_>,
        mut partial: Partial,
        tracker: &Tracker<'_>,
    ) -> (Partial, Result<(), Failed>) {
        let Wanted { file, repo, commit } = wanted;
        let mut body = match self.hub.open(repo, commit, file.path(), partial.len).await {
            Ok(body) => body,
            Err(error) => {
                // The hub has less of it than we have: ours is not a beginning of it.
                if matches!(error, HubError::Status { status: 416 })
                    && let Err(source) = partial.restart()
                {
                    return (partial, Err(Failed::Write(source)));
                }
                return (partial, Err(Failed::Hub(error)));
            }
        };
        if body.start != partial.len
            && let Err(source) = partial.restart()
        {
            return (partial, Err(Failed::Write(source)));
        }
        let mut received = partial.len;
        let (sender, receiver) = mpsc::channel::<Bytes>(QUEUE_MAX);
        let runtime = Handle::current();
        let writer = tokio::task::spawn_blocking(move || partial.write_all(receiver, &runtime));
        let result = loop {
            match body.chunk().await {
                Ok(Some(piece)) => {
                    received += piece.len() as u64;
                    if received > file.size {
                        let message =
                            format!("{} is longer than the {} bytes registered", file.path(), file.size);
                        break Err(Failed::Hub(HubError::Protocol { message }));
                    }
                    // The writer has gone: it says why below.
                    if sender.send(piece).await.is_err() {
                        break Ok(());
                    }
                    tracker.set(&file.name, Phase::Downloading, received);
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(Failed::Hub(error)),
            }
        };
        drop(sender);
        let (partial, written) = writer.await.expect("writing to disk does not panic");
        match written {
            Ok(()) => (partial, result),
            Err(source) => (partial, Err(Failed::Write(source))),
        }
    }

    fn write_error(&self, partial: &Partial, size: u64, source: io::Error) -> StoreError {
        if source.kind() != io::ErrorKind::StorageFull && source.kind() != io::ErrorKind::QuotaExceeded {
            return self.io("write", &partial.path, source);
        }
        let dir = partial.path.parent().unwrap_or(Path::new("."));
        StoreError::DiskFull {
            path: partial.path.clone(),
            needed: size.saturating_sub(partial.len),
            // Nothing is known about the room; the disk has just said that there is none.
            available: fs4::available_space(dir).unwrap_or(0),
        }
    }
}

enum Failed {
    Hub(HubError),
    Write(io::Error),
}

/// `None`: cancelled.
fn open(
    path: PathBuf,
    size: u64,
    guard: Arc<Guard>,
    cancel: &CancellationToken,
) -> io::Result<Option<Partial>> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
    let mut partial = Partial { path, file, hasher: Sha256::new(), len: 0, _guard: guard };
    let there = partial.file.metadata()?.len();
    if there > size {
        partial.restart()?;
        return Ok(Some(partial));
    }
    let mut buffer = vec![0; READ_BYTES];
    while partial.len < there {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let n = partial.file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        partial.hasher.update(&buffer[..n]);
        partial.len += n as u64;
    }
    partial.file.seek(SeekFrom::Start(partial.len))?;
    Ok(Some(partial))
}

impl Partial {
    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Sha256::new();
        self.len = 0;
        Ok(())
    }

    /// Writes what comes, to its end. What could not be written is not in the hash: an error ends the download, and the next
    /// one hashes what is there.
    fn write_all(
        mut self,
        mut arriving: mpsc::Receiver<Bytes>,
        runtime: &Handle,
    ) -> (Partial, io::Result<()>) {
        let mut pieces = Pieces::new(self.len);
        loop {
            let next = runtime.block_on(async { timeout(IDLE_MAX, arriving.recv()).await });
            let written = match &next {
                Ok(Some(piece)) => pieces.push(piece, |bytes| self.write(bytes)),
                Ok(None) | Err(_) => pieces.flush(|bytes| self.write(bytes)),
            };
            if written.is_err() || matches!(next, Ok(None)) {
                return (self, written);
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }
}
