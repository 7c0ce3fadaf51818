//! What the router does to register a model: list, read the small files, check, make the manifest. No weights are fetched.

use std::collections::BTreeMap;
use std::path::Path;

use model_formats::gguf::{GgufError, GgufModel, HEAD_BYTES_MAX, Metadata};
use model_manifest::paths::check_repo_id;
use model_manifest::registration::{
    ArtifactSource, READ_BYTES_MAX, Registration, build_manifest, files_to_hash, files_to_read, gguf_to_read,
};
use model_manifest::{FileRepo, ListedFile, Manifest, RegistrationError, Request, Rules, Snapshot, Source};
use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cache::below;
use crate::folder;
pub use crate::folder::FolderError;
use crate::hub::{HubClient, HubError, chain};
use crate::progress::{Phase, Progress, Tracker};
use crate::verified::{HashError, Verified};

/// A file that the hub gives no sha256 for is read to make one, up to this size. git repositories on the hub hold no
/// file above 10 MB; other hubs may be more generous.
pub const HASH_BYTES_MAX: u64 = 256 << 20;

/// As much of a GGUF file is read at first: enough for everything but a large vocabulary.
const HEAD_BYTES_FIRST: u64 = 1 << 20;
/// When that does not do, so many times as much.
const HEAD_GROWTH: u64 = 4;

/// What a registration yields.
#[derive(Debug, Clone, PartialEq)]
pub struct Registered {
    pub manifest: Manifest,
    /// Contents of the small files that the router reads (config, generation config, tokenizer config, chat template,
    /// index), by path.
    pub contents: BTreeMap<String, Vec<u8>>,
    /// What a GGUF file says of itself.
    pub gguf: Option<GgufModel>,
}

#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Refused(#[from] RegistrationError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Hash(#[from] HashError),
}

impl RegisterError {
    /// Stable, snake_case; part of the API.
    pub fn code(&self) -> &'static str {
        match self {
            RegisterError::Hub(e) => e.code(),
            RegisterError::Refused(e) => e.code(),
            RegisterError::Folder(FolderError::NotAFolder { .. }) => "folder_absent",
            RegisterError::Folder(_) => "folder_unusable",
            RegisterError::Hash(HashError::Cancelled { .. }) => "cancelled",
            RegisterError::Hash(_) => "file_unreadable",
        }
    }

    /// What the router answers.
    pub fn http_status(&self) -> u16 {
        match self {
            RegisterError::Hub(e) => e.http_status(),
            RegisterError::Folder(FolderError::NotAFolder { .. }) => 404,
            RegisterError::Refused(_) | RegisterError::Folder(_) | RegisterError::Hash(_) => 400,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            RegisterError::Hub(e) => e.hint(),
            RegisterError::Refused(e) => e.hint(),
            RegisterError::Folder(FolderError::NotAFolder { .. }) => {
                Some("a folder has to be on the machine of the router".to_owned())
            }
            RegisterError::Folder(_) | RegisterError::Hash(_) => None,
        }
    }

    /// The whole chain in one line.
    pub fn message(&self) -> String {
        chain(self)
    }
}

