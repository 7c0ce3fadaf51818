//! From a list of files to a manifest, or to the reason why there is none. Pure: the lists and the small files come in.
//!
//! The caller asks [`files_to_read`] which contents it needs and [`gguf_to_read`] of which file the metadata, then
//! [`files_to_hash`] which files have no hash in the list, and then calls [`build_manifest`]. Checks that need only the list come first, so nothing is fetched of a
//! repository that cannot be registered.

use std::collections::BTreeMap;

use model_formats::GgufModel;
use model_formats::config::detect_runtime;
use sha2::{Digest as _, Sha256};

use crate::manifest::{FileRepo, FileRole, Format, Manifest, ManifestFile};
use crate::{Allowlist, ListedFile, Snapshot, SupportedModels};

mod artifacts;
mod error;
mod weights;

pub use error::RegistrationError;
use weights::Weights;

/// A file whose content the router reads may have this many bytes. The index of the largest models has 9 MB.
pub const READ_BYTES_MAX: u64 = 32 << 20;
/// What only an engine that understands images has a use for; a file for this runtime is listed, and not fetched before.
pub const VISION: &str = "llama-cpp/vision";

pub const CONFIG: &str = "config.json";
pub const TOKENIZER: &str = "tokenizer.json";

/// The small files that engines or the router read, beside the weights.
const SMALL_FILES: [(&str, FileRole); 11] = [
    (CONFIG, FileRole::Config),
    ("generation_config.json", FileRole::GenerationConfig),
    (TOKENIZER, FileRole::Tokenizer),
    ("tokenizer_config.json", FileRole::TokenizerConfig),
    ("chat_template.jinja", FileRole::ChatTemplate),
    ("chat_template.json", FileRole::ChatTemplate),
    ("special_tokens_map.json", FileRole::Other),
    ("added_tokens.json", FileRole::Other),
    ("vocab.json", FileRole::Other),
    ("merges.txt", FileRole::Other),
    ("tokenizer.model", FileRole::Other),
];
/// Those of them that the router itself reads.
const READ_ROLES: [FileRole; 4] =
    [FileRole::Config, FileRole::GenerationConfig, FileRole::TokenizerConfig, FileRole::ChatTemplate];

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The id clients will use.
    pub id: String,
    /// Needed when the repository has both.
    pub format: Option<Format>,
    /// Which GGUF file, when there are several.
    pub file: Option<String>,
    /// Which GGUF file by the end of its name, as `Q4_K_M` in `org/repo:Q4_K_M`.
    pub quantization: Option<String>,
    /// Refuse instead of registering a model that nothing known runs.
    pub require_engine: bool,
}

/// What the operator allows and what is known to run.
#[derive(Debug, Clone)]
pub struct Rules {
    pub allowlist: Allowlist,
    pub supported: SupportedModels,
    /// [`KnownEngine::shipped`], and those of the nodes.
    pub engines: Vec<KnownEngine>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            allowlist: Allowlist::default(),
            supported: SupportedModels::shipped(),
            engines: KnownEngine::shipped(),
        }
    }
}

/// An engine as far as registration cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownEngine {
    pub runtime: String,
    pub architectures: Vec<String>,
    pub formats: Vec<Format>,
}

impl KnownEngine {
    /// The engines that every build of the product comes with. That of GGUF files, which needs a toolchain, is known from the nodes
    /// that have it; a model that was registered before any came is looked at by each node's engines.
    pub fn shipped() -> Vec<KnownEngine> {
        [("gpt-oss", "gpt_oss"), ("echo", "echo")]
            .map(|(runtime, architecture)| KnownEngine {
                runtime: runtime.to_owned(),
                architectures: vec![architecture.to_owned()],
                formats: vec![Format::Safetensors],
            })
            .to_vec()
    }
}

/// The files of another repository from which artifacts may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactSource {
    pub repo: FileRepo,
    pub files: Vec<ListedFile>,
}

