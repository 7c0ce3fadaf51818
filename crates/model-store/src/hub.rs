//! Asks a hub that speaks the Hugging Face HTTP API: what a revision is, which files it has, and their bytes.

use std::sync::Arc;

use bytes::Bytes;
use model_manifest::ListedFile;
use model_manifest::listing::LISTED_FILES_MAX;
use model_manifest::paths::{check_repo_id, check_revision, is_commit};
use reqwest::header::HeaderMap;
use reqwest::{Response, StatusCode};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::config::{HubConfig, RetryPolicy};
use crate::verified::hex;

mod answers;
mod error;
mod http;

use answers::{InfoAnswer, TreeEntry, next_page, parse, range_start};
pub use error::HubError;
pub(crate) use error::chain;
use http::Http;
pub use http::install_tls_provider;

/// Pages of a file list at most; a page holds a thousand files.
const PAGES_MAX: usize = 100;
/// An answer of the API may have this many bytes.
const API_BYTES_MAX: u64 = 32 << 20;

/// What a revision is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoInfo {
    /// As the hub spells it, which is what to keep: the one asked for may have been renamed.
    pub repo: String,
    pub commit: String,
    pub private: bool,
    pub gated: bool,
}

/// A client for one hub. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HubClient {
    http: Arc<Http>,
}

impl HubClient {
    /// Fails when the TLS library cannot be set up.
    pub fn new(config: &HubConfig) -> Result<HubClient, HubError> {
        Ok(HubClient { http: Arc::new(Http::new(config)?) })
    }

    pub fn endpoint(&self) -> &Url {
        &self.http.endpoint
    }

    pub(crate) fn retry(&self) -> &RetryPolicy {
        &self.http.retry
    }

    /// Which commit `revision` is now.
    pub async fn info(&self, repo: &str, revision: &str) -> Result<RepoInfo, HubError> {
        check_repo_id(repo)?;
        check_revision(revision)?;
        let url = self.http.url(&["api", "models"], repo, &["revision", revision]);
        let about = About { repo, revision, path: None };
        let (answer, _) = self.api(url, about).await?;
        let info: InfoAnswer = parse(&answer, "the repository's description")?;
        if !is_commit(&info.sha) || check_repo_id(&info.id).is_err() {
            return Err(protocol("the repository's description has no commit or no id"));
        }
        let gated =
            info.gated.is_some_and(|gated| gated.is_string() || gated == serde_json::Value::Bool(true));
        Ok(RepoInfo { repo: info.id, commit: info.sha, private: info.private, gated })
    }

    /// Every file of a commit, in the hub's order.
    pub async fn list(&self, repo: &str, commit: &str) -> Result<Vec<ListedFile>, HubError> {
        check_repo_id(repo)?;
        check_revision(commit)?;
        let mut url = self.http.url(&["api", "models"], repo, &["tree", commit]);
        url.set_query(Some("recursive=true&expand=false"));
        let about = About { repo, revision: commit, path: None };
        let mut files = Vec::new();
        for _ in 0..PAGES_MAX {
            let (answer, headers) = self.api(url.clone(), about).await?;
            let page: Vec<TreeEntry> = parse(&answer, "the list of files")?;
            files.extend(page.into_iter().filter(|e| e.kind == "file").map(ListedFile::from));
            if files.len() > LISTED_FILES_MAX {
                return Err(protocol(&format!("{repo} lists more than {LISTED_FILES_MAX} files")));
            }
            let Some(next) = next_page(&headers) else { return Ok(files) };
            let next =
                url.join(&next).map_err(|_| protocol("the next page of the list has no valid address"))?;
            // Our token goes with the request.
            if next.origin() != self.http.endpoint.origin() {
                return Err(protocol("the next page of the list is on another host"));
            }
            url = next;
        }
        Err(protocol(&format!("the list of {repo} has more than {PAGES_MAX} pages")))
    }

    /// The content of a small file, checked against what the list said of it.
    pub async fn fetch_small(
        &self,
        repo: &str,
        commit: &str,
        file: &ListedFile,
        bytes_max: u64,
    ) -> Result<Vec<u8>, HubError> {
        if file.size > bytes_max {
            return Err(HubError::TooLarge { path: file.path.clone(), size: file.size, max: bytes_max });
        }
        let content = self
            .with_retry(|| async move {
                let mut answer = self.open(repo, commit, &file.path, 0).await?;
                let mut content = Vec::new();
                while let Some(piece) = answer.chunk().await? {
                    content.extend_from_slice(&piece);
                    if content.len() as u64 > file.size {
                        break;
                    }
                }
                Ok(content)
            })
            .await?;
        if content.len() as u64 != file.size {
            let message = format!("{} has {} bytes, its list says {}", file.path, content.len(), file.size);
            return Err(HubError::Protocol { message });
        }
        let listed = file.sha256.as_deref().or(file.git_oid.as_deref());
        let found = match (&file.sha256, &file.git_oid) {
            (Some(_), _) => Some(hex(&Sha256::digest(&content))),
            (None, Some(_)) => Some(git_blob_id(&content)),
            (None, None) => None,
        };
        if listed != found.as_deref() {
            return Err(not_as_listed(&file.path));
        }
        Ok(content)
    }

