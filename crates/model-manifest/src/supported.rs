//! The list of models that are known to work, shipped with the product: what `models ls --available` shows.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::paths::{PathError, check_path, check_repo_id};
use crate::{Format, paths};

const SHIPPED: &str = include_str!("../../../assets/supported_models.json");
const SCHEMA_VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum SupportedError {
    #[error("the list of supported models is not in the form this version reads")]
    Json(#[from] serde_json::Error),
    #[error("the list of supported models has version {found}, this version reads {SCHEMA_VERSION}")]
    Version { found: u32 },
    #[error("the list of supported models has two entries `{id}`")]
    Duplicate { id: String },
    #[error("the list of supported models has a name that cannot be used in entry `{id}`")]
    Name { id: String, source: PathError },
    #[error("entry `{id}` takes `{artifact}` from `{repository}`, which is not of the same publisher")]
    OtherPublisher { id: String, artifact: String, repository: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupportedModels {
    schema_version: u32,
    models: Vec<SupportedModel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SupportedModel {
    pub id: String,
    /// On the hub.
    pub repository: String,
    pub format: Format,
    pub architecture: String,
    /// Bytes of the weights in `format`.
    pub size: u64,
    /// Bytes of device memory that the publisher names as enough.
    pub memory: u64,
    pub context_length_max: u32,
    pub licence: String,
    /// Engine runtimes that run it.
    pub runtimes: Vec<String>,
    #[serde(default)]
    pub artifacts: Vec<SupportedArtifact>,
}

/// An optimized execution cache that its publisher offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SupportedArtifact {
    /// As engines see it, such as `model.metal.bin`.
    pub name: String,
    /// In its repository, such as `metal/model.bin`.
    pub path: String,
    /// When it is not the model's own: another of the same publisher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Bytes.
    pub size: u64,
    pub runtimes: Vec<String>,
}

impl SupportedModels {
    /// The list in this build.
    pub fn shipped() -> SupportedModels {
        SupportedModels::parse(SHIPPED).expect("a test parses the shipped list")
    }

    /// Reads and checks a list.
    pub fn parse(json: &str) -> Result<SupportedModels, SupportedError> {
        let list: SupportedModels = serde_json::from_str(json)?;
        if list.schema_version != SCHEMA_VERSION {
            return Err(SupportedError::Version { found: list.schema_version });
        }
        let mut ids = BTreeSet::new();
        for model in &list.models {
            if !ids.insert(model.id.to_ascii_lowercase()) {
                return Err(SupportedError::Duplicate { id: model.id.clone() });
            }
            model.check()?;
        }
        Ok(list)
    }

    pub fn models(&self) -> &[SupportedModel] {
        &self.models
    }

    pub fn by_repository(&self, repository: &str) -> Option<&SupportedModel> {
        self.models.iter().find(|m| m.repository.eq_ignore_ascii_case(repository))
    }

    /// The other repositories whose file lists a registration of `repository` needs.
    pub fn artifact_repositories(&self, repository: &str) -> Vec<String> {
        let artifacts = self.by_repository(repository).map(|m| m.artifacts.as_slice()).unwrap_or_default();
        let others: BTreeSet<String> = artifacts.iter().filter_map(|a| a.repository.clone()).collect();
        others.into_iter().filter(|other| !other.eq_ignore_ascii_case(repository)).collect()
    }
}

impl SupportedModel {
    fn check(&self) -> Result<(), SupportedError> {
        let bad_name = |source| SupportedError::Name { id: self.id.clone(), source };
        check_repo_id(&self.repository).map_err(bad_name)?;
        paths::check_paths(self.artifacts.iter().map(|a| a.name.as_str())).map_err(bad_name)?;
        for artifact in &self.artifacts {
            check_path(&artifact.path).map_err(bad_name)?;
            let Some(other) = &artifact.repository else { continue };
            check_repo_id(other).map_err(bad_name)?;
            if publisher(other) != publisher(&self.repository) {
                return Err(SupportedError::OtherPublisher {
                    id: self.id.clone(),
                    artifact: artifact.name.clone(),
                    repository: other.clone(),
                });
            }
        }
        Ok(())
    }
}

pub(crate) fn publisher(repository: &str) -> Option<String> {
    repository.split_once('/').map(|(publisher, _)| publisher.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
