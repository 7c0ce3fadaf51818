//! Takes a model's files from the shared cache: those we brought, and of them those that nobody else uses.

use std::path::Path;

use model_manifest::Manifest;
use tokio_util::sync::CancellationToken;

use super::{Inner, Store, StoreError, Wanted};

/// What a removal freed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    pub files: u64,
    pub bytes: u64,
}

impl Store {
    /// Removes what was downloaded here for this model. What lay in the cache before stays, as does what another model in
    /// `kept` needs, what another commit in the cache leads to, and what was changed since. Folders of the user are
    /// never touched.
    pub async fn remove(&self, manifest: &Manifest, kept: &[&Manifest]) -> Result<Removed, StoreError> {
        manifest.check()?;
        let inner = &self.inner;
        let mut removed = Removed::default();
        for file in &manifest.files {
            let Some(wanted) = Inner::wanted(manifest, file) else { continue };
            let used = |other: &Wanted<'_>| {
                other.repo == wanted.repo && other.commit == wanted.commit && other.file.path() == file.path()
            };
            if wanted_of(kept).any(|other| used(&other)) {
                continue;
            }
            // Nobody makes the blob meanwhile.
            let blob = inner.cache.blob(wanted.repo, wanted.blob());
            let _guard = inner.lock(wanted, &blob, &CancellationToken::new()).await?;
            let path = inner.cache.file(wanted.repo, wanted.commit, file.path());
            let link = is_link(&path);
            removed.add(inner.remove_ours(&path)?, link);
            let same_blob = |other: &Wanted<'_>| other.repo == wanted.repo && other.blob() == wanted.blob();
            if !wanted_of(kept).any(|other| same_blob(&other)) && !inner.is_linked(wanted, &blob) {
                removed.add(inner.remove_ours(&blob)?, false);
            }
            inner.remove_empty(wanted, &path);
        }
        tracing::info!(
            model = manifest.id,
            files = removed.files,
            bytes = removed.bytes,
            "files are removed from the cache"
        );
        Ok(removed)
    }
}

impl Removed {
    fn add(&mut self, bytes: Option<u64>, link: bool) {
        self.files += u64::from(bytes.is_some() && !link);
        self.bytes += bytes.filter(|_| !link).unwrap_or(0);
    }
}

fn wanted_of<'a>(manifests: &'a [&'a Manifest]) -> impl Iterator<Item = Wanted<'a>> {
    manifests
        .iter()
        .flat_map(|manifest| manifest.files.iter().filter_map(|file| Inner::wanted(manifest, file)))
}

fn is_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink())
}

impl Inner {
    /// Removes a file if it is ours and as we left it, and says how large it was.
    fn remove_ours(&self, path: &Path) -> Result<Option<u64>, StoreError> {
        let Some(size) = self.brought.size(path) else { return Ok(None) };
        // Through a link: what it leads to has to be what it led to.
        let unchanged = std::fs::metadata(path).is_ok_and(|meta| meta.len() == size);
        self.brought.forget(path);
        if !unchanged {
            return Ok(None);
        }
        self.remove_file(path)?;
        Ok(Some(size))
    }

    /// Some commit in the cache leads to the blob, by a link or as another name of it.
    fn is_linked(&self, wanted: Wanted<'_>, blob: &Path) -> bool {
        let snapshots = self.cache.snapshot(wanted.repo, wanted.commit);
        let Some(snapshots) = snapshots.parent() else { return true };
        let Ok(target) = std::fs::canonicalize(blob) else { return false };
        let Ok(commits) = std::fs::read_dir(snapshots) else { return false };
        let files = commits.filter_map(Result::ok).flat_map(|commit| files_below(&commit.path(), DEPTH_MAX));
        let leads = |file: &Path| std::fs::canonicalize(file).is_ok_and(|found| found == target);
        files.into_iter().any(|file| leads(&file)) || has_other_names(blob)
    }

    /// Folders that held only what was removed.
    fn remove_empty(&self, wanted: Wanted<'_>, path: &Path) {
        let snapshot = self.cache.snapshot(wanted.repo, wanted.commit);
        let inside = path.ancestors().skip(1).take_while(|folder| folder.starts_with(&snapshot));
        for folder in inside {
            // The first that is not empty ends it.
            if std::fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }
}

/// Folders in folders of a snapshot, at most.
const DEPTH_MAX: u32 = 8;

fn files_below(folder: &Path, depth: u32) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => files.extend(files_below(&entry.path(), depth - 1)),
            Ok(_) => files.push(entry.path()),
            Err(_) => {}
        }
    }
    files
}

#[cfg(unix)]
fn has_other_names(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).is_ok_and(|meta| meta.nlink() > 1)
}

/// Not told by the standard library: a blob with another name loses one of its names, and no bytes.
#[cfg(not(unix))]
fn has_other_names(_path: &Path) -> bool {
    false
}
