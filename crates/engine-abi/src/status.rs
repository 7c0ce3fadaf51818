//! `llmr_status`: why something failed.

use std::ffi::c_char;

use crate::{MESSAGE_BYTES, PARAM_BYTES, REASON_BYTES};

/// One of the ten codes, [`crate::OK`] to [`crate::LOAD_FAILED`]; an integer because a plugin may send anything.
pub type Code = i32;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Status {
    pub struct_size: u32,
    pub code: Code,
    pub needed: u64,
    pub available: u64,
    /// NUL-terminated.
    pub reason: [c_char; REASON_BYTES],
    /// NUL-terminated UTF-8.
    pub message: [c_char; MESSAGE_BYTES],
    /// Name of the field that was refused; empty: none.
    pub param: [c_char; PARAM_BYTES],
}