/// Everything a registration is decided by.
#[derive(Debug, Clone, Copy)]
pub struct Registration<'a> {
    pub request: &'a Request,
    pub snapshot: &'a Snapshot,
    pub rules: &'a Rules,
    /// Of [`SupportedModels::artifact_repositories`]; without them no artifact of theirs is used.
    pub artifact_sources: &'a [ArtifactSource],
    /// Contents of [`files_to_read`], by path.
    pub contents: &'a BTreeMap<String, Vec<u8>>,
    /// What [`gguf_to_read`] says of itself.
    pub gguf: Option<&'a GgufModel>,
}

/// A file of the model's repository, or of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileToHash {
    /// Another repository than the model's own.
    pub repo: Option<String>,
    pub path: String,
}

/// The files whose contents decide. Fails when the list alone already says that nothing can come of it.
pub fn files_to_read(request: &Request, snapshot: &Snapshot) -> Result<Vec<String>, RegistrationError> {
    let weights = Weights::choose(request, snapshot)?;
    let mut read: Vec<String> = small_files(snapshot)
        .filter(|(_, role)| READ_ROLES.contains(role))
        .map(|(file, _)| file.path.clone())
        .collect();
    read.extend(weights.index);
    for path in &read {
        let size = snapshot.file(path).map_or(0, |f| f.size);
        if size > READ_BYTES_MAX {
            return Err(RegistrationError::FileTooLarge { file: path.clone(), size, max: READ_BYTES_MAX });
        }
    }
    Ok(read)
}

/// The GGUF file whose metadata decides; none when the weights are safetensors. Fails as [`files_to_read`] does.
pub fn gguf_to_read(request: &Request, snapshot: &Snapshot) -> Result<Option<String>, RegistrationError> {
    let weights = Weights::choose(request, snapshot)?;
    Ok(weights.files.into_iter().next().filter(|_| weights.format == Format::Gguf))
}

/// The files of the manifest-to-be that have neither a hash in the list nor contents here.
pub fn files_to_hash(registration: Registration<'_>) -> Result<Vec<FileToHash>, RegistrationError> {
    let drafts = drafts(registration)?.files;
    Ok(drafts
        .into_iter()
        .filter(|draft| draft.sha256(registration.contents).is_none())
        .map(|draft| FileToHash { repo: draft.repo.map(|r| r.repo), path: draft.listed.path })
        .collect())
}

/// Checks everything and makes the manifest. `hashes` has the sha256 of each of [`files_to_hash`].
pub fn build_manifest(
    registration: Registration<'_>,
    hashes: &BTreeMap<FileToHash, String>,
) -> Result<Manifest, RegistrationError> {
    let Drafts { files: drafts, format, primary, architecture, context_length_max, runtimes } =
        drafts(registration)?;
    let mut files = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let key =
            FileToHash { repo: draft.repo.as_ref().map(|r| r.repo.clone()), path: draft.listed.path.clone() };
        let sha256 = draft
            .sha256(registration.contents)
            .or_else(|| hashes.get(&key).cloned())
            .ok_or_else(|| RegistrationError::HashUnknown { file: key.path.clone() })?;
        files.push(draft.into_file(sha256));
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut manifest = Manifest {
        id: registration.request.id.clone(),
        source: registration.snapshot.source.clone(),
        format,
        architecture,
        runtimes,
        primary,
        files,
        context_length_max,
        embeds: false,
        embedding_size: None,
    };
    if let (Format::Gguf, Some(header)) = (format, registration.gguf) {
        manifest.take_header(header);
    }
    manifest.check()?;
    Ok(manifest)
}

struct Drafts {
    files: Vec<Draft>,
    format: Format,
    primary: String,
    architecture: String,
    context_length_max: Option<u32>,
    runtimes: Vec<String>,
}

/// A file of the manifest before its hash is known.
#[derive(Debug, Clone)]
struct Draft {
    name: String,
    role: FileRole,
    listed: ListedFile,
    repo: Option<FileRepo>,
    optional: bool,
    runtimes: Vec<String>,
}

impl Draft {
    fn required(role: FileRole, listed: &ListedFile) -> Draft {
        Draft {
            name: listed.path.clone(),
            role,
            listed: listed.clone(),
            repo: None,
            optional: false,
            runtimes: Vec::new(),
        }
    }

