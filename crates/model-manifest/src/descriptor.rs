//! What a node hands to an engine: local files of a verified model, and nothing about where they came from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{FileRole, Format, Manifest};

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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    #[error("file {file} of the manifest is not on this machine")]
    Missing { file: String },
    #[error("the path {path} of file {file} is not absolute")]
    NotAbsolute { file: String, path: PathBuf },
}

impl ModelDescriptor {
    /// Joins a manifest with the places of its verified files, by [`crate::ManifestFile::name`]. `device_kind` is where
    /// `runtime` will run, such as `metal`. Files that this pair cannot use are left out even when they are there;
    /// optional ones that are not there are left out too.
    pub fn new(
        manifest: &Manifest,
        runtime: &str,
        device_kind: &str,
        model_dir: &Path,
        local: &BTreeMap<String, PathBuf>,
    ) -> Result<ModelDescriptor, DescriptorError> {
        let mut files = Vec::new();
        let place = [format!("{runtime}/{device_kind}")];
        for file in manifest.files.iter().filter(|file| file.is_for(&place)) {
            match local.get(&file.name) {
                Some(path) if path.is_absolute() => {
                    files.push(DescriptorFile {
                        name: file.name.clone(),
                        path: path.clone(),
                        size: file.size,
                    });
                }
                Some(path) => {
                    return Err(DescriptorError::NotAbsolute { file: file.name.clone(), path: path.clone() });
                }
                None if file.optional || file.role == FileRole::Artifact => {}
                None => return Err(DescriptorError::Missing { file: file.name.clone() }),
            }
        }
        Ok(ModelDescriptor {
            id: manifest.id.clone(),
            fingerprint: manifest.fingerprint(),
            format: manifest.format,
            architecture: manifest.architecture.clone(),
            runtime: runtime.to_owned(),
            model_dir: model_dir.to_owned(),
            primary: manifest.primary.clone(),
            files,
        })
    }
}

#[cfg(test)]
mod tests;
