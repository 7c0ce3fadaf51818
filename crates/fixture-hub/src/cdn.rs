//! The content network: blobs by hash, for whoever has a signed address and carries no token.

use axum::http::{Method, StatusCode, Uri, header};
use axum::response::Response;

use crate::answer::error;
use crate::api::query_value;
use crate::content;
use crate::server::State;

pub(crate) fn answer(state: &State, method: &Method, uri: &Uri, headers: &axum::http::HeaderMap) -> Response {
    // What a real one does with two ways of signing in one request.
    if headers.contains_key(header::AUTHORIZATION) {
        return error(StatusCode::BAD_REQUEST, "Only one auth mechanism allowed");
    }
    let signature = query_value(uri.query().unwrap_or_default(), "Signature");
    if signature.as_deref() != Some(state.signature.as_str()) {
        return error(StatusCode::FORBIDDEN, "Access denied");
    }
    let hash = uri.path().strip_prefix("/blobs/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let Some((path, entry)) = state.blob(hash) else {
        return error(StatusCode::NOT_FOUND, "No such blob");
    };
    let fault = if method == Method::GET { state.faults.take(&path) } else { None };
    let mut response = content::send(&entry, method, headers, fault, state.stalls.subscribe());
    // Unlike the hub's: the network has its own idea of an ETag.
    content::insert(
        response.headers_mut(),
        header::ETAG,
        &format!("\"cdn-{}\"", &hash[..16.min(hash.len())]),
    );
    response
}
