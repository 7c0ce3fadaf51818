//! The table of tensors of a GGUF file, as GGML reads it.

use std::path::Path;

use engine_sdk::{Status, reason};
use llama_cpp_sys_2 as sys;

use super::{c_path, say, start, text};

/// One tensor of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Of its type in GGML, lower case: `q4_K`, `mxfp4`.
    pub(crate) kind: String,
    /// Innermost first.
    pub(crate) dimensions: [u64; 4],
    pub(crate) bytes: u64,
}

/// The tensors of one file.
///
/// # Errors
/// `MODEL_CORRUPT`, in GGML's words.
pub(crate) fn tensors(path: &Path) -> Result<Vec<Tensor>, Status> {
    start();
    let name = c_path(path)?;
    say::take_error();
    let parameters = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: a C string, and parameters that ask for nothing but the table.
    let table = unsafe { sys::gguf_init_from_file(name.as_ptr(), parameters) };
    if table.is_null() {
        let words =
            say::take_error().unwrap_or_else(|| "llama.cpp cannot read its table of tensors".to_owned());
        return Err(Status::model_corrupt(reason::FILE_CORRUPT, format!("{}: {words}", path.display())));
    }
    // SAFETY: the table was just made and is freed behind the last use; indexes are below its count; four dimensions are
    // there whatever the file has.
    unsafe {
        let count = sys::gguf_get_n_tensors(table);
        let list = (0..count).map(|index| {
            let ne = sys::gguf_get_tensor_ne(table, index);
            Tensor {
                name: text(sys::gguf_get_tensor_name(table, index)),
                kind: text(sys::ggml_type_name(sys::gguf_get_tensor_type(table, index))),
                dimensions: std::array::from_fn(|n| u64::try_from(*ne.add(n)).unwrap_or(0)),
                bytes: sys::gguf_get_tensor_size(table, index) as u64,
            }
        });
        let list = list.collect();
        sys::gguf_free(table);
        Ok(list)
    }
}
