//! What a node hands to an engine: local files of a verified model, and nothing about where they came from.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Format;

/// A model whose files are on this machine and verified. `EngineHost` and the plugin see only this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelDescriptor {
    pub id: String,
    /// [`crate::Manifest::fingerprint`].
    pub fingerprint: String,
    pub format: Format,
    pub architecture: String,
    /// The engine runtime chosen for it, such as `gpt-oss`.
    pub runtime: String,
    /// The directory in which `name` of every file not listed with another path is found.
    pub model_dir: PathBuf,
    /// Name of the file the engine opens first; one of `files`.
    pub primary: String,
    pub files: Vec<DescriptorFile>,
}

/// A local file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorFile {
    /// [`crate::ManifestFile::name`].
    pub name: String,
    /// Absolute path of the verified bytes.
    pub path: PathBuf,
    pub size: u64,
}
