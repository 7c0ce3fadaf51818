//! Whether a device computes flash attention for heads of some size.

use llama_cpp_sys_2 as sys;

use super::{accelerator, start};
use crate::CPU;
use crate::header::HeadSize;
use crate::options::KvFormat;

/// Of the operation that is asked about; devices look at sizes of heads and at types, not at these.
const TOKENS: i64 = 32;
const CELLS: i64 = 256;
const HEADS: i64 = 4;
/// Five tensors of a graph, whose numbers are nowhere: each takes some 400 bytes.
const GRAPH_BYTES: usize = 16 << 10;

/// Of a device by its id; one that is not there has it not.
pub(crate) fn has_flash_attention(device: &str, size: HeadSize, format: KvFormat) -> bool {
    start();
    // SAFETY: llama.cpp has started; the cpu is always on its list.
    let cpu = || unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    let device = if device == CPU { Some(cpu()) } else { accelerator(device) };
    let Some(device) = device.filter(|device| !device.is_null()) else { return false };
    let (Ok(key), Ok(value)) = (i64::try_from(size.key), i64::try_from(size.value)) else { return false };
    let kind = match format {
        // As attention gets them.
        KvFormat::F32 | KvFormat::F16 => sys::GGML_TYPE_F16,
        KvFormat::Q8_0 => sys::GGML_TYPE_Q8_0,
    };
    // A row of such a type has whole blocks.
    if key < 1 || value < 1 || (format == KvFormat::Q8_0 && (key % 32 != 0 || value % 32 != 0)) {
        return false;
    }
    let parameters =
        sys::ggml_init_params { mem_size: GRAPH_BYTES, mem_buffer: std::ptr::null_mut(), no_alloc: true };
    // SAFETY: tensors without numbers, in a context that has room for them and is freed behind the last use; sizes as
    // `ggml_flash_attn_ext` wants them: heads of queries a multiple of those of keys, a mask of a row for each token.
    unsafe {
        let context = sys::ggml_init(parameters);
        if context.is_null() {
            return false;
        }
        let tensor = |kind, a, b, c| sys::ggml_new_tensor_4d(context, kind, a, b, c, 1);
        let queries = tensor(sys::GGML_TYPE_F32, key, TOKENS, HEADS);
        let keys = tensor(kind, key, CELLS, 1);
        let values = tensor(kind, value, CELLS, 1);
        let mask = tensor(sys::GGML_TYPE_F16, CELLS, TOKENS, 1);
        let operation = sys::ggml_flash_attn_ext(context, queries, keys, values, mask, 1.0, 0.0, 0.0);
        let can = sys::ggml_backend_dev_supports_op(device, operation);
        sys::ggml_free(context);
        can
    }
}
