//! Log lines of an engine, into the node's log. From any thread; before `open` and after `close` they go nowhere.

use std::fmt::Display;

use crate::{SequenceId, abi};

/// Levels of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum LogLevel {
    /// Needs a person.
    Error = engine_abi::LOG_ERROR,
    /// It went on.
    Warn = engine_abi::LOG_WARN,
    /// A change of state.
    Info = engine_abi::LOG_INFO,
    Debug = engine_abi::LOG_DEBUG,
    Trace = engine_abi::LOG_TRACE,
}

/// Whether a line of this level would be kept: for messages that cost something to make.
pub fn enabled(level: LogLevel) -> bool {
    abi::enabled(level)
}

/// A line about a sequence (0: about none).
pub fn line(level: LogLevel, sequence: SequenceId, message: impl Display) {
    if enabled(level) {
        abi::log(level, sequence, &message.to_string());
    }
}

pub fn error(message: impl Display) {
    line(LogLevel::Error, 0, message);
}

pub fn warn(message: impl Display) {
    line(LogLevel::Warn, 0, message);
}

pub fn info(message: impl Display) {
    line(LogLevel::Info, 0, message);
}

pub fn debug(message: impl Display) {
    line(LogLevel::Debug, 0, message);
}

pub fn trace(message: impl Display) {
    line(LogLevel::Trace, 0, message);
}