    fn sha256(&self, contents: &BTreeMap<String, Vec<u8>>) -> Option<String> {
        if self.listed.sha256.is_some() {
            return self.listed.sha256.clone();
        }
        let content = contents.get(&self.listed.path).filter(|_| self.repo.is_none())?;
        Some(Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect())
    }

    fn into_file(self, sha256: String) -> ManifestFile {
        ManifestFile {
            repo_path: (self.listed.path != self.name).then_some(self.listed.path),
            name: self.name,
            role: self.role,
            size: self.listed.size,
            // Files stored outside git have the sha256 for their name in the cache.
            git_oid: if self.listed.sha256.is_some() { None } else { self.listed.git_oid },
            sha256,
            repo: self.repo,
            optional: self.optional,
            runtimes: self.runtimes,
        }
    }
}

fn drafts(registration: Registration<'_>) -> Result<Drafts, RegistrationError> {
    let Registration { request, snapshot, rules, contents, .. } = registration;
    let weights = Weights::choose(request, snapshot)?;
    let mut files = Vec::new();
    for (file, role) in small_files(snapshot) {
        files.push(Draft::required(role, file));
    }
    let mut primary = weights.files.first().cloned();
    let mut weight_files = weights.files;
    if let Some(index) = &weights.index {
        let content =
            contents.get(index).ok_or_else(|| RegistrationError::HashUnknown { file: index.clone() })?;
        weight_files = weights::shards(snapshot, index, content)?;
        primary = Some(index.clone());
        files.extend(snapshot.file(index).map(|file| Draft::required(FileRole::WeightIndex, file)));
    }
    for path in &weight_files {
        let file = snapshot.file(path).ok_or_else(|| RegistrationError::MissingFile {
            file: path.clone(),
            repo: snapshot.name().to_owned(),
        })?;
        files.push(Draft::required(FileRole::Weights, file));
    }
    let primary = primary.ok_or_else(|| RegistrationError::NoWeights { repo: snapshot.name().to_owned() })?;

    let (architecture, context_length_max, preferred) = match weights.format {
        Format::Safetensors => {
            let missing = || RegistrationError::HashUnknown { file: CONFIG.to_owned() };
            let config = detect_runtime(contents.get(CONFIG).ok_or_else(missing)?)
                .map_err(|e| RegistrationError::BadFile { file: CONFIG.to_owned(), source: Box::new(e) })?;
            (config.architecture, config.context_length_max, config.runtimes)
        }
        // The file says what it is; a `config.json` beside it may be of the model it was made from.
        Format::Gguf => {
            let gguf =
                registration.gguf.ok_or_else(|| RegistrationError::HashUnknown { file: primary.clone() })?;
            weights::check_split(&primary, weight_files.len(), gguf)?;
            (gguf.architecture.clone(), gguf.context_length, Vec::new())
        }
    };
    if weights.format == Format::Gguf {
        files.extend(weights::projectors(snapshot).map(|file| Draft {
            optional: true,
            runtimes: vec![VISION.to_owned()],
            ..Draft::required(FileRole::Projector, file)
        }));
    }
    let runtimes = runtimes(&rules.engines, &architecture, weights.format, &preferred);
    if runtimes.is_empty() && request.require_engine {
        return Err(RegistrationError::NoEngine { architecture, format: weights.format });
    }
    files.extend(artifacts::find(registration, &runtimes));
    Ok(Drafts { files, format: weights.format, primary, architecture, context_length_max, runtimes })
}

fn small_files(snapshot: &Snapshot) -> impl Iterator<Item = (&ListedFile, FileRole)> {
    SMALL_FILES.iter().filter_map(|(path, role)| snapshot.file(path).map(|file| (file, *role)))
}

/// Those that the format library prefers first, then the others by name.
fn runtimes(
    engines: &[KnownEngine],
    architecture: &str,
    format: Format,
    preferred: &[String],
) -> Vec<String> {
    let mut found: Vec<String> = engines
        .iter()
        .filter(|e| e.formats.contains(&format) && e.architectures.iter().any(|a| a == architecture))
        .map(|e| e.runtime.clone())
        .collect();
    let rank = |runtime: &String| preferred.iter().position(|p| p == runtime).unwrap_or(preferred.len());
    found.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
