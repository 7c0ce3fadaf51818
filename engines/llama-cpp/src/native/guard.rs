//! The Rust side of `guard.cpp`: functions of llama.cpp whose exceptions are results.

use std::ffi::{CStr, c_char};

use llama_cpp_sys_2 as sys;

unsafe extern "C" {
    pub(super) fn llmr_llama_tokenize(
        vocabulary: *const sys::llama_vocab,
        text: *const c_char,
        bytes: i32,
        ids: *mut sys::llama_token,
        room: i32,
        with_around: bool,
        count: *mut i32,
        words: *mut c_char,
        words_bytes: usize,
    ) -> bool;

    pub(super) fn llmr_llama_decode(
        context: *mut sys::llama_context,
        batch: *const sys::llama_batch,
        code: *mut i32,
        words: *mut c_char,
        words_bytes: usize,
    ) -> bool;
}

const _: () = assert!(size_of::<sys::llama_batch>() == 7 * size_of::<usize>(), "guard.cpp repeats it");

/// Of what an exception says, so much is kept.
const WORDS_BYTES: usize = 256;

/// Calls one of these with room for its words.
///
/// # Errors
/// What was thrown, in its own words.
pub(super) fn guarded(call: impl FnOnce(*mut c_char, usize) -> bool) -> Result<(), String> {
    let mut words = [0u8; WORDS_BYTES];
    if call(words.as_mut_ptr().cast(), words.len()) {
        return Ok(());
    }
    Err(CStr::from_bytes_until_nul(&words).unwrap_or_default().to_string_lossy().into_owned())
}
