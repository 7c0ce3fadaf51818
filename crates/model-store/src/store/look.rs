//! Whether a file on this machine is the one the manifest names: by size, by memory, by hash.

use std::path::{Path, PathBuf};

use model_manifest::ManifestFile;
use tokio_util::sync::CancellationToken;

use super::{Inner, StoreError};
use crate::progress::Tracker;
use crate::verified::HashError;

pub(super) enum Look {
    Good,
    Absent,
    Other { found: String },
}

impl Inner {
    /// The file where it should be, when it is there and is what the manifest says.
    pub(super) async fn unchanged(
        &self,
        file: &ManifestFile,
        path: PathBuf,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
    ) -> Result<PathBuf, StoreError> {
        match self.look(file, &path, tracker, cancel).await? {
            Look::Good => Ok(path),
            Look::Absent => Err(StoreError::Absent { file: file.name.clone(), path }),
            Look::Other { found } => Err(StoreError::Changed {
                file: file.name.clone(),
                path,
                expected: file.sha256.clone(),
                found,
            }),
        }
    }

    /// What is at `path`, by size and by hash (remembered where it can be).
    pub(super) async fn look(
        &self,
        file: &ManifestFile,
        path: &Path,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
    ) -> Result<Look, StoreError> {
        let meta = match std::fs::metadata(path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Look::Absent),
            Err(source) => return Err(self.io("look at", path, source)),
        };
        if !meta.is_file() {
            return Ok(Look::Other { found: "no file".to_owned() });
        }
        if meta.len() != file.size {
            return Ok(Look::Other { found: format!("{} bytes", meta.len()) });
        }
        let found = match self.verified.known(path) {
            Some(known) => known,
            None => self.hash(file, path, tracker, cancel).await?,
        };
        Ok(if found == file.sha256 { Look::Good } else { Look::Other { found: format!("sha256 {found}") } })
    }

    async fn hash(
        &self,
        file: &ManifestFile,
        path: &Path,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
    ) -> Result<String, StoreError> {
        self.verified.sha256_of(&file.name, path, tracker, cancel).await.map_err(|e| match e {
            HashError::Cancelled { .. } => StoreError::Cancelled,
            HashError::Read { path, source } => self.io("read", &path, source),
            HashError::Changed { path } => StoreError::Changed {
                file: file.name.clone(),
                path,
                expected: file.sha256.clone(),
                found: "content that changed while it was read".to_owned(),
            },
        })
    }
}
