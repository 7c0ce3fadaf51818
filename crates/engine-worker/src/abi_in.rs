//! From C to Rust: what a plugin hands out, copied, with nothing believed that can be checked.

use std::ffi::c_char;

use engine_abi as abi;
use engine_protocol::{FRAME_BYTES_MAX, Status, StatusCode};

/// A table of this many entries is a mistake, not a list of devices.
const ITEMS_MAX: u32 = 1 << 10;
/// No struct of any version comes near this.
const ELEMENT_BYTES_MAX: u64 = 64 << 10;

/// A struct that begins with its size in bytes.
///
/// # Safety
/// `repr(C)`, begins with a `u32` that is its size as its writer was compiled, and all zeroes is a valid value.
pub unsafe trait Growing: Copy {}

// SAFETY: all are repr(C), begin with struct_size, and hold numbers, raw pointers and optional functions only.
unsafe impl Growing for abi::EngineApi {}
// SAFETY: as above.
unsafe impl Growing for abi::Info {}
// SAFETY: as above.
unsafe impl Growing for abi::Device {}
// SAFETY: as above.
unsafe impl Growing for abi::DeviceNeed {}
// SAFETY: as above.
unsafe impl Growing for abi::Event {}
// SAFETY: as above.
unsafe impl Growing for abi::Status {}

/// Copies as much as both sides know; what the writer does not have is 0. `None` for a null pointer.
///
/// # Safety
/// `at` is null or points to as many readable bytes as its first word says.
pub unsafe fn read_sized<T: Growing>(at: *const T) -> Option<T> {
    if at.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise the first word at least can be read.
    let written = unsafe { at.cast::<u32>().read_unaligned() } as usize;
    // SAFETY: `Growing` says that all zeroes is a value.
    let mut out: T = unsafe { std::mem::zeroed() };
    let bytes = written.min(size_of::<T>());
    // SAFETY: both sides hold `bytes`, and `out` is our own.
    unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut out).cast::<u8>(), bytes) };
    Some(out)
}

/// The entries of an array whose stride its writer says.
///
/// # Safety
/// `items` points to `count` structs, `element_size` bytes apart.
pub unsafe fn read_items<T: Growing>(
    items: *const T,
    count: u32,
    element_size: u64,
    what: &str,
) -> Result<Vec<T>, Status> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let strange = |why: String| Err(broken(format!("{what}: {why}")));
    if count > ITEMS_MAX {
        return strange(format!("{count} entries, over the limit of {ITEMS_MAX}"));
    }
    if items.is_null() {
        return strange(format!("{count} entries at a null pointer"));
    }
    if element_size < size_of::<u32>() as u64 || element_size > ELEMENT_BYTES_MAX {
        return strange(format!("an element_size of {element_size} bytes"));
    }
    (0..count as usize)
        .map(|index| {
            // SAFETY: by the caller's promise the entry lies within the array.
            let at = unsafe { items.byte_add(index * element_size as usize) };
            // SAFETY: as above.
            unsafe { read_sized(at) }.ok_or_else(|| broken(format!("{what}: entry {index} is null")))
        })
        .collect()
}

/// Copies an array of plain values; empty for a null pointer.
///
/// # Safety
/// `items` is null or points to `count` values.
pub unsafe fn read_plain<T: Copy>(items: *const T, count: u32) -> Vec<T> {
    if items.is_null() || count == 0 || count as usize > FRAME_BYTES_MAX / size_of::<T>() {
        return Vec::new();
    }
    // SAFETY: not null, and by the caller's promise `count` values long.
    unsafe { std::slice::from_raw_parts(items, count as usize) }.to_vec()
}

/// Copies text; what is not UTF-8 becomes U+FFFD.
///
/// # Safety
/// `text` is null or points to `size` bytes.
pub unsafe fn read_text(text: abi::Str) -> String {
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { read_bytes(abi::Bytes { data: text.data.cast(), size: text.size }) };
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Copies bytes; none for a null pointer or a size that no message could carry.
///
/// # Safety
/// `bytes` is null or points to `size` bytes.
pub unsafe fn read_bytes(bytes: abi::Bytes) -> Vec<u8> {
    if bytes.data.is_null() || bytes.size == 0 || bytes.size > FRAME_BYTES_MAX {
        return Vec::new();
    }
    // SAFETY: not null, and by the caller's promise `size` bytes long.
    unsafe { std::slice::from_raw_parts(bytes.data, bytes.size) }.to_vec()
}

/// A status for the plugin to fill.
pub fn empty_status() -> abi::Status {
    abi::Status {
        struct_size: size_of::<abi::Status>() as u32,
        code: abi::OK,
        needed: 0,
        available: 0,
        reason: [0; abi::REASON_BYTES],
        message: [0; abi::MESSAGE_BYTES],
        param: [0; abi::PARAM_BYTES],
    }
}

/// What a call came to: its code, explained by the status it filled.
pub fn check(code: abi::Code, status: &abi::Status) -> Result<(), Status> {
    if code == abi::OK { Ok(()) } else { Err(read_status(code, status)) }
}

pub fn read_status(code: abi::Code, status: &abi::Status) -> Status {
    let mut message = c_text(&status.message);
    let mut reason = c_text(&status.reason);
    let code = match StatusCode::from_number(code) {
        Some(StatusCode::Ok) | None => {
            message = format!("the engine answered with the code {code}, which says no failure: {message}");
            StatusCode::Internal
        }
        Some(code) => code,
    };
    if reason.is_empty() {
        reason = "unspecified".to_owned();
    }
    if message.is_empty() {
        message = "the engine gave no message".to_owned();
    }
    let param = Some(c_text(&status.param)).filter(|param| !param.is_empty());
    Status { code, reason, message, needed: status.needed, available: status.available, param }
}

/// The plugin broke the contract in a way that could be noticed.
pub fn broken(message: String) -> Status {
    Status::new(StatusCode::Internal, "broken_engine", format!("the engine broke the ABI: {message}"))
}

fn c_text(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
