//! What goes wrong here in the words of the contract: status, code, message, hint.
//!
//! | engine's code | HTTP | | engine's code | HTTP |
//! |---|---|---|---|---|
//! | `OOM_VRAM`, `OOM_RAM` | 507 | | `UNSUPPORTED` | 400 |
//! | `MODEL_CORRUPT` | 503 | | `INTERNAL` | 500 |
//! | `TIMEOUT` | 504 | | `ABI_MISMATCH`, `LOAD_FAILED` | 503 |
//! | `CANCELLED` | 499, for logs | | | |

use engine_protocol::{Status, StatusCode};
use model_store::StoreError;
use node_api::ApiError;

use crate::memory::NoRoom;
use crate::worker::WorkerError;

/// The engine's own answer; its reason is the code, its numbers are in the message.
pub fn of_status(status: &Status) -> ApiError {
    let (http, retry) = match status.code {
        StatusCode::OomVram | StatusCode::OomRam => (507, true),
        StatusCode::ModelCorrupt | StatusCode::AbiMismatch | StatusCode::LoadFailed => (503, true),
        StatusCode::Timeout => (504, true),
        StatusCode::Cancelled => (499, false),
        StatusCode::Unsupported => (400, false),
        // An engine that reports success as a failure is broken.
        StatusCode::Internal | StatusCode::Ok => (500, false),
    };
    let code =
        if status.reason.is_empty() { status.code.name().to_lowercase() } else { status.reason.clone() };
    let numbers = [status.needed, status.available];
    let mut message = status.message.clone();
    if numbers != [0, 0] && !numbers.iter().all(|n| message.contains(&n.to_string())) {
        message = format!("{message} (needed {}, available {})", status.needed, status.available);
    }
    let hint = match status.code {
        StatusCode::OomVram | StatusCode::OomRam => Some(ROOM_HINT),
        StatusCode::ModelCorrupt => Some("remove the model's files from the cache, or register it again"),
        StatusCode::AbiMismatch => Some("install a build of the engine for this version of llm-router"),
        _ => None,
    };
    ApiError { status: http, code, message, hint: hint.map(str::to_owned), retry }
}

const ROOM_HINT: &str =
    "set a smaller context_length or sequences_max, end other programs, or use a device with more memory";

pub fn of_worker(error: &WorkerError) -> ApiError {
    let (status, code) = match error {
        WorkerError::Status(status) => return of_status(status),
        WorkerError::Start { .. } | WorkerError::Hello(_) => (503, "worker_not_started"),
        WorkerError::Ended(_) => (500, "worker_died"),
        WorkerError::Silent { .. } => (504, "worker_silent"),
        WorkerError::Send(_) => (503, "worker_busy"),
    };
    plain(status, code, error.to_string(), true)
}

pub fn of_no_room(model: &str, no: &NoRoom) -> ApiError {
    let NoRoom { device, needed, available, context_length, sequences_max } = no;
    let message = format!(
        "{model} with {sequences_max} sequences of {context_length} tokens needs {needed} bytes on {device}, \
         available are {available}"
    );
    let code = if device == "cpu" { "out_of_ram" } else { "out_of_vram" };
    ApiError { hint: Some(ROOM_HINT.to_owned()), ..plain(507, code, message, true) }
}

pub fn of_store(model: &str, error: &StoreError) -> ApiError {
    let message = format!("the files of {model} are not in order: {}", error.message());
    ApiError { hint: error.hint(), ..plain(503, error.code(), message, true) }
}

pub fn plain(status: u16, code: &str, message: impl Into<String>, retry: bool) -> ApiError {
    ApiError { status, code: code.to_owned(), message: message.into(), hint: None, retry }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_http_status() {
        let expected = [500, 507, 507, 503, 504, 499, 400, 500, 503, 503];
        for (code, http) in StatusCode::ALL.into_iter().zip(expected) {
            assert_eq!(of_status(&Status::new(code, "", "m")).status, http, "{code}");
        }
    }

    #[test]
    fn reason_and_numbers_stay_whole() {
        let status =
            Status::new(StatusCode::Unsupported, "context_length_exceeded", "the prompt is too long");
        let error = of_status(&status.with_numbers(5000, 4096));
        assert_eq!(error.code, "context_length_exceeded");
        assert_eq!(error.message, "the prompt is too long (needed 5000, available 4096)");
        let status = Status::new(StatusCode::OomRam, "", "5 of 4").with_numbers(5, 4);
        let error = of_status(&status);
        assert_eq!((error.code.as_str(), error.message.as_str()), ("oom_ram", "5 of 4"));
    }
}
