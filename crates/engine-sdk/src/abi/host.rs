//! The host that opened the engine: where log lines go.

use std::sync::{PoisonError, RwLock};

use engine_abi as c;

use super::output;
use crate::{LogLevel, SequenceId, Status};

/// UNSUPPORTED: `open` while the engine is open.
const ALREADY_OPEN: &str = "already_open";

static HOST: RwLock<Option<Host>> = RwLock::new(None);

#[derive(Clone, Copy)]
struct Host {
    context: *mut std::ffi::c_void,
    log: unsafe extern "C" fn(*mut std::ffi::c_void, c::LogLevel, c::Str, u64),
    level: c::LogLevel,
}

// SAFETY: the header lets any thread call log with the context until close returns; HOST is empty before that.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

pub(super) fn open(host: &c::Host) -> Result<(), Status> {
    let Some(log) = host.log else {
        return Err(Status::internal(crate::reason::NULL_ARGUMENT, "host.log is null"));
    };
    let mut place = HOST.write().unwrap_or_else(PoisonError::into_inner);
    if place.is_some() {
        return Err(Status::unsupported(ALREADY_OPEN, "the engine is open already; close comes first"));
    }
    *place = Some(Host { context: host.context, log, level: host.log_level });
    Ok(())
}

/// No line goes to the host after this has returned.
pub(super) fn close() {
    *HOST.write().unwrap_or_else(PoisonError::into_inner) = None;
}

pub(crate) fn enabled(level: LogLevel) -> bool {
    HOST.read().unwrap_or_else(PoisonError::into_inner).is_some_and(|host| level as c::LogLevel <= host.level)
}

/// One line to the host, if one is there and wants it.
pub(crate) fn log(level: LogLevel, sequence: SequenceId, message: &str) {
    // The lock is held during the call: close waits for it.
    let host = HOST.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(host) = host.filter(|host| level as c::LogLevel <= host.level) {
        // SAFETY: between open and close, by the lock; the message lives for the call.
        unsafe { (host.log)(host.context, level as c::LogLevel, output::text(message), sequence) };
    }
}
