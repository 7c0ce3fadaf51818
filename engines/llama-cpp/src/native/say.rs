//! What llama.cpp and GGML print, as log lines of the engine.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use engine_sdk::LogLevel;
use engine_sdk::log;
use llama_cpp_sys_2 as sys;

/// A line that comes in pieces, and its level. Pieces of several threads are put together in the order in which they come.
static UNFINISHED: Mutex<(LogLevel, String)> = Mutex::new((LogLevel::Debug, String::new()));

thread_local! {
    /// What went wrong on this thread, for the status of the call that failed: the cause first, then who gave up for it.
    static ERRORS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// llama.cpp tells what it does at length; a change of state, which is what INFO means here, the engine says itself.
const LEVEL_OF_INFO: LogLevel = LogLevel::Debug;
/// As many bytes of errors as a status has room for.
const ERRORS_BYTES_MAX: usize = 800;
/// A line longer than this is cut, so that a stream without line ends cannot fill the memory.
const LINE_BYTES_MAX: usize = 16 << 10;

pub(super) fn listen() {
    // SAFETY: both functions live as long as the process and may be called on any thread.
    unsafe {
        sys::llama_log_set(Some(line), std::ptr::null_mut());
        sys::ggml_set_abort_callback(Some(aborted));
    }
}

/// The errors of this thread since the last call, if there were any.
pub(super) fn take_error() -> Option<String> {
    Some(ERRORS.take()).filter(|errors| !errors.is_empty())
}

/// # Safety
/// `text` is a C string.
unsafe extern "C" fn line(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: GGML passes a C string, borrowed for the call.
    let Some(text) = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy()) else {
        return;
    };
    let level = match level {
        sys::GGML_LOG_LEVEL_ERROR => Some(LogLevel::Error),
        sys::GGML_LOG_LEVEL_WARN => Some(LogLevel::Warn),
        sys::GGML_LOG_LEVEL_INFO => Some(LEVEL_OF_INFO),
        sys::GGML_LOG_LEVEL_CONT => None,
        _ => Some(LogLevel::Trace),
    };
    let whole = whole_lines(level, &text, &mut UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner));
    for (level, text) in whole {
        if level == LogLevel::Error {
            ERRORS.with_borrow_mut(|errors| {
                if errors.len() + text.len() <= ERRORS_BYTES_MAX {
                    *errors += if errors.is_empty() { "" } else { "; " };
                    *errors += &text;
                }
            });
        }
        log::line(level, 0, text);
    }
}

/// The lines that are whole with this piece; without a level it goes on with the last one.
fn whole_lines(
    level: Option<LogLevel>,
    text: &str,
    unfinished: &mut (LogLevel, String),
) -> Vec<(LogLevel, String)> {
    let mut whole = Vec::new();
    if let Some(level) = level {
        // A new line begins, whether the last one was ended or not.
        whole.extend(finished(unfinished));
        unfinished.0 = level;
    }
    for piece in text.split_inclusive('\n') {
        if unfinished.1.len() + piece.len() <= LINE_BYTES_MAX {
            unfinished.1 += piece.trim_end_matches('\n');
        }
        if piece.ends_with('\n') {
            whole.extend(finished(unfinished));
        }
    }
    whole
}

/// The line that has come together, if it says anything but that something goes on.
fn finished(unfinished: &mut (LogLevel, String)) -> Option<(LogLevel, String)> {
    let text = std::mem::take(&mut unfinished.1);
    let says = text.trim().trim_matches('.');
    (!says.is_empty()).then(|| (unfinished.0, text.trim().to_owned()))
}

/// # Safety
/// `message` is a C string.
unsafe extern "C" fn aborted(message: *const c_char) {
    if message.is_null() {
        return;
    }
    // SAFETY: GGML passes a C string, borrowed for the call.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    log::error(format_args!("llama.cpp ends the process: {message}"));
    // The line above may not get out before the process is gone; what is on stderr the node has as its last words. Where even
    // that cannot be written nobody is left to be told.
    let _ = writeln!(std::io::stderr(), "llama.cpp ends the process: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that come of these pieces, one after another.
    fn of(pieces: &[(Option<LogLevel>, &str)]) -> Vec<(LogLevel, String)> {
        let mut unfinished = (LogLevel::Debug, String::new());
        pieces.iter().flat_map(|(level, text)| whole_lines(*level, text, &mut unfinished)).collect()
    }

    fn line(level: LogLevel, text: &str) -> (LogLevel, String) {
        (level, text.to_owned())
    }

    #[test]
    fn a_line_has_the_level_it_began_with_however_many_pieces_it_comes_in() {
        let lines = of(&[
            (Some(LogLevel::Warn), "one "),
            (None, "and "),
            (None, "two\n"),
            (Some(LogLevel::Error), "three\n"),
        ]);
        assert_eq!(lines, [line(LogLevel::Warn, "one and two"), line(LogLevel::Error, "three")]);
    }

    #[test]
    fn a_line_without_an_end_is_ended_by_the_next_and_dots_of_progress_are_none() {
        let lines = of(&[
            (Some(LogLevel::Warn), "cut short"),
            (Some(LogLevel::Debug), "."),
            (None, "..."),
            (None, "\n"),
            (Some(LogLevel::Error), "first\nsecond\n"),
        ]);
        let expected = [
            line(LogLevel::Warn, "cut short"),
            line(LogLevel::Error, "first"),
            line(LogLevel::Error, "second"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_stream_without_line_ends_does_not_grow() {
        let piece = "x".repeat(LINE_BYTES_MAX / 4 + 1);
        let mut unfinished = (LogLevel::Debug, String::new());
        for _ in 0..100 {
            assert!(whole_lines(None, &piece, &mut unfinished).is_empty());
        }
        assert!(unfinished.1.len() <= LINE_BYTES_MAX);
    }
}
