//! llama.cpp behind safe functions: the one place with unsafe code.
//!
//! C++ exceptions do not leave llama.cpp's C functions that load and make contexts; those of the tokenizer, which meets text
//! of strangers, and of a pass stop in `guard.cpp`. Any other ends the process, as GGML's aborts always do. That is why this runs in a
//! worker: the node survives, and finds the reason in the last lines.

mod attention;
mod context;
mod file;
mod guard;
mod model;
mod processor;
mod say;

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Once;

use engine_sdk::{Device, Status, cards, reason};
use llama_cpp_sys_2 as sys;

pub(crate) use attention::has_flash_attention;
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

/// The devices besides the CPU, by kind and number.
///
/// # Errors
/// `UNSUPPORTED` `unsupported_processor` where nothing of llama.cpp can run.
pub(crate) fn accelerators() -> Result<Vec<Device>, Status> {
    processor::check()?;
    start();
    let mut devices: Vec<Device> = Vec::new();
    for (kind, number, device) in accelerator_handles() {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device is from llama.cpp's own list, which lives as long as the process; both are places for a number.
        let name = unsafe {
            sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total);
            text(sys::ggml_backend_dev_description(device))
        };
        devices.push(Device {
            id: format!("{kind}:{number}"),
            kind: kind.to_owned(),
            name,
            memory_total: total as u64,
            memory_free: free as u64,
        });
    }
    Ok(devices)
}

/// Kind, as the ABI calls it, number, as the node counts, and handle of each. llama.cpp lists them in the order of their drivers, which is
/// another one: what both know is where a device is on the PCI bus.
fn accelerator_handles() -> Vec<(&'static str, usize, sys::ggml_backend_dev_t)> {
    let found = unnumbered();
    let mut numbered = Vec::new();
    for kind in [CUDA, METAL, VULKAN] {
        let mut of_kind: Vec<&(&str, String, sys::ggml_backend_dev_t)> =
            found.iter().filter(|(of, ..)| *of == kind).collect();
        if kind == CUDA {
            // As NVIDIA's management library numbers them.
            of_kind.sort_by(|a, b| a.1.cmp(&b.1));
        }
        let there = if kind == VULKAN && cfg!(target_os = "linux") {
            cards::cards(Path::new("/"))
        } else {
            Vec::new()
        };
        let addresses: Vec<&str> = of_kind.iter().map(|(_, address, _)| address.as_str()).collect();
        let numbers = cards::of(&there, &addresses);
        let mut of_kind: Vec<_> =
            numbers.into_iter().zip(of_kind).map(|(number, (.., handle))| (kind, number, *handle)).collect();
        of_kind.sort_by_key(|(_, number, _)| *number);
        numbered.extend(of_kind);
    }
    numbered
}

const CUDA: &str = "cuda";
const METAL: &str = "metal";
const VULKAN: &str = "vulkan";

/// Kind, address on the PCI bus, which may be empty, and handle, in llama.cpp's order.
fn unnumbered() -> Vec<(&'static str, String, sys::ggml_backend_dev_t)> {
    let mut found = Vec::new();
    // SAFETY: indexes are below the count, and the list does not change once llama.cpp has started; the properties are numbers and
    // pointers, for which zeros are values, and texts in them live as long as the device.
    unsafe {
        for index in 0..sys::ggml_backend_dev_count() {
            let device = sys::ggml_backend_dev_get(index);
            let backend = text(sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(device)));
            let kind = match backend.as_str() {
                "CUDA" => CUDA,
                "Metal" | "MTL" => METAL,
                "Vulkan" => VULKAN,
                _ => continue,
            };
            let mut properties = std::mem::zeroed::<sys::ggml_backend_dev_props>();
            sys::ggml_backend_dev_get_props(device, &raw mut properties);
            found.push((kind, text(properties.device_id), device));
        }
    }
    found
}

/// The handle of an id that [`accelerators`] gave.
fn accelerator(id: &str) -> Option<sys::ggml_backend_dev_t> {
    let (kind, index) = id.split_once(':')?;
    let index: usize = index.parse().ok()?;
    let handles = accelerator_handles();
    handles
        .into_iter()
        .find(|(other, number, _)| *other == kind && *number == index)
        .map(|(.., handle)| handle)
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
