//! The router's half of joining: is this a node of our version, and what to answer it.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::{ApiError, UPGRADE_TOKEN};

/// Checks the headers of a request to [`crate::LINK_PATH`] and returns the join secret it carries.
///
/// 426 for another protocol or version, 401 without a bearer token. Whether the secret is right is the caller's to say.
pub fn check_upgrade(headers: &HeaderMap) -> Result<&str, ApiError> {
    let names = |header, token: &str| {
        headers
            .get_all(header)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .any(|v| v.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
    };
    if !names(CONNECTION, "upgrade") || !names(UPGRADE, UPGRADE_TOKEN) {
        let asked = headers.get(UPGRADE).and_then(|v| v.to_str().ok()).unwrap_or("nothing");
        return Err(ApiError {
            status: StatusCode::UPGRADE_REQUIRED.as_u16(),
            code: "protocol_version".to_owned(),
            message: format!("this router speaks {UPGRADE_TOKEN}, the node asked for {asked}"),
            hint: Some("run the same version of llm-router on router and node".to_owned()),
            ..ApiError::default()
        });
    }
    headers
        .get(AUTHORIZATION)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.strip_prefix("Bearer "))
        .ok_or_else(|| ApiError {
            status: StatusCode::UNAUTHORIZED.as_u16(),
            code: "join_secret_missing".to_owned(),
            message: "the node sent no join secret".to_owned(),
            hint: Some("start the node with the router's join secret".to_owned()),
            ..ApiError::default()
        })
}

/// 101: take the upgraded connection of the request after sending it.
pub fn switching_protocols<B: Default>() -> Response<B> {
    let mut response = Response::new(B::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(UPGRADE_TOKEN));
    response
}

/// The answer to a node that is not taken: the error as JSON with its status; 426 says what is spoken here.
pub fn error_response<B: From<Vec<u8>>>(error: &ApiError) -> Response<B> {
    let body = serde_json::to_vec(error).expect("an error holds only strings and numbers");
    let mut response = Response::new(B::from(body));
    *response.status_mut() = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if response.status() == StatusCode::UPGRADE_REQUIRED {
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static(UPGRADE_TOKEN));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    response
}
