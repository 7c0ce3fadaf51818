//! llama.cpp behind safe functions: the one place with unsafe code.
//!
//! C++ exceptions do not leave llama.cpp's C functions that load and make contexts; those of the tokenizer, which meets text
//! of strangers, and of a pass stop in `guard.cpp`. Any other ends the process, as GGML's aborts always do. That is why this runs in a
//! worker: the node survives, and finds the reason in the last lines.

mod context;
mod file;
mod guard;
mod model;
mod processor;
mod say;

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Once;

use engine_sdk::{Device, Status, reason};
use llama_cpp_sys_2 as sys;

pub(crate) use context::{Context, ContextParameters, DecodeError, PASS_TOKENS_MAX};
pub(crate) use file::{Tensor, tensors};
pub(crate) use model::{LoadParameters, LoadedModel, Token};

/// Tells llama.cpp where its lines go, and makes its backends known. Before anything else of it.
fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        say::listen();
        // SAFETY: nothing of llama.cpp runs yet.
        unsafe { sys::llama_backend_init() };
    });
}

/// The devices besides the CPU, in llama.cpp's order.
///
/// # Errors
/// `UNSUPPORTED` `unsupported_processor` where nothing of llama.cpp can run.
pub(crate) fn accelerators() -> Result<Vec<Device>, Status> {
    processor::check()?;
    start();
    let mut devices: Vec<Device> = Vec::new();
    for (kind, device) in accelerator_handles() {
        let index = devices.iter().filter(|other| other.kind == kind).count();
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device is from llama.cpp's own list, which lives as long as the process; both are places for a number.
        let name = unsafe {
            sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total);
            text(sys::ggml_backend_dev_description(device))
        };
        devices.push(Device {
            id: format!("{kind}:{index}"),
            kind: kind.to_owned(),
            name,
            memory_total: total as u64,
            memory_free: free as u64,
        });
    }
    Ok(devices)
}

/// Kind, as the ABI calls it, and handle of each.
fn accelerator_handles() -> Vec<(&'static str, sys::ggml_backend_dev_t)> {
    let mut found = Vec::new();
    // SAFETY: indexes are below the count, and the list does not change once llama.cpp has started.
    unsafe {
        for index in 0..sys::ggml_backend_dev_count() {
            let device = sys::ggml_backend_dev_get(index);
            let backend = text(sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(device)));
            let kind = match backend.as_str() {
                "CUDA" => "cuda",
                "Metal" | "MTL" => "metal",
                "Vulkan" => "vulkan",
                _ => continue,
            };
            found.push((kind, device));
        }
    }
    found
}

/// The handle of an id that [`accelerators`] gave.
fn accelerator(id: &str) -> Option<sys::ggml_backend_dev_t> {
    let (kind, index) = id.split_once(':')?;
    let index: usize = index.parse().ok()?;
    accelerator_handles().into_iter().filter(|(other, _)| *other == kind).nth(index).map(|(_, handle)| handle)
}

/// # Safety
/// `pointer` is null or a C string.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn c_path(path: &Path) -> Result<CString, Status> {
    let name = path.to_str().and_then(|name| CString::new(name).ok());
    name.ok_or_else(|| {
        let message = format!("{}: llama.cpp opens paths in UTF-8 without NUL only", path.display());
        Status::load_failed(reason::FILE_UNREADABLE, message)
    })
}
