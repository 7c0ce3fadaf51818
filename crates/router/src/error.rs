//! Errors on their way to a caller: one message for the caller, another for the log.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use node_api::ApiError;
use openai_api::{ErrorBody, ErrorDetail, InvalidRequest, Numbers};

/// Clients of the OpenAI API look at it before they try again by themselves.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What the caller is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub status: StatusCode,
    /// Stable, snake_case.
    pub code: String,
    pub message: String,
    pub param: Option<Box<str>>,
    pub hint: Option<Box<str>>,
    /// Needed and available, where they explain it.
    pub numbers: Option<(u64, u64)>,
    pub retry: Retry,
    /// For the log only: what went wrong inside.
    pub log: Option<Box<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Nothing is said.
    Unsaid,
    /// After so many seconds.
    After(u32),
    /// It would only happen again.
    Useless,
}

impl Failure {
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Failure {
        Failure {
            status,
            code: code.to_owned(),
            message: message.into(),
            param: None,
            hint: None,
            numbers: None,
            retry: Retry::Unsaid,
            log: None,
        }
    }

    pub fn bad_request(code: &str, message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Our own mistake or the machine's: the caller learns no more than that, the log has `cause` with its whole chain.
    pub fn internal(operation: &str, cause: &dyn std::error::Error) -> Failure {
        let message = format!("the router failed to {operation}; its log says why");
        let mut failure = Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message);
        failure.log = Some(chain(cause).into());
        failure
    }

    pub fn param(mut self, param: impl Into<Box<str>>) -> Failure {
        self.param = Some(param.into());
        self
    }

    pub fn hint(mut self, hint: impl Into<Box<str>>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    pub fn retry(mut self, retry: Retry) -> Failure {
        self.retry = retry;
        self
    }

    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                r#type: kind(self.status).to_owned(),
                param: self.param.clone().map(String::from),
                code: Some(self.code.clone()),
                hint: self.hint.clone().map(String::from),
                numbers: self.numbers.map(|(needed, available)| Numbers { needed, available }),
            },
        }
    }

    /// Writes the log line of a failure; called once, where it leaves the router.
    pub fn log(&self) {
        let cause = self.log.as_deref().unwrap_or(&self.message);
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), code = self.code, cause, "request failed");
        } else {
            tracing::debug!(status = self.status.as_u16(), code = self.code, cause, "request refused");
        }
    }
}

/// An error with all its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The `type` of OpenAI's error body.
fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        429 => "rate_limit_error",
        502 => "upstream_error",
        503 | 504 | 507 => "unavailable_error",
        500..=599 => "server_error",
        _ => "invalid_request_error",
    }
}

impl From<InvalidRequest> for Failure {
    fn from(error: InvalidRequest) -> Failure {
        let mut failure = Failure::bad_request(error.code, error.message);
        failure.param = error.param.map(Into::into);
        failure.hint = error.hint.map(Into::into);
        failure
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        let status = StatusCode::from_u16(error.status)
            .ok()
            .filter(|s| s.is_client_error() || s.is_server_error())
            .unwrap_or(StatusCode::BAD_GATEWAY);
        let retry = match (status.is_server_error(), error.retry) {
            (true, false) => Retry::Useless,
            (true, true) => Retry::After(crate::cluster::RETRY_AFTER_SECONDS),
            (false, _) => Retry::Unsaid,
        };
        Failure {
            status,
            code: error.code,
            message: error.message,
            param: error.param.map(Into::into),
            hint: error.hint.map(Into::into),
            numbers: error.numbers,
            retry,
            log: None,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.log();
        let mut response = (self.status, Json(self.body())).into_response();
        match self.retry {
            Retry::Unsaid => {}
            Retry::After(seconds) => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Retry::Useless => {
                response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
        }
        response
    }
}
