//! The registered model: which files, from where, with which hashes, in which format.

use model_formats::GgufModel;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::paths::{PathError, check_path, check_paths, check_repo_id, check_revision, is_commit, is_sha256};

/// Files a manifest may name; the largest models have some hundred shards.
pub const FILES_MAX: usize = 4096;
/// Bytes one file may claim: 16 TiB, beyond any model and far from the end of u64 sums.
pub const FILE_BYTES_MAX: u64 = 16 << 40;

/// How the weights are stored. Fixed at registration; nothing falls back from one to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Safetensors,
    Gguf,
}

impl Format {
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Safetensors => "safetensors",
            Format::Gguf => "gguf",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the files come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// A repository on a hub that speaks the Hugging Face HTTP API.
    Hub {
        /// `org/name`, as the hub spells it.
        repo: String,
        /// The branch, tag or commit that was asked for.
        revision: String,
        /// The commit the revision meant at registration, 40 hex digits. Nodes fetch this and nothing newer.
        commit: String,
    },
    /// A folder on this machine, used in place. Only nodes on the router's own machine can run it.
    Local {
        /// Absolute path.
        path: String,
    },
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileRole {
    Config,
    GenerationConfig,
    Tokenizer,
    TokenizerConfig,
    ChatTemplate,
    /// `model.safetensors.index.json`.
    WeightIndex,
    /// A shard, a single safetensors file or a GGUF file.
    Weights,
    /// The part of a GGUF model that reads images (`mmproj-...`): listed, and used by engines that understand images.
    Projector,
    /// An optimized execution cache such as `model.metal.bin`; always optional, never instead of the weights.
    Artifact,
    /// Anything else that engines may read, such as `special_tokens_map.json`.
    Other,
}

/// One file of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ManifestFile {
    /// Name in the model's directory as engines see it: relative, `/`-separated, checked by [`crate::paths`].
    pub name: String,
    pub role: FileRole,
    /// Bytes.
    pub size: u64,
    /// Lower-case hex sha256 of the content.
    pub sha256: String,
    /// The hub's git blob id, when the hub gave one instead of a sha256 (small files). Names the blob in the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_oid: Option<String>,
    /// Path in the repository, when it differs from `name` (`metal/model.bin` for `model.metal.bin`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_path: Option<String>,
    /// Another repository than the manifest's own (an artifact of the same publisher), with its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<FileRepo>,
    /// May fail to download without stopping the model.
    #[serde(default)]
    pub optional: bool,
    /// Which runtimes can use the file: `"gpt-oss"` on any device, `"gpt-oss/metal"` on that device only.
    /// Empty: every runtime. A node that has none of them skips the file.
    #[serde(default)]
    pub runtimes: Vec<String>,
}

/// The repository of a file that is not in the manifest's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FileRepo {
    pub repo: String,
    pub commit: String,
}

/// A registered model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Manifest {
    /// The id clients use, such as `openai/gpt-oss-20b`. May contain slashes.
    pub id: String,
    pub source: Source,
    pub format: Format,
    /// Canonical architecture, such as `gpt_oss`: `model_type` of `config.json`, or GGUF's `general.architecture`.
    pub architecture: String,
    /// Engine runtimes that run this (format, architecture), best first, such as `["gpt-oss"]`. Empty: none is known.
    #[serde(default)]
    pub runtimes: Vec<String>,
    /// The file an engine opens first: the index when there is one, else the only weight file.
    pub primary: String,
    /// In name order.
    pub files: Vec<ManifestFile>,
    /// The longest context the model was made for, in tokens, when its config says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length_max: Option<u32>,
    /// It gives embeddings and no answers, as the header of a GGUF file says (`pooling_type`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embeds: bool,
    /// Numbers of an embedding, where the header says that too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_size: Option<u32>,
}

impl Manifest {
    /// sha256 over the canonical JSON of the manifest, lower-case hex. Two manifests with the same fingerprint run the
    /// same bytes. `system_fingerprint` in replies starts with its first 12 digits.
    pub fn fingerprint(&self) -> String {
        let json = serde_json::to_vec(self).expect("a manifest holds only strings, numbers and lists");
        Sha256::digest(&json).iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Notes what the header of its GGUF file says.
    pub fn take_header(&mut self, header: &GgufModel) {
        self.context_length_max = header.context_length;
        self.embeds = header.pools;
        self.embedding_size = header.embedding_size.filter(|_| header.pools);
    }

    pub fn file(&self, name: &str) -> Option<&ManifestFile> {
        self.files.iter().find(|f| f.name == name)
    }

    /// What a node asks of a manifest before it follows it: safe names, plausible sizes, whole hashes, a primary file.
    pub fn check(&self) -> Result<(), ManifestError> {
        if self.files.len() > FILES_MAX {
            return Err(ManifestError::TooManyFiles { count: self.files.len() });
        }
        check_paths(self.files.iter().map(|f| f.name.as_str()))?;
        if self.file(&self.primary).is_none_or(|f| f.optional) {
            return Err(ManifestError::Primary { file: self.primary.clone() });
        }
        if let Source::Hub { repo, revision, commit } = &self.source {
            check_repo_id(repo)?;
            check_revision(revision)?;
            if !is_commit(commit) {
                return Err(ManifestError::Commit { commit: commit.clone() });
            }
        }
        self.files.iter().try_for_each(ManifestFile::check)
    }

    /// Bytes a node has to hold at most: every file, optional ones included.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).sum()
    }
}

impl ManifestFile {
    /// The path in its repository.
    pub fn path(&self) -> &str {
        self.repo_path.as_deref().unwrap_or(&self.name)
    }

    /// Whether somebody with these runtimes has a use for the file. `"gpt-oss/metal"` among them also stands for
    /// `"gpt-oss"`, not the other way round.
    pub fn is_for(&self, runtimes: &[impl AsRef<str>]) -> bool {
        self.runtimes.is_empty()
            || self.runtimes.iter().any(|wanted| {
                runtimes.iter().map(AsRef::as_ref).any(|have| {
                    have == wanted
                        || have.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.starts_with('/'))
                })
            })
    }

    fn check(&self) -> Result<(), ManifestError> {
        let file = || self.name.clone();
        check_path(self.path())?;
        if !is_sha256(&self.sha256) {
            return Err(ManifestError::Hash { file: file() });
        }
        // It becomes the name of a file in the cache.
        if self.git_oid.as_deref().is_some_and(|oid| !is_commit(oid)) {
            return Err(ManifestError::Hash { file: file() });
        }
        if self.size > FILE_BYTES_MAX {
            return Err(ManifestError::Size { file: file(), size: self.size });
        }
        if let Some(other) = &self.repo {
            check_repo_id(&other.repo)?;
            if !is_commit(&other.commit) {
                return Err(ManifestError::Commit { commit: other.commit.clone() });
            }
        }
        Ok(())
    }
}

/// Why a manifest is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error(transparent)]
    Name(#[from] PathError),
    #[error("the manifest names {count} files, {FILES_MAX} are allowed")]
    TooManyFiles { count: usize },
    #[error("the manifest's primary file `{file}` is not among its required files")]
    Primary { file: String },
    #[error("`{commit}` is not a commit of 40 hex digits")]
    Commit { commit: String },
    #[error("file {file} has no whole hash in the manifest")]
    Hash { file: String },
    #[error("file {file} claims {size} bytes, {FILE_BYTES_MAX} are allowed")]
    Size { file: String, size: u64 },
}

#[cfg(test)]
mod tests;
