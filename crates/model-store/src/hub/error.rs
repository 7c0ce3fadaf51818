//! Why a hub did not give what was asked for, told apart by what the caller can do about it.

use std::time::Duration;

use model_manifest::paths::PathError;

use crate::config::RetryPolicy;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The hub does not tell the two apart, so neither do we.
    #[error("{repo} is absent from {endpoint}, or private{}", if *.had_token { " and not for our token" } else { "" })]
    AbsentOrPrivate { repo: String, endpoint: String, had_token: bool },
    #[error("{repo} is gated: {message}")]
    Gated { repo: String, endpoint: String, message: String, had_token: bool },
    #[error("{repo} is refused: {message}")]
    Forbidden { repo: String, message: String },
    #[error("{endpoint} does not accept our token")]
    TokenRefused { endpoint: String },
    #[error("{repo} has no revision {revision}")]
    RevisionAbsent { repo: String, revision: String },
    #[error("{repo} has no file {path} in revision {revision}")]
    FileAbsent { repo: String, revision: String, path: String },
    #[error("the hub limits our requests{}", .wait.map(|w| format!("; it says to wait {} s", w.as_secs())).unwrap_or_default())]
    RateLimited { wait: Option<Duration> },
    #[error("the hub {endpoint} cannot be reached")]
    Unreachable { endpoint: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the hub answered with status {status}")]
    Status { status: u16 },
    #[error("the hub's answer makes no sense: {message}")]
    Protocol { message: String },
    #[error("{path} has {size} bytes, and at most {max} are read of it")]
    TooLarge { path: String, size: u64, max: u64 },
    #[error(transparent)]
    Name(#[from] PathError),
    #[error("the TLS library cannot be set up")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl HubError {
    /// Stable, snake_case; part of the API.
    pub fn code(&self) -> &'static str {
        match self {
            HubError::AbsentOrPrivate { .. } => "repository_absent_or_private",
            HubError::Gated { .. } => "repository_gated",
            HubError::Forbidden { .. } => "repository_forbidden",
            HubError::TokenRefused { .. } => "hub_token_refused",
            HubError::RevisionAbsent { .. } => "revision_not_found",
            HubError::FileAbsent { .. } => "file_not_found",
            HubError::RateLimited { .. } => "hub_rate_limited",
            HubError::Unreachable { .. } => "hub_unreachable",
            HubError::Status { .. } | HubError::Protocol { .. } => "hub_failed",
            HubError::TooLarge { .. } => "file_too_large",
            HubError::Name(_) => "name_invalid",
            HubError::Tls(_) => "tls_failed",
        }
    }

    /// What the router answers to who asked for it.
    pub fn http_status(&self) -> u16 {
        match self {
            HubError::AbsentOrPrivate { .. }
            | HubError::RevisionAbsent { .. }
            | HubError::FileAbsent { .. } => 404,
            HubError::Gated { .. } | HubError::Forbidden { .. } => 403,
            HubError::TooLarge { .. } | HubError::Name(_) => 400,
            HubError::RateLimited { .. } => 503,
            HubError::TokenRefused { .. }
            | HubError::Unreachable { .. }
            | HubError::Status { .. }
            | HubError::Protocol { .. } => 502,
            HubError::Tls(_) => 500,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            HubError::AbsentOrPrivate { had_token: false, .. } => {
                "check the spelling; if it is private, set HF_TOKEN to a token that may read it".to_owned()
            }
            HubError::AbsentOrPrivate { had_token: true, .. } => {
                "check the spelling, and that the account of HF_TOKEN may read it".to_owned()
            }
            HubError::Gated { repo, endpoint, had_token, .. } => {
                let token = if *had_token { "" } else { ", and set HF_TOKEN to a token of that account" };
                format!("ask for access on {}/{repo}{token}", endpoint.trim_end_matches('/'))
            }
            HubError::TokenRefused { .. } => {
                "set HF_TOKEN to a valid token, or unset it for public models".to_owned()
            }
            HubError::RevisionAbsent { .. } => "give a branch, tag or commit of the repository".to_owned(),
            HubError::RateLimited { .. } => {
                "try again later; with HF_TOKEN set the limits are higher".to_owned()
            }
            HubError::Unreachable { .. } => {
                "check the network, HF_ENDPOINT and the proxy settings of the machine".to_owned()
            }
            HubError::Status { .. } => "try again later".to_owned(),
            HubError::Protocol { .. } => {
                "check that HF_ENDPOINT is the address of a hub, and that no proxy answers in its place"
                    .to_owned()
            }
            _ => return None,
        })
    }

    /// When the hub said how long to leave it alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            HubError::RateLimited { wait } => *wait,
            _ => None,
        }
    }

    /// The whole chain in one line.
    pub fn message(&self) -> String {
        chain(self)
    }

    /// Whether the same request may go through later.
    pub fn is_transient(&self) -> bool {
        match self {
            HubError::Unreachable { .. } | HubError::RateLimited { .. } => true,
            HubError::Status { status } => matches!(status, 408 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// How long to wait before the next try; `None`: there should be none.
    pub(crate) fn pause(&self, policy: &RetryPolicy, failures: u32) -> Option<Duration> {
        match self {
            HubError::RateLimited { wait: Some(wait) } => {
                (*wait <= policy.wait_max).then(|| (*wait).max(policy.pause_after(failures)))
            }
            _ => self.is_transient().then(|| policy.pause_after(failures)),
        }
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