    /// The sha256 of a file that the list gives none for. Reads all of it, up to `bytes_max`.
    pub async fn hash(
        &self,
        repo: &str,
        commit: &str,
        file: &ListedFile,
        bytes_max: u64,
    ) -> Result<String, HubError> {
        if file.size > bytes_max {
            return Err(HubError::TooLarge { path: file.path.clone(), size: file.size, max: bytes_max });
        }
        self.with_retry(|| async move {
            let mut answer = self.open(repo, commit, &file.path, 0).await?;
            let (mut hasher, mut git, mut size) = (Sha256::new(), Sha1::new(), 0);
            git.update(format!("blob {}\0", file.size).as_bytes());
            while let Some(piece) = answer.chunk().await? {
                hasher.update(&piece);
                git.update(&piece);
                size += piece.len() as u64;
                if size > file.size {
                    break;
                }
            }
            if size != file.size {
                let message = format!("{} has {size} bytes or more, its list says {}", file.path, file.size);
                return Err(HubError::Protocol { message });
            }
            if file.git_oid.as_deref().is_some_and(|oid| oid != hex(&git.finalize())) {
                return Err(not_as_listed(&file.path));
            }
            Ok(hex(&hasher.finalize()))
        })
        .await
    }

    /// The first `bytes` of a file, or all of a shorter one. What the list says of the whole file cannot be checked.
    pub async fn head(
        &self,
        repo: &str,
        commit: &str,
        file: &ListedFile,
        bytes: u64,
    ) -> Result<Vec<u8>, HubError> {
        let bytes = bytes.min(file.size);
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let mut content = self
            .with_retry(|| async move {
                let mut answer =
                    self.part(repo, commit, &file.path, Some(Part { start: 0, end: Some(bytes) })).await?;
                let mut content = Vec::new();
                // A hub that knows no ranges sends everything; what is too much is left unread.
                while (content.len() as u64) < bytes
                    && let Some(piece) = answer.chunk().await?
                {
                    content.extend_from_slice(&piece);
                }
                Ok(content)
            })
            .await?;
        if (content.len() as u64) < bytes {
            let message = format!("{} has {} bytes, its list says {}", file.path, content.len(), file.size);
            return Err(HubError::Protocol { message });
        }
        content.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(content)
    }

    /// Starts reading a file at `offset`. One try: whoever reads on knows better what a second one is worth.
    pub(crate) async fn open(
        &self,
        repo: &str,
        commit: &str,
        path: &str,
        offset: u64,
    ) -> Result<FileBody, HubError> {
        self.part(repo, commit, path, Some(Part { start: offset, end: None }).filter(|_| offset > 0)).await
    }

    async fn part(
        &self,
        repo: &str,
        commit: &str,
        path: &str,
        part: Option<Part>,
    ) -> Result<FileBody, HubError> {
        let offset = part.map_or(0, |part| part.start);
        let mut parts = vec!["resolve", commit];
        parts.extend(path.split('/'));
        let url = self.http.url(&[], repo, &parts);
        let response = self.http.get(url, part).await?;
        let about = About { repo, revision: commit, path: Some(path) };
        match response.status() {
            StatusCode::OK => Ok(FileBody { start: 0, response }),
            StatusCode::PARTIAL_CONTENT => {
                let start = range_start(response.headers())
                    .ok_or_else(|| protocol(&format!("a part of {path} came without saying which")))?;
                if start != offset {
                    return Err(protocol(&format!(
                        "of {path} the part at {offset} was asked for and {start} came"
                    )));
                }
                Ok(FileBody { start, response })
            }
            _ => Err(self.refusal(response, about).await),
        }
    }

    async fn api(&self, url: Url, about: About<'_>) -> Result<(Vec<u8>, HeaderMap), HubError> {
        let url = &url;
        self.with_retry(|| async move {
            let response = self.http.get(url.clone(), None).await?;
            if response.status() != StatusCode::OK {
                return Err(self.refusal(response, about).await);
            }
            let headers = response.headers().clone();
            let mut body = FileBody { start: 0, response };
            let mut answer = Vec::new();
            while let Some(piece) = body.chunk().await? {
                answer.extend_from_slice(&piece);
                if answer.len() as u64 > API_BYTES_MAX {
                    return Err(protocol(&format!("an answer has more than {API_BYTES_MAX} bytes")));
                }
            }
            Ok((answer, headers))
        })
        .await
    }

    /// Not an `AsyncFnMut`: the compiler could not see that the callers' futures may move between threads.
    async fn with_retry<T, F: Future<Output = Result<T, HubError>> + Send>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, HubError> {
        let policy = self.retry();
        for failures in 1.. {
            match attempt().await {
                Err(e) if failures < policy.attempts => match e.pause(policy, failures) {
                    Some(pause) => {
                        tracing::debug!(error = %e, failures, ?pause, "the hub is asked again");
                        tokio::time::sleep(pause).await;
                    }
                    None => return Err(e),
                },
                result => return result,
            }
        }
        unreachable!("the loop ends by returning");
    }

    async fn refusal(&self, response: Response, about: About<'_>) -> HubError {
        let error = self.http.refusal(response, about.repo, about.revision, about.path).await;
        tracing::debug!(repo = about.repo, error = %error, "the hub refused");
        error
    }
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: u64,
    /// Behind the last; none: to the file's end.
    end: Option<u64>,
}

/// What a request was about, for its errors.
#[derive(Debug, Clone, Copy)]
struct About<'a> {
    repo: &'a str,
    revision: &'a str,
    path: Option<&'a str>,
}

/// The body of a file from `start` on.
pub(crate) struct FileBody {
    pub start: u64,
    response: Response,
}

impl FileBody {
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HubError> {
        self.response.chunk().await.map_err(http::unreachable)
    }
}

/// git's id of a small file: what names its blob in the cache.
pub(crate) fn git_blob_id(content: &[u8]) -> String {
    let mut sha = Sha1::new();
    sha.update(format!("blob {}\0", content.len()).as_bytes());
    sha.update(content);
    hex(&sha.finalize())
}

fn protocol(message: &str) -> HubError {
    HubError::Protocol { message: message.to_owned() }
}

fn not_as_listed(path: &str) -> HubError {
    HubError::Protocol { message: format!("{path} is not the file that its list names") }
}
