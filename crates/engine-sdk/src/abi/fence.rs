//! Where panics stop: nothing but a status crosses into the host.

use std::panic::{AssertUnwindSafe, catch_unwind};

use engine_abi as c;

use super::output;
use crate::{Status, log, reason};

/// Runs a function of the table. A panic becomes `INTERNAL` `panic` with the panic's own words.
pub(super) fn fence(status: *mut c::Status, run: impl FnOnce() -> Result<(), Status>) -> c::Code {
    match caught(run) {
        Ok(()) => c::OK,
        Err(why) => {
            // SAFETY: the host passes null or a live llmr_status with its struct_size set.
            unsafe { output::status(status, &why) };
            why.code as c::Code
        }
    }
}

/// Runs something of the engine's that may panic.
pub(super) fn caught<T>(run: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    // What a panic may have left half done is either dropped by the caller or ended by `Runner::fail_all`.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let words = payload
            .downcast_ref::<&'static str>()
            .map(|s| (*s).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "it gave no words".to_owned());
        // Dropping a payload runs code of the engine's, which may panic again.
        std::mem::forget(payload);
        let status = Status::internal(reason::PANIC, format!("the engine panicked: {words}"));
        log::error(&status);
        Err(status)
    })
}

/// Runs what has no status to answer with.
pub(super) fn quiet<T>(run: impl FnOnce() -> T) -> Option<T> {
    caught(|| Ok(run())).ok()
}
