//! The weights and the vocabulary of a model.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;

use engine_sdk::{Progress, Status, reason};
use llama_cpp_sys_2 as sys;

use super::guard::{guarded, llmr_llama_tokenize};
use super::{accelerator, c_path, say, start, text};

/// How weights come into memory.
#[derive(Debug, Clone)]
pub(crate) struct LoadParameters {
    /// Ids of accelerators; none: the CPU alone.
    pub(crate) devices: Vec<String>,
    /// Weights stay pages of the file where they can.
    pub(crate) mmap: bool,
    /// Weights whose type has a faster layout are copied into it.
    pub(crate) repack: bool,
}

/// What a token of the vocabulary is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// What it stands for; of a control token its spelling.
    pub(crate) bytes: Vec<u8>,
    /// A control token, or the one for what is unknown.
    pub(crate) control: bool,
    /// Put beside the vocabulary, and found in any text.
    pub(crate) added: bool,
    /// Takes the white space before it along.
    pub(crate) strips_left: bool,
    /// Takes the white space behind it along.
    pub(crate) strips_right: bool,
    /// Ends an answer.
    pub(crate) ends: bool,
}

/// A loaded model. Nothing in it changes any more.
#[derive(Debug)]
pub(crate) struct LoadedModel {
    raw: NonNull<sys::llama_model>,
}

// SAFETY: a loaded model is only read: llama.cpp's functions that take it as const may be called on any thread.
unsafe impl Send for LoadedModel {}
// SAFETY: as above.
unsafe impl Sync for LoadedModel {}

/// What the progress of a load needs to know.
struct Report<'a, 'p> {
    progress: &'a mut Progress<'p>,
    total: u64,
}

impl LoadedModel {
    /// Loads the parts of a model, in order. `total`: bytes of all of them, for the progress.
    ///
    /// # Errors
    /// `CANCELLED`; `UNSUPPORTED` `unsupported_model`; `LOAD_FAILED` where memory or a file fails; `MODEL_CORRUPT`
    /// otherwise, in llama.cpp's words.
    pub(crate) fn load(
        id: &str,
        paths: &[PathBuf],
        parameters: &LoadParameters,
        total: u64,
        progress: &mut Progress<'_>,
    ) -> Result<LoadedModel, Status> {
        start();
        let names: Vec<CString> = paths.iter().map(|path| c_path(path)).collect::<Result<_, _>>()?;
        let mut names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let mut devices: Vec<sys::ggml_backend_dev_t> =
            parameters.devices.iter().filter_map(|id| accelerator(id)).collect();
        let layers_on_devices = if devices.is_empty() { 0 } else { -1 };
        // The list ends with null.
        devices.push(std::ptr::null_mut());
        let mut report = Report { progress, total };
        say::take_error();
        // SAFETY: names and devices live until the call returns, as does what the callback is given; the callback runs on this
        // thread during the call only.
        let raw = unsafe {
            let mut given = sys::llama_model_default_params();
            given.devices = devices.as_mut_ptr();
            given.n_gpu_layers = layers_on_devices;
            given.load_mode =
                if parameters.mmap { sys::LLAMA_LOAD_MODE_MMAP } else { sys::LLAMA_LOAD_MODE_NONE };
            given.use_extra_bufts = parameters.repack;
            given.progress_callback = Some(report_load);
            given.progress_callback_user_data = (&raw mut report).cast();
            sys::llama_model_load_from_splits(names.as_mut_ptr(), names.len(), given)
        };
        let cancelled = report.progress.is_cancelled();
        let Some(raw) = NonNull::new(raw) else {
            if cancelled {
                return Err(Status::cancelled("the host asked to stop"));
            }
            return Err(failure(id, &say::take_error().unwrap_or_else(|| "no reason was given".to_owned())));
        };
        Ok(LoadedModel { raw })
    }

    pub(super) fn raw(&self) -> *mut sys::llama_model {
        self.raw.as_ptr()
    }

    fn vocabulary(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is loaded; its vocabulary lives as long as it does.
        unsafe { sys::llama_model_get_vocab(self.raw()) }
    }

    /// How far layers with a window look back; 0: none has one.
    pub(crate) fn window(&self) -> u32 {
        // SAFETY: the model is loaded.
        u32::try_from(unsafe { sys::llama_model_n_swa(self.raw()) }).unwrap_or(0)
    }

    /// Numbers of an embedding.
    pub(crate) fn embedding_size(&self) -> u32 {
        // SAFETY: the model is loaded.
        u32::try_from(unsafe { sys::llama_model_n_embd_out(self.raw()) }).unwrap_or(0)
    }

    /// An encoder has to run before it gives a token.
    pub(crate) fn has_encoder(&self) -> bool {
        // SAFETY: the model is loaded.
        unsafe { sys::llama_model_has_encoder(self.raw()) }
    }