/// Registers `revision` of a repository. An empty `request.id` becomes the repository's id as the hub spells it.
pub async fn register_hub(
    hub: &HubClient,
    repo: &str,
    revision: &str,
    request: &Request,
    rules: &Rules,
) -> Result<Registered, RegisterError> {
    let info = hub.info(repo, revision).await?;
    let files = hub.list(&info.repo, &info.commit).await?;
    let source =
        Source::Hub { repo: info.repo.clone(), revision: revision.to_owned(), commit: info.commit.clone() };
    let snapshot = Snapshot { source, files };
    let request = with_id(request, &info.repo);
    let mut contents = BTreeMap::new();
    for path in files_to_read(&request, &snapshot)? {
        if let Some(file) = snapshot.file(&path) {
            let content = hub.fetch_small(&info.repo, &info.commit, file, READ_BYTES_MAX).await?;
            contents.insert(path, content);
        }
    }
    let mut gguf = None;
    if let Some(path) = gguf_to_read(&request, &snapshot)?
        && let Some(file) = snapshot.file(&path)
    {
        let info = &info;
        let read = |bytes| async move { Ok(hub.head(&info.repo, &info.commit, file, bytes).await?) };
        gguf = Some(gguf_model(file, read).await?);
    }
    let artifact_sources = artifact_sources(hub, &info.repo, rules).await;
    let registration = Registration {
        request: &request,
        snapshot: &snapshot,
        rules,
        artifact_sources: &artifact_sources,
        contents: &contents,
        gguf: gguf.as_ref(),
    };
    let mut hashes = BTreeMap::new();
    for wanted in files_to_hash(registration)? {
        let (repo, commit, files) =
            match artifact_sources.iter().find(|s| Some(&s.repo.repo) == wanted.repo.as_ref()) {
                Some(source) => (&source.repo.repo, &source.repo.commit, &source.files),
                None => (&info.repo, &info.commit, &snapshot.files),
            };
        if let Some(file) = files.iter().find(|f| f.path == wanted.path) {
            hashes.insert(wanted, hub.hash(repo, commit, file, HASH_BYTES_MAX).await?);
        }
    }
    let manifest = build_manifest(registration, &hashes)?;
    Ok(Registered { manifest, contents, gguf })
}

/// The first bytes of a file.
async fn head(path: &Path, bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    tokio::fs::File::open(path).await?.take(bytes).read_to_end(&mut head).await?;
    Ok(head)
}

/// What the GGUF file of a registered model says of itself: from its first bytes, wherever they are.
///
/// # Errors
/// The hub, the folder or the file cannot be read, or a file in place has another size than it was registered with.
pub async fn read_gguf_header(hub: &HubClient, manifest: &Manifest) -> Result<GgufModel, RegisterError> {
    let missing = || RegistrationError::HashUnknown { file: manifest.primary.clone() };
    let primary = manifest.file(&manifest.primary).ok_or_else(missing)?;
    let file = &ListedFile {
        path: primary.path().to_owned(),
        size: primary.size,
        sha256: Some(primary.sha256.clone()),
        git_oid: None,
    };
    match &manifest.source {
        Source::Hub { repo, commit, .. } => {
            gguf_model(file, |bytes| async move { Ok(hub.head(repo, commit, file, bytes).await?) }).await
        }
        Source::Local { path } => {
            let path = &below(path.into(), &file.path);
            let unreadable = |source| FolderError::Read { path: path.clone(), source };
            let size = tokio::fs::metadata(path).await.map_err(unreadable)?.len();
            if size != file.size {
                let (path, registered) = (path.clone(), file.size);
                return Err(FolderError::Changed { path, size, registered }.into());
            }
            gguf_model(file, |bytes| async move { Ok(head(path, bytes).await.map_err(unreadable)?) }).await
        }
    }
}

/// What a GGUF file says of itself, read from its first bytes; `read` gives so many of them.
async fn gguf_model<F: Future<Output = Result<Vec<u8>, RegisterError>> + Send>(
    file: &ListedFile,
    read: impl Fn(u64) -> F,
) -> Result<GgufModel, RegisterError> {
    let unusable = |error: GgufError| {
        let source = Box::new(error);
        RegisterError::Refused(RegistrationError::BadFile { file: file.path.clone(), source })
    };
    let mut wanted = HEAD_BYTES_FIRST;
    loop {
        let head = read(wanted.min(file.size)).await?;
        match Metadata::parse(&file.path, &head, file.size) {
            Ok(metadata) => return GgufModel::of(&file.path, &metadata).map_err(unusable),
            Err(GgufError::Incomplete { .. }) if wanted < HEAD_BYTES_MAX => wanted *= HEAD_GROWTH,
            Err(error) => return Err(unusable(error)),
        }
    }
}

