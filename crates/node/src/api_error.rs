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
use crate::worker::{EndCause, RequestEnd, WorkerError};

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
    let said = (numbers != [0, 0]).then_some((status.needed, status.available));
    if numbers != [0, 0] && !numbers.iter().all(|n| message.contains(&n.to_string())) {
        message = format!("{message} (needed {}, available {})", status.needed, status.available);
    }
    let hint = match status.code {
        StatusCode::OomVram | StatusCode::OomRam => Some(ROOM_HINT),
        StatusCode::ModelCorrupt => Some("remove the model's files from the cache, or register it again"),
        StatusCode::AbiMismatch => Some("install a build of the engine for this version of llm-router"),
        _ => None,
    };
    ApiError {
        hint: hint.map(str::to_owned),
        numbers: said,
        param: status.param.clone(),
        ..plain(http, &code, message, retry)
    }
}

const ROOM_HINT: &str =
    "set a smaller context_length or sequences_max, end other programs, or use a device with more memory";

pub fn of_worker(error: &WorkerError) -> ApiError {
    let (status, code) = match error {
        WorkerError::Status(status) => return of_status(status),
        WorkerError::Start { .. } | WorkerError::Hello(_) => (503, "worker_not_started"),
        WorkerError::Ended(end) => return of_end(&RequestEnd::Worker(end.clone())),
        WorkerError::Send(_) => (503, "worker_busy"),
    };
    plain(status, code, error.to_string(), true)
}

/// A request whose worker went, or whose reader did not read. The router may send it again where nothing of it was sent.
pub fn of_end(end: &RequestEnd) -> ApiError {
    let RequestEnd::Worker(end) = end else { return of_status(&end.status()) };
    let (status, code) = match end.cause {
        EndCause::Asked => (503, "worker_ended"),
        EndCause::Crashed | EndCause::Garbage => (500, "worker_died"),
        EndCause::Hung => (500, "worker_hung"),
        EndCause::OverBudget => (500, "worker_over_budget"),
    };
    let worker_died = end.cause != EndCause::Asked;
    ApiError { worker_died, ..plain(status, code, end.reason.to_string(), true) }
}

pub fn of_no_room(model: &str, no: &NoRoom) -> ApiError {
    let NoRoom { device, needed, available, context_length, sequences_max, waited, holders } = no;
    let mut message = format!(
        "{model} with {sequences_max} sequences of {context_length} tokens needs {needed} bytes on {device}, \
         available are {available}"
    );
    if let Some(waited) = waited {
        message = format!("{message}; it waited {} s for other models to leave", waited.as_secs());
    }
    if !holders.is_empty() {
        message = format!("{message}; loaded there: {}", holders.join(", "));
    }
    let code = if device == "cpu" { "out_of_ram" } else { "out_of_vram" };
    ApiError {
        hint: Some(ROOM_HINT.to_owned()),
        numbers: Some((*needed, *available)),
        ..plain(507, code, message, true)
    }
}

pub fn of_store(model: &str, error: &StoreError) -> ApiError {
    let message = format!("the files of {model} are not in order: {}", error.message());
    ApiError { hint: error.hint(), ..plain(503, error.code(), message, true) }
}

pub fn plain(status: u16, code: &str, message: impl Into<String>, retry: bool) -> ApiError {
    ApiError { status, code: code.to_owned(), message: message.into(), retry, ..ApiError::default() }
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
    fn the_document_for_callers_has_the_same_statuses() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/error-codes.md");
        let document = std::fs::read_to_string(path).unwrap();
        for code in StatusCode::ALL.into_iter().filter(|code| *code != StatusCode::Ok) {
            let cell = format!("| `{}` | ", code.name());
            let row = document.lines().find_map(|line| line.split_once(&cell)).map(|(_, rest)| rest);
            let row = row.unwrap_or_else(|| panic!("no row of the table has {code}"));
            let http = of_status(&Status::new(code, "", "m")).status.to_string();
            assert!(
                row.split(" | ").next().is_some_and(|cell| cell.contains(&http)),
                "{code}: {http} is not in {row}"
            );
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
