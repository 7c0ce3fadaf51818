//! `/api/models`: what a repository is, and its files page by page.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use crate::answer::{Refusal, json_body};
use crate::repo::{Entry, Tree, hex, pointer};
use crate::server::Served;

const LINK: HeaderName = HeaderName::from_static("link");
/// Of every object here; clients parse it and nothing depends on it.
const MODIFIED: &str = "2025-08-05T17:00:00.000Z";

/// `GET /api/models/{repo}[/revision/{revision}]`.
pub(crate) fn info(repo: &Served, commit: &str, tree: &Tree, query: &str) -> Response {
    let with_blobs = query_value(query, "blobs").is_some_and(|v| v.eq_ignore_ascii_case("true") || v == "1");
    let siblings: Vec<Value> = tree
        .iter()
        .map(|(path, entry)| {
            let mut sibling = json!({ "rfilename": path });
            if with_blobs {
                sibling["blobId"] = json!(entry.git_oid);
                sibling["size"] = json!(entry.size);
                if let Some(lfs) = lfs(entry, "sha256") {
                    sibling["lfs"] = lfs;
                }
            }
            sibling
        })
        .collect();
    let author = repo.id.split('/').next().unwrap_or_default();
    json_body(&json!({
        "_id": &commit[..24], "id": repo.id, "modelId": repo.id, "author": author, "sha": commit,
        "createdAt": MODIFIED, "lastModified": MODIFIED, "private": repo.private,
        "gated": if repo.gated { json!("manual") } else { json!(false) }, "disabled": false,
        "downloads": 0, "likes": 0, "tags": [], "siblings": siblings, "spaces": [], "usedStorage": 0,
    }))
}

/// `GET /api/models/{repo}/tree/{revision}[/{folder}]`. Pages of at most `page_max`, linked by `Link: <…>; rel="next"`.
pub(crate) fn tree(
    base: &str,
    repo: &Served,
    commit: &str,
    tree: &Tree,
    folder: &str,
    query: &str,
    page_max: usize,
) -> Result<Response, Refusal> {
    let flag = |name| query_value(query, name).is_some_and(|v| v.eq_ignore_ascii_case("true") || v == "1");
    let (recursive, expand) = (flag("recursive"), flag("expand"));
    let entries = entries(tree, folder, recursive, expand);
    if entries.is_empty() && !folder.is_empty() {
        return Err(Refusal::EntryNotFound { path: folder.to_owned(), commit: commit.to_owned() });
    }
    let limit =
        query_value(query, "limit").and_then(|v| v.parse().ok()).unwrap_or(page_max).clamp(1, page_max);
    // The cursor is opaque to clients: here the last path they have seen.
    let after = query_value(query, "cursor");
    let start = after.map_or(0, |after| entries.partition_point(|(path, _)| *path <= after));
    let page: Vec<Value> = entries[start..].iter().take(limit).map(|(_, value)| value.clone()).collect();
    let mut response = json_body(&Value::Array(page));
    if start + limit < entries.len() {
        let cursor = utf8_percent_encode(&entries[start + limit - 1].0, NON_ALPHANUMERIC);
        let folder = if folder.is_empty() { String::new() } else { format!("/{folder}") };
        let next = format!(
            "<{base}/api/models/{}/tree/{commit}{folder}?recursive={recursive}&expand={expand}&limit={limit}&cursor={cursor}>; rel=\"next\"",
            repo.id
        );
        response.headers_mut().insert(LINK, HeaderValue::from_str(&next).map_err(|_| Refusal::NoSuchPage)?);
    }
    Ok(response)
}

/// Files and folders below `folder`, in path order.
fn entries(tree: &Tree, folder: &str, recursive: bool, expand: bool) -> Vec<(String, Value)> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut found: BTreeMap<String, Value> = BTreeMap::new();
    for (path, entry) in tree {
        let Some(below) = path.strip_prefix(&prefix) else { continue };
        let mut folders = below.match_indices('/').map(|(at, _)| &path[..prefix.len() + at]);
        let depth = if recursive { usize::MAX } else { 1 };
        for name in folders.by_ref().take(depth) {
            found.entry(name.to_owned()).or_insert_with(|| {
                json!({ "type": "directory", "oid": &hex(name.as_bytes()).repeat(40)[..40], "size": 0, "path": name })
            });
        }
        if recursive || !below.contains('/') {
            found.insert(path.clone(), file(path, entry, expand));
        }
    }
    found.into_iter().collect()
}

fn file(path: &str, entry: &Entry, expand: bool) -> Value {
    let mut value = json!({ "type": "file", "oid": entry.git_oid, "size": entry.size, "path": path });
    if let Some(lfs) = lfs(entry, "oid") {
        value["lfs"] = lfs;
    }
    if expand {
        value["lastCommit"] = json!({ "id": entry.git_oid, "title": "Upload", "date": MODIFIED });
        value["securityFileStatus"] = json!({ "status": "safe" });
    }
    value
}

/// The hub calls the hash `sha256` in one answer and `oid` in the other.
fn lfs(entry: &Entry, hash_name: &str) -> Option<Value> {
    let sha256 = entry.lfs_sha256.as_ref()?;
    let mut lfs = json!({ "size": entry.size, "pointerSize": pointer(sha256, entry.size).len() });
    lfs[hash_name] = json!(sha256);
    Some(lfs)
}

/// The decoded value of a query field.
pub(crate) fn query_value(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then(|| percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned())
    })
}
