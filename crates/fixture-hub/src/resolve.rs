//! `/{repo}/resolve/{revision}/{path}`: where a file's bytes are, and the small ones themselves.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::answer::REPO_COMMIT;
use crate::content::insert;
use crate::repo::Entry;

const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
/// What stays itself in a path.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(crate) fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Large files: 302 to the content network, with what the file is in the headers of the redirect.
pub(crate) fn to_content_network(
    cdn_base: &str,
    signature: &str,
    commit: &str,
    path: &str,
    entry: &Entry,
) -> Response {
    let name = path.rsplit('/').next().unwrap_or(path);
    let location = format!(
        "{cdn_base}/blobs/{}/{}?response-content-disposition=inline&Expires=4102444800&Signature={signature}",
        entry.etag(),
        encode_path(name),
    );
    redirect(StatusCode::FOUND, &location, commit, entry)
}

/// Small files: 307 to a page of the hub itself, without host, that browsers and proxies may keep.
pub(crate) fn to_resolve_cache(repo: &str, commit: &str, path: &str, entry: &Entry) -> Response {
    let etag = utf8_percent_encode(entry.etag(), NON_ALPHANUMERIC);
    let location =
        format!("/api/resolve-cache/models/{repo}/{commit}/{}?etag=%22{etag}%22", encode_path(path));
    redirect(StatusCode::TEMPORARY_REDIRECT, &location, commit, entry)
}

fn redirect(status: StatusCode, location: &str, commit: &str, entry: &Entry) -> Response {
    let mut response = Response::new(Body::from(format!("{status}. Redirecting to {location}")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    insert(headers, header::LOCATION, location);
    insert(headers, REPO_COMMIT, commit);
    insert(headers, LINKED_ETAG, &format!("\"{}\"", entry.etag()));
    headers.insert(LINKED_SIZE, HeaderValue::from(entry.size));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    response
}

/// A repository that has another name now: the same page under the new name, without host.
pub(crate) fn to_new_name(path_and_query: &str, old: &str, new: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    insert(response.headers_mut(), header::LOCATION, &path_and_query.replacen(old, new, 1));
    response
}
