//! Why a model's files are not here: the file, the numbers, and what to do.

use std::path::PathBuf;

use model_manifest::ManifestError;

use crate::hub::HubError;
use crate::hub::chain;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the manifest cannot be followed")]
    Manifest(#[from] ManifestError),
    #[error("{file} of {repo} cannot be fetched")]
    Fetch { file: String, repo: String, source: Box<HubError> },
    #[error("{file} of {repo} came with sha256 {found}, twice; the manifest says {expected}")]
    Corrupt { file: String, repo: String, expected: String, found: String },
    #[error("{file} is not at {path}")]
    Absent { file: String, path: PathBuf },
    #[error("{file} at {path} is {found}; registered was sha256 {expected}")]
    Changed { file: String, path: PathBuf, expected: String, found: String },
    #[error("{needed} bytes are needed in {dir} and {available} are free")]
    NoSpace { dir: PathBuf, needed: u64, available: u64 },
    #[error("the disk of {path} is full: {needed} more bytes were needed and {available} are free")]
    DiskFull { path: PathBuf, needed: u64, available: u64 },
    #[error("another process holds {path} and has written nothing for half an hour")]
    Locked { path: PathBuf },
    #[error("cannot {what} {path}")]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cancelled")]
    Cancelled,
}

impl StoreError {
    /// Stable, snake_case.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Manifest(_) => "manifest_invalid",
            StoreError::Fetch { source, .. } => source.code(),
            StoreError::Corrupt { .. } => "file_corrupt",
            StoreError::Absent { .. } => "file_absent",
            StoreError::Changed { .. } => "file_changed",
            StoreError::NoSpace { .. } => "no_space",
            StoreError::DiskFull { .. } => "disk_full",
            StoreError::Locked { .. } => "cache_locked",
            StoreError::Io { .. } => "file_system",
            StoreError::Cancelled => "cancelled",
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            StoreError::Fetch { source, .. } => return source.hint(),
            StoreError::Corrupt { .. } => {
                "something between the hub and this machine changes the bytes; check proxies and HF_ENDPOINT"
                    .to_owned()
            }
            StoreError::Changed { .. } => {
                "register the model again, or put the registered file back".to_owned()
            }
            StoreError::Absent { .. } => "put the file back, or register the model again".to_owned(),
            StoreError::NoSpace { .. } | StoreError::DiskFull { .. } => {
                "free space, or set HF_HUB_CACHE to a folder on a larger disk".to_owned()
            }
            StoreError::Locked { path } => {
                format!("end the process that downloads the model, or remove {}", path.display())
            }
            _ => return None,
        })
    }

    /// The whole chain in one line.
    pub fn message(&self) -> String {
        chain(self)
    }

    /// Whether trying again later may help without anybody doing anything.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Fetch { source, .. } => source.is_transient(),
            StoreError::NoSpace { .. } | StoreError::DiskFull { .. } | StoreError::Locked { .. } => true,
            _ => false,
        }
    }
}
