//! Asks before a download whether the disk has room for it.

use std::collections::BTreeMap;
use std::path::Path;

use model_manifest::{Manifest, ManifestFile};

use super::{Inner, StoreError};

/// Left free for everybody else who writes to the disk.
const SPARE_BYTES: u64 = 64 << 20;

impl Inner {
    /// Fails when the required files do not fit. Returns the optional ones that do not fit beside them, with the reason.
    pub(super) fn check_space(
        &self,
        manifest: &Manifest,
        files: &[&ManifestFile],
    ) -> Result<BTreeMap<String, String>, StoreError> {
        let mut needed: u64 = 0;
        let mut no_room = BTreeMap::new();
        let dir = existing(self.cache.dir());
        let available =
            fs4::available_space(dir).map_err(|source| self.io("ask for the free space of", dir, source))?;
        for file in files {
            let missing = self.bytes_missing(manifest, file);
            if missing == 0 {
                continue;
            }
            // A manifest has a few thousand files of at most 16 TiB: far from the end of u64.
            let with_file = needed + missing;
            if with_file + SPARE_BYTES <= available {
                needed = with_file;
            } else if file.optional {
                no_room.insert(
                    file.name.clone(),
                    format!("{with_file} bytes are needed and {available} are free"),
                );
            } else {
                needed = with_file;
            }
        }
        if needed > 0 && needed + SPARE_BYTES > available {
            return Err(StoreError::NoSpace { dir: dir.to_owned(), needed: needed + SPARE_BYTES, available });
        }
        Ok(no_room)
    }

    /// What a download of the file has yet to write.
    fn bytes_missing(&self, manifest: &Manifest, file: &ManifestFile) -> u64 {
        let Some(wanted) = Inner::wanted(manifest, file) else { return 0 };
        let size = |path: &Path| std::fs::metadata(path).map(|m| m.len()).ok();
        let at = [
            self.cache.file(wanted.repo, wanted.commit, file.path()),
            self.cache.blob(wanted.repo, wanted.blob()),
        ];
        if at.iter().any(|path| size(path) == Some(file.size)) {
            return 0;
        }
        let partial = size(&self.cache.incomplete(wanted.repo, wanted.blob())).unwrap_or(0);
        file.size.saturating_sub(partial)
    }
}

/// The folder itself or the nearest one above it that exists: the cache may not have been made yet.
fn existing(dir: &Path) -> &Path {
    dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir)
}
