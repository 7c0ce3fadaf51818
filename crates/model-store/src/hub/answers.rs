//! What the hub answers, in its own form, and the headers that go with it.

use model_manifest::ListedFile;
use model_manifest::paths::{is_commit, is_sha256};
use reqwest::header::{CONTENT_RANGE, HeaderMap, LINK};
use serde::Deserialize;

use super::HubError;

#[derive(Deserialize)]
pub(super) struct InfoAnswer {
    pub id: String,
    pub sha: String,
    #[serde(default)]
    pub private: bool,
    #[serde(default)]
    pub gated: Option<serde_json::Value>,
}

#[derive(Deserialize)]
pub(super) struct TreeEntry {
    #[serde(rename = "type")]
    pub kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: Option<String>,
    #[serde(default)]
    lfs: Option<LfsEntry>,
}

#[derive(Deserialize)]
struct LfsEntry {
    oid: String,
    size: u64,
}

impl From<TreeEntry> for ListedFile {
    fn from(entry: TreeEntry) -> ListedFile {
        match entry.lfs {
            Some(lfs) => ListedFile {
                path: entry.path,
                size: lfs.size,
                sha256: Some(lfs.oid).filter(|oid| is_sha256(oid)),
                git_oid: None,
            },
            None => ListedFile {
                path: entry.path,
                size: entry.size,
                sha256: None,
                git_oid: entry.oid.filter(|oid| is_commit(oid)),
            },
        }
    }
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(json: &[u8], what: &str) -> Result<T, HubError> {
    serde_json::from_slice(json)
        .map_err(|e| HubError::Protocol { message: format!("{what} is not as expected: {e}") })
}

/// The target of `rel="next"` in `Link`.
pub(super) fn next_page(headers: &HeaderMap) -> Option<String> {
    headers.get_all(LINK).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(", <")).find_map(
        |link| {
            let (target, parameters) = link.trim_start_matches('<').split_once('>')?;
            parameters.contains("rel=\"next\"").then(|| target.to_owned())
        },
    )
}

/// The first byte of `Content-Range: bytes 10-19/20`.
pub(super) fn range_start(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    value.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests;
