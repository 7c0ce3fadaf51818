//! Makes the files of a manifest be on this machine, whole and verified, and says where they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::StreamExt as _;
use model_manifest::{DescriptorError, Manifest, ManifestFile, ModelDescriptor, Source};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::brought::Brought;
use crate::cache::{Cache, LinkMode, below};
use crate::hub::HubClient;
use crate::progress::{Phase, Progress, Tracker};
use crate::verified::Verified;

mod download;
mod error;
mod look;
mod pieces;
mod place;
mod remove;
mod space;

pub use error::StoreError;
use look::Look;
pub use remove::Removed;

/// Downloads at once unless configured: a few streams fill a line, many annoy a hub.
pub const PARALLEL_DEFAULT: usize = 4;
pub const PARALLEL_MAX: usize = 32;

#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The Hugging Face cache, [`crate::HubConfig::cache_dir`].
    pub cache_dir: PathBuf,
    /// Our own folder for what is remembered of verified files.
    pub state_dir: PathBuf,
    /// Downloads at once, of all models together.
    pub parallel: usize,
    /// `None`: what the file system of the cache allows.
    pub link_mode: Option<LinkMode>,
}

impl StoreConfig {
    pub fn new(cache_dir: PathBuf, state_dir: PathBuf) -> StoreConfig {
        StoreConfig { cache_dir, state_dir, parallel: PARALLEL_DEFAULT, link_mode: None }
    }
}

/// The files of models on this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    hub: HubClient,
    cache: Cache,
    verified: Verified,
    brought: Brought,
    downloads: Semaphore,
    parallel: usize,
}

/// A model whose files are here and verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// The snapshot, or the folder that was registered.
    pub model_dir: PathBuf,
    /// Absolute path by name in the manifest.
    pub files: BTreeMap<String, PathBuf>,
    /// Optional files that are not here, and why.
    pub notes: Vec<String>,
}

impl LocalModel {
    /// What an engine is given: the files that `runtime` on `device_kind` (`cpu`, `cuda`, `metal`, …) can use.
    pub fn descriptor(
        &self,
        manifest: &Manifest,
        runtime: &str,
        device_kind: &str,
    ) -> Result<ModelDescriptor, DescriptorError> {
        ModelDescriptor::new(manifest, runtime, device_kind, &self.model_dir, &self.files)
    }
}

/// A file of a manifest and where it comes from.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    file: &'a ManifestFile,
    repo: &'a str,
    commit: &'a str,
}

impl<'a> Wanted<'a> {
    /// Small files are named by their git id in the cache, large ones by their sha256.
    fn blob(&self) -> &'a str {
        self.file.git_oid.as_deref().unwrap_or(&self.file.sha256)
    }
}

impl Store {
    /// Fails when the state folder cannot be made.
    pub fn open(config: &StoreConfig, hub: HubClient) -> Result<Store, StoreError> {
        let verified = Verified::open(&config.state_dir).map_err(|source| StoreError::Io {
            what: "make the folder",
            path: config.state_dir.clone(),
            source,
        })?;
        // Engines get absolute paths, and a later change of the working directory must not move the cache.
        let dir = std::path::absolute(&config.cache_dir).map_err(|source| StoreError::Io {
            what: "find the folder",
            path: config.cache_dir.clone(),
            source,
        })?;
        let cache = match config.link_mode {
            Some(mode) => Cache::with_mode(dir, mode),
            None => Cache::new(dir),
        };
        let parallel = config.parallel.clamp(1, PARALLEL_MAX);
        Ok(Store {
            inner: Arc::new(Inner {
                hub,
                cache,
                verified,
                brought: Brought::open(&config.state_dir),
                downloads: Semaphore::new(parallel),
                parallel,
            }),
        })
    }

    /// What was verified before; also for [`crate::register_folder`] on the same machine.
    pub fn verified(&self) -> &Verified {
        &self.inner.verified
    }

    /// Fetches and verifies what is missing. `runtimes` are what this machine can run, as `runtime/device`
    /// (`gpt-oss/cuda`); files for others are skipped. Interrupted in whatever way, the next call goes on where it was.
    pub async fn ensure(
        &self,
        manifest: &Manifest,
        runtimes: &[String],
        progress: &watch::Sender<Progress>,
        cancel: &CancellationToken,
    ) -> Result<LocalModel, StoreError> {
        self.run(manifest, runtimes, progress, cancel, true).await
    }

    /// Looks whether everything is still here and unchanged, without the network. Cheap when nothing changed: call it
    /// before each load. A file that changed is hashed; other content than the manifest's is [`StoreError::Changed`].
    pub async fn check(
        &self,
        manifest: &Manifest,
        runtimes: &[String],
        cancel: &CancellationToken,
    ) -> Result<LocalModel, StoreError> {
        self.run(manifest, runtimes, &watch::Sender::default(), cancel, false).await
    }

