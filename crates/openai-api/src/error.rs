//! The body of every error answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `{"error": {…}}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// What went wrong, for programs and for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// Names the thing and the numbers.
    pub message: String,
    /// `invalid_request_error`, `not_found_error`, `conflict_error`, `unavailable_error`, `server_error`, …
    pub r#type: String,
    /// The field of the request it is about.
    pub param: Option<String>,
    /// Stable, snake_case: `model_not_found`, `context_length_exceeded`.
    pub code: Option<String>,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Where two numbers explain it, as an engine or a node counted them: bytes, or tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<Numbers>,
}

/// What was needed, and what there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Numbers {
    pub needed: u64,
    pub available: u64,
}
