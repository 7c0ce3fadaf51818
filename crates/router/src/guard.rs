//! What every request passes first: it is meant for this router, comes from no foreign web page, and has a name.
//!
//! Without keys the loopback address is all that protects a router, and any web page in the user's browser can send
//! requests there. So the `Host` has to be a loopback name (a page whose name was made to point here has its own), an
//! `Origin` has to be the router's own, and bodies have to be `application/json`, which a browser sends across origins only
//! after asking.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use tracing::Instrument as _;
use uuid::Uuid;

use crate::app::App;
use crate::error::Failure;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_CHARS_MAX: usize = 128;

/// The name of a request: the caller's, or one of ours.
#[derive(Debug, Clone, Default)]
pub struct RequestId(pub String);

/// Names the request, checks it, counts it, and puts the name on the answer and on every log line about it.
pub async fn guard(State(app): State<Arc<App>>, mut request: Request<Body>, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let (id, refused) = match request_id(request.headers()) {
        Ok(id) => (id, check(&request).err()),
        Err(failure) => (new_id(), Some(failure)),
    };
    let span = tracing::info_span!("request", id, method = %request.method(), path = request.uri().path());
    request.extensions_mut().insert(RequestId(id.clone()));
    let answer = async move {
        match refused {
            Some(failure) => failure.into_response(),
            None => next.run(request).await,
        }
    };
    let mut response = answer.instrument(span).await;
    app.metrics.answered(route.as_ref().map(MatchedPath::as_str), &method, response.status());
    let header = HeaderValue::try_from(id).expect("a request id is printable ASCII");
    response.headers_mut().insert(REQUEST_ID, header);
    response
}

fn new_id() -> String {
    format!("req-{}", Uuid::now_v7().simple())
}

fn request_id(headers: &HeaderMap) -> Result<String, Failure> {
    let Some(value) = headers.get(REQUEST_ID) else { return Ok(new_id()) };
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(b);
    let bytes = value.as_bytes();
    if bytes.is_empty() || bytes.len() > REQUEST_ID_CHARS_MAX || !bytes.iter().all(fits) {
        let message = format!(
            "the header x-request-id must have 1 to {REQUEST_ID_CHARS_MAX} characters out of letters, digits and -_.:/+=@"
        );
        return Err(Failure::bad_request("invalid_request_id", message).param("x-request-id"));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn check(request: &Request<Body>) -> Result<(), Failure> {
    let host = host(request.headers(), request.uri())
        .ok_or_else(|| Failure::bad_request("host_missing", "the request names no host"))?;
    if !is_loopback(&host) {
        let message =
            format!("this router serves its own machine only, and the request is for the host {host}");
        return Err(Failure::new(StatusCode::FORBIDDEN, "host_not_allowed", message)
            .hint("use http://127.0.0.1 or http://localhost with the router's port"));
    }
    if let Some(origin) = request.headers().get(ORIGIN) {
        let own = format!("http://{host}");
        if !origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()) {
            let shown = String::from_utf8_lossy(origin.as_bytes());
            let message =
                format!("requests of web pages of {shown} are refused; this router's own origin is {own}");
            return Err(Failure::new(StatusCode::FORBIDDEN, "origin_not_allowed", message));
        }
    }
    let has_body = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
    if has_body && !is_json(request.headers()) {
        let message = "the header content-type must be application/json";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type_not_json", message)
            .param("content-type"));
    }
    Ok(())
}

/// `Host`, or the authority of an HTTP/2 request.
fn host(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    match headers.get(HOST) {
        Some(value) => value.to_str().ok().map(str::to_owned),
        None => uri.authority().map(|a| a.as_str().to_owned()),
    }
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|a| a.is_loopback())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()) else { return false };
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests;