    /// Forgets that the files of a model were verified: the next look hashes all of them.
    pub fn forget_verified(&self, manifest: &Manifest) {
        let dir = self.inner.model_dir(manifest);
        for file in &manifest.files {
            let path = match Inner::wanted(manifest, file) {
                Some(wanted) => self.inner.cache.file(wanted.repo, wanted.commit, file.path()),
                None => below(dir.clone(), file.path()),
            };
            self.inner.verified.forget(&path);
        }
    }

    async fn run(
        &self,
        manifest: &Manifest,
        runtimes: &[String],
        progress: &watch::Sender<Progress>,
        cancel: &CancellationToken,
        fetch: bool,
    ) -> Result<LocalModel, StoreError> {
        manifest.check()?;
        let inner = &self.inner;
        let mut files: Vec<&ManifestFile> = manifest.files.iter().filter(|f| f.is_for(runtimes)).collect();
        // What is needed comes first, whatever becomes of the rest.
        files.sort_by_key(|f| f.optional);
        let tracker = Tracker::new(progress, files.iter().map(|f| (f.name.clone(), f.size)));
        let mut model =
            LocalModel { model_dir: inner.model_dir(manifest), files: BTreeMap::new(), notes: Vec::new() };
        if fetch {
            let no_room = inner.check_space(manifest, &files)?;
            files.retain(|file| match no_room.get(&file.name) {
                Some(note) => {
                    tracker.drop_file(&file.name, file.size);
                    model.notes.push(format!("optional file {} is left out: {note}", file.name));
                    false
                }
                None => true,
            });
        }
        let (inner, tracker) = (inner.as_ref(), &tracker);
        // Not mapped lazily: a future that holds such a closure cannot be spawned, as its lifetimes are too general.
        let jobs: Vec<_> = files
            .into_iter()
            .map(|file| async move {
                let result = tokio::select! {
                    result = inner.file(manifest, file, tracker, cancel, fetch) => result,
                    () = cancel.cancelled() => Err(StoreError::Cancelled),
                };
                (file, result)
            })
            .collect();
        let mut results = futures_util::stream::iter(jobs).buffer_unordered(inner.parallel);
        while let Some((file, result)) = results.next().await {
            match result {
                Ok(path) => {
                    tracker.set(&file.name, Phase::Done, file.size);
                    model.files.insert(file.name.clone(), path);
                }
                Err(StoreError::Cancelled) => return Err(StoreError::Cancelled),
                Err(e) if file.optional => {
                    tracker.drop_file(&file.name, file.size);
                    if fetch {
                        tracing::warn!(
                            model = manifest.id,
                            file = file.name,
                            error = e.message(),
                            "going on without an optional file"
                        );
                    }
                    model.notes.push(format!("optional file {} is left out: {}", file.name, e.message()));
                }
                Err(e) => return Err(e),
            }
        }
        model.notes.sort();
        if fetch && let Source::Hub { repo, revision, commit } = &manifest.source {
            // Only other tools read it; a cache that cannot be written to serves us all the same.
            if let Err(e) = inner.cache.note_revision(repo, revision, commit) {
                tracing::warn!(repo, revision, error = %e, "the revision cannot be noted in the cache");
            }
        }
        Ok(model)
    }
}

impl Inner {
    fn model_dir(&self, manifest: &Manifest) -> PathBuf {
        match &manifest.source {
            Source::Hub { repo, commit, .. } => self.cache.snapshot(repo, commit),
            Source::Local { path } => PathBuf::from(path),
        }
    }

    fn wanted<'a>(manifest: &'a Manifest, file: &'a ManifestFile) -> Option<Wanted<'a>> {
        match (&file.repo, &manifest.source) {
            (Some(other), _) => Some(Wanted { file, repo: &other.repo, commit: &other.commit }),
            (None, Source::Hub { repo, commit, .. }) => Some(Wanted { file, repo, commit }),
            (None, Source::Local { .. }) => None,
        }
    }

    async fn file(
        &self,
        manifest: &Manifest,
        file: &ManifestFile,
        tracker: &Tracker<'_>,
        cancel: &CancellationToken,
        fetch: bool,
    ) -> Result<PathBuf, StoreError> {
        match Inner::wanted(manifest, file) {
            Some(wanted) if fetch => self.fetched(wanted, tracker, cancel).await,
            Some(wanted) => {
                let path = self.cache.file(wanted.repo, wanted.commit, file.path());
                self.unchanged(file, path, tracker, cancel).await
            }
            None => {
                let path = below(self.model_dir(manifest), file.path());
                self.unchanged(file, path, tracker, cancel).await
            }
        }
    }

    fn io(&self, what: &'static str, path: &Path, source: std::io::Error) -> StoreError {
        StoreError::Io { what, path: path.to_owned(), source }
    }
}
