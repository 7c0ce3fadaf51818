//! The hub's refusals, with the headers that its clients tell them apart by.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::json;

const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");
pub(crate) const REPO_COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");

/// Why the hub does not answer a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A token was sent and is not one of the hub's.
    BadToken,
    /// Absent, or private and not for this caller; the hub does not tell which. Without a token it says 401.
    RepoNotFound {
        anonymous: bool,
    },
    Gated {
        repo: String,
        anonymous: bool,
    },
    RevisionNotFound {
        revision: String,
    },
    EntryNotFound {
        path: String,
        commit: String,
    },
    NoSuchPage,
    MethodNotAllowed,
}

impl Refusal {
    pub fn into_response(self) -> Response {
        let (status, code, message) = match &self {
            Refusal::BadToken => {
                (StatusCode::UNAUTHORIZED, None, "Invalid credentials in Authorization header".to_owned())
            }
            Refusal::RepoNotFound { anonymous: true } => {
                (StatusCode::UNAUTHORIZED, Some("RepoNotFound"), "Invalid username or password.".to_owned())
            }
            Refusal::RepoNotFound { anonymous: false } => {
                (StatusCode::NOT_FOUND, Some("RepoNotFound"), "Repository not found".to_owned())
            }
            Refusal::Gated { repo, anonymous: true } => (
                StatusCode::UNAUTHORIZED,
                Some("GatedRepo"),
                format!(
                    "Access to model {repo} is restricted. You must have access to it and be authenticated."
                ),
            ),
            Refusal::Gated { repo, anonymous: false } => (
                StatusCode::FORBIDDEN,
                Some("GatedRepo"),
                format!("Access to model {repo} is restricted and you are not in the authorized list."),
            ),
            Refusal::RevisionNotFound { revision } => {
                (StatusCode::NOT_FOUND, Some("RevisionNotFound"), format!("Invalid rev id: {revision}"))
            }
            Refusal::EntryNotFound { .. } => {
                (StatusCode::NOT_FOUND, Some("EntryNotFound"), "Entry not found".to_owned())
            }
            Refusal::NoSuchPage => (StatusCode::NOT_FOUND, None, "Sorry, we can't find the page".to_owned()),
            Refusal::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, None, "Method not allowed".to_owned())
            }
        };
        let mut response = error(status, &message);
        let headers = response.headers_mut();
        if let Some(code) = code {
            headers.insert(ERROR_CODE, HeaderValue::from_static(code));
        }
        if let Ok(message) = HeaderValue::from_str(&message) {
            headers.insert(ERROR_MESSAGE, message);
        }
        if let Refusal::EntryNotFound { commit, .. } = &self
            && let Ok(commit) = HeaderValue::from_str(commit)
        {
            headers.insert(REPO_COMMIT, commit);
        }
        response
    }
}

/// A JSON error as the hub words it.
pub(crate) fn error(status: StatusCode, message: &str) -> Response {
    let mut response = Response::new(Body::from(json!({ "error": message }).to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
    response
}

pub(crate) fn json_body(value: &serde_json::Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
    response
}