    /// Every token of the vocabulary, by id.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        let vocabulary = self.vocabulary();
        // SAFETY: the vocabulary lives as long as the model.
        let count = unsafe { sys::llama_vocab_n_tokens(vocabulary) };
        let mut buffer = vec![0u8; 64];
        (0..count)
            .map(|id| {
                // SAFETY: the id is below the count.
                let (attributes, ends) = unsafe {
                    (sys::llama_vocab_get_attr(vocabulary, id), sys::llama_vocab_is_eog(vocabulary, id))
                };
                let has = |attribute: sys::llama_token_attr| attributes & attribute != 0;
                Token {
                    bytes: self.piece(vocabulary, id, &mut buffer).to_vec(),
                    control: has(sys::LLAMA_TOKEN_ATTR_CONTROL) || has(sys::LLAMA_TOKEN_ATTR_UNKNOWN),
                    added: has(sys::LLAMA_TOKEN_ATTR_USER_DEFINED),
                    strips_left: has(sys::LLAMA_TOKEN_ATTR_LSTRIP),
                    strips_right: has(sys::LLAMA_TOKEN_ATTR_RSTRIP),
                    ends,
                }
            })
            .collect()
    }

    fn piece<'b>(&self, vocabulary: *const sys::llama_vocab, id: i32, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        loop {
            let room = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
            // SAFETY: the vocabulary lives as long as the model; the buffer has `room` bytes.
            let written = unsafe {
                sys::llama_token_to_piece(vocabulary, id, buffer.as_mut_ptr().cast(), room, 0, true)
            };
            match usize::try_from(written) {
                Ok(bytes) => return &buffer[..bytes],
                // It would take so many.
                Err(_) => buffer.resize(written.unsigned_abs() as usize, 0),
            }
        }
    }

    /// What the vocabulary has before and behind a text: a beginning, an end, a separator.
    ///
    /// # Errors
    /// As [`LoadedModel::encode_ordinary`].
    pub(crate) fn around(&self) -> Result<(Vec<u32>, Vec<u32>), Status> {
        // A letter that every vocabulary has.
        const TEXT: &str = "a";
        let (plain, whole) = (self.encode(TEXT, false)?, self.encode(TEXT, true)?);
        let at = whole.windows(plain.len().max(1)).position(|part| part == plain);
        Ok(at.map_or_else(Default::default, |at| (whole[..at].to_vec(), whole[at + plain.len()..].to_vec())))
    }

    /// Whether it puts a beginning before a text.
    #[cfg(test)]
    fn begins(&self) -> bool {
        // SAFETY: the vocabulary lives as long as the model.
        unsafe { sys::llama_vocab_get_add_bos(self.vocabulary()) }
    }

    /// The tokens of ordinary text: nothing added, and no spelling read as a control token.
    ///
    /// # Errors
    /// `UNSUPPORTED` `invalid_prompt` for text that llama.cpp does not take.
    pub(crate) fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, Status> {
        self.encode(text, false)
    }

    /// `with_around`: with what the vocabulary has before and behind a text.
    fn encode(&self, text: &str, with_around: bool) -> Result<Vec<u32>, Status> {
        let refused = |why: &str| {
            let message = format!("llama.cpp cannot tokenize a text of {} bytes{why}", text.len());
            Status::unsupported(reason::INVALID_PROMPT, message).with_param("text")
        };
        let length = i32::try_from(text.len()).map_err(|_| refused(""))?;
        let mut ids = vec![0i32; text.len() + 1];
        loop {
            let room = i32::try_from(ids.len()).map_err(|_| refused(""))?;
            let mut count = 0;
            guarded(|words, words_bytes| {
                // SAFETY: the text has `length` bytes, the lists have as many places as is said, and the vocabulary lives as
                // long as the model.
                unsafe {
                    llmr_llama_tokenize(
                        self.vocabulary(),
                        text.as_ptr().cast(),
                        length,
                        ids.as_mut_ptr(),
                        room,
                        with_around,
                        &raw mut count,
                        words,
                        words_bytes,
                    )
                }
            })
            .map_err(|words| refused(&format!(": it throws {words}")))?;
            match usize::try_from(count) {
                Ok(count) => return Ok(ids[..count].iter().map(|id| id.cast_unsigned()).collect()),
                Err(_) if count == i32::MIN => return Err(refused("")),
                Err(_) => ids.resize(count.unsigned_abs() as usize, 0),
            }
        }
    }

    /// `llama 8B Q4_K - Medium`, in llama.cpp's words.
    pub(crate) fn description(&self) -> String {
        let mut buffer = [0u8; 256];
        // SAFETY: the buffer has as many bytes as is said; what is written ends with NUL.
        unsafe {
            sys::llama_model_desc(self.raw(), buffer.as_mut_ptr().cast(), buffer.len());
            text(buffer.as_ptr().cast())
        }
    }
}

impl Drop for LoadedModel {
    fn drop(&mut self) {
        // SAFETY: it was loaded here, and contexts hold a count of it.
        unsafe { sys::llama_model_free(self.raw()) };
    }
}

/// # Safety
/// `data` is the [`Report`] of the load under way.
unsafe extern "C" fn report_load(part: f32, data: *mut c_void) -> bool {
    // SAFETY: the caller of the load keeps it, and uses it again only behind the call.
    let report = unsafe { &mut *data.cast::<Report<'_, '_>>() };
    let done = (f64::from(part.clamp(0.0, 1.0)) * report.total as f64) as u64;
    report.progress.report(done.min(report.total), report.total).is_ok()
}

/// llama.cpp says why in words only.
fn failure(id: &str, words: &str) -> Status {
    let message = format!("{id}: llama.cpp: {words}");
    let says = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
    if says(&["unknown model architecture", "unknown pre-tokenizer", "unsupported model"]) {
        Status::unsupported(reason::UNSUPPORTED_MODEL, message)
    } else if says(&["failed to allocate", "unable to allocate", "out of memory", "failed to open"]) {
        Status::load_failed("llama_cpp", message)
    } else {
        Status::model_corrupt(reason::FILE_CORRUPT, message)
    }
}

#[cfg(test)]
mod tests;
