//! Why a model is not registered: each reason with a stable code, the file it is about, and what to do.

use crate::Format;
use crate::manifest::ManifestError;

#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error("{repo} has no {file}")]
    MissingFile { file: String, repo: String },
    #[error("{repo} has several .safetensors files and no index: {}", listed(.files))]
    IndexMissing { repo: String, files: Vec<String> },
    #[error("{repo} has several indexes: {}", listed(.files))]
    IndexAmbiguous { repo: String, files: Vec<String> },
    #[error("shard {shard} named in {index} is missing from {repo}")]
    ShardMissing { shard: String, index: String, repo: String },
    #[error("{repo} has both safetensors ({safetensors}) and gguf ({gguf}), and no format was given")]
    FormatAmbiguous { repo: String, safetensors: String, gguf: String },
    #[error("{repo} has no {format} files")]
    FormatMissing { repo: String, format: Format, other: Option<Format> },
    #[error("{repo} has neither safetensors nor gguf files")]
    NoWeights { repo: String },
    #[error("{repo} has several gguf files and no file was given: {}", listed(.files))]
    GgufAmbiguous { repo: String, files: Vec<String> },
    #[error(
        "the file {file} was given, and the format is safetensors, whose files the repository's index names"
    )]
    FileNotChosen { file: String },
    #[error("{repo} has no file {file}")]
    FileUnknown { repo: String, file: String },
    #[error("{repo} has no gguf file whose name ends in {wanted}; it has {}", listed(.files))]
    QuantizationUnknown { repo: String, wanted: String, files: Vec<String> },
    #[error("{file} says it is part {number} of {count}, and by their names there are {files} files")]
    SplitContradiction { file: String, number: u64, count: u32, files: usize },
    #[error("{file} is not usable")]
    BadFile { file: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{file} has {size} bytes, and at most {max} are read of it")]
    FileTooLarge { file: String, size: u64, max: u64 },
    #[error("no engine is known for architecture {architecture} in format {format}")]
    NoEngine { architecture: String, format: Format },
    #[error("neither the list nor the caller gave a hash of {file}")]
    HashUnknown { file: String },
    #[error("the repository's files cannot be used as they are named")]
    Manifest(#[from] ManifestError),
}

impl RegistrationError {
    /// Stable, snake_case; part of the API.
    pub fn code(&self) -> &'static str {
        match self {
            RegistrationError::MissingFile { .. } => "missing_file",
            RegistrationError::IndexMissing { .. } => "index_missing",
            RegistrationError::IndexAmbiguous { .. } => "index_ambiguous",
            RegistrationError::ShardMissing { .. } => "shard_missing",
            RegistrationError::FormatAmbiguous { .. } => "format_ambiguous",
            RegistrationError::FormatMissing { .. } => "format_missing",
            RegistrationError::NoWeights { .. } => "no_weights",
            RegistrationError::GgufAmbiguous { .. } => "gguf_ambiguous",
            RegistrationError::FileNotChosen { .. } => "file_not_chosen",
            RegistrationError::FileUnknown { .. } => "file_unknown",
            RegistrationError::QuantizationUnknown { .. } => "quantization_unknown",
            RegistrationError::SplitContradiction { .. } => "file_invalid",
            RegistrationError::BadFile { .. } => "file_invalid",
            RegistrationError::FileTooLarge { .. } => "file_too_large",
            RegistrationError::NoEngine { .. } => "no_engine",
            RegistrationError::HashUnknown { .. } => "hash_unknown",
            RegistrationError::Manifest(_) => "file_name_unsafe",
        }
    }

    /// The whole chain in one line, for the one who asked: it names the file and what is wrong inside it.
    pub fn message(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            RegistrationError::MissingFile { file, .. } => {
                Some(format!("register a repository that contains {file}, or add it to this one"))
            }
            RegistrationError::IndexMissing { .. } => {
                Some("add model.safetensors.index.json, which says which tensor is in which file".to_owned())
            }
            RegistrationError::IndexAmbiguous { .. } => {
                Some("keep one index beside the shards, named model.safetensors.index.json".to_owned())
            }
            RegistrationError::ShardMissing { .. } => {
                Some("the upload is not complete; register a revision that has every shard".to_owned())
            }
            RegistrationError::FormatAmbiguous { .. } => {
                Some("give format=safetensors or format=gguf".to_owned())
            }
            RegistrationError::FormatMissing { other: Some(other), .. } => {
                Some(format!("register with format={other}"))
            }
            RegistrationError::FormatMissing { other: None, .. } | RegistrationError::NoWeights { .. } => {
                Some("register a repository with .safetensors or .gguf files in its top folder".to_owned())
            }
            RegistrationError::FileNotChosen { .. } => {
                Some("leave file out; it chooses among several gguf files".to_owned())
            }
            RegistrationError::FileUnknown { .. } => {
                Some("give one of the repository's gguf files by its whole name".to_owned())
            }
            RegistrationError::GgufAmbiguous { .. } => Some(
                "give the name of one of them as file, or the end of its name, as in org/repo:Q4_K_M"
                    .to_owned(),
            ),
            RegistrationError::QuantizationUnknown { .. } => {
                Some("case and dashes matter; leave .gguf out".to_owned())
            }
            RegistrationError::SplitContradiction { .. } => Some(
                "the upload is not complete or files were renamed; take the publisher's own files".to_owned(),
            ),
            RegistrationError::NoEngine { .. } => Some(
                "install an engine for it, or register without require_engine to have it wait for one"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// A few names and how many more.
fn listed(files: &[String]) -> String {
    const SHOWN: usize = 24;
    let shown = files.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