/// The lists of the publisher's other repositories. What cannot be listed offers no artifacts: they are optional.
async fn artifact_sources(hub: &HubClient, repo: &str, rules: &Rules) -> Vec<ArtifactSource> {
    let mut sources = Vec::new();
    for other in rules.supported.artifact_repositories(repo) {
        if !rules.allowlist.allows(&other) {
            continue;
        }
        let listed = async {
            let info = hub.info(&other, "main").await?;
            let files = hub.list(&info.repo, &info.commit).await?;
            // Under the name that the list of supported models knows it by.
            Ok::<_, HubError>(ArtifactSource {
                repo: FileRepo { repo: other.clone(), commit: info.commit },
                files,
            })
        };
        match listed.await {
            Ok(source) => sources.push(source),
            Err(e) => tracing::warn!(repo = other, error = e.message(), "its artifacts are not offered"),
        }
    }
    sources
}

/// Registers a folder of this machine in place: everything in the manifest is hashed now. An empty `request.id` becomes
/// `local/<name of the folder>`.
pub async fn register_folder(
    dir: &Path,
    request: &Request,
    rules: &Rules,
    verified: &Verified,
    progress: &watch::Sender<Progress>,
    cancel: &CancellationToken,
) -> Result<Registered, RegisterError> {
    let snapshot = folder::list(dir)?;
    let request = with_id(request, &folder_id(dir));
    let mut contents = BTreeMap::new();
    for path in files_to_read(&request, &snapshot)? {
        let at = below(dir.to_owned(), &path);
        let content = tokio::fs::read(&at).await.map_err(|source| FolderError::Read { path: at, source })?;
        contents.insert(path, content);
    }
    let mut gguf = None;
    if let Some(path) = gguf_to_read(&request, &snapshot)?
        && let Some(file) = snapshot.file(&path)
    {
        let at = below(dir.to_owned(), &path);
        let read = |bytes| {
            let at = at.clone();
            async move { Ok(head(&at, bytes).await.map_err(|source| FolderError::Read { path: at, source })?) }
        };
        gguf = Some(gguf_model(file, read).await?);
    }
    let registration = Registration {
        request: &request,
        snapshot: &snapshot,
        rules,
        artifact_sources: &[],
        contents: &contents,
        gguf: gguf.as_ref(),
    };
    let wanted = files_to_hash(registration)?;
    let size = |path: &str| snapshot.file(path).map_or(0, |f| f.size);
    let tracker = Tracker::new(progress, wanted.iter().map(|f| (f.path.clone(), size(&f.path))));
    let mut hashes = BTreeMap::new();
    for file in wanted {
        let path = below(dir.to_owned(), &file.path);
        let sha256 = verified.sha256_of(&file.path, &path, &tracker, cancel).await?;
        tracker.set(&file.path, Phase::Done, size(&file.path));
        hashes.insert(file, sha256);
    }
    let manifest = build_manifest(registration, &hashes)?;
    Ok(Registered { manifest, contents, gguf })
}

fn with_id(request: &Request, id: &str) -> Request {
    let mut request = request.clone();
    if request.id.is_empty() {
        request.id = id.to_owned();
    }
    request
}

fn folder_id(dir: &Path) -> String {
    local_id(dir.file_name().and_then(|n| n.to_str()).unwrap_or("model"))
}

/// `local/<name>`, with what an id cannot have replaced.
pub(crate) fn local_id(name: &str) -> String {
    let cleaned: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' }).collect();
    let mut joined = String::new();
    for part in cleaned.split(['-', '.']).filter(|p| !p.is_empty()) {
        let separator = if joined.is_empty() { "" } else { "-" };
        joined = format!("{joined}{separator}{part}");
    }
    let id = format!("local/{joined}");
    if check_repo_id(&id).is_ok() { id } else { "local/model".to_owned() }
}
