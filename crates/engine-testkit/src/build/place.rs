//! Puts files in place while other processes may use or replace them.

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Copies beside the target and renames, unless it is the same already: a worker keeps the library it has open, and
/// Windows refuses to replace one that is in use.
pub fn replace_file(from: &Path, to: &Path) -> Result<()> {
    let bytes = std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    replace_bytes(&bytes, to)
}

/// The same with bytes that are no file yet.
pub fn replace_bytes(bytes: &[u8], to: &Path) -> Result<()> {
    if std::fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let partial = to.with_extension(format!("partial-{}", std::process::id()));
    std::fs::write(&partial, bytes)
        .and_then(|()| std::fs::rename(&partial, to))
        .with_context(|| format!("cannot put {} in place", to.display()))
}

/// Runs `work` while no other process runs its own with this lock.
pub fn with_file_lock<R>(lock: &Path, work: impl FnOnce() -> Result<R>) -> Result<R> {
    let file = File::create(lock).with_context(|| format!("cannot create {}", lock.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", lock.display()))?;
    let result = work();
    drop(file);
    result
}
