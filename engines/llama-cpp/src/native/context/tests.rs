use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use engine_sdk::{Slot, StatusCode};

use super::super::LoadParameters;
use super::*;

const WORDS: &CStr = c"no more of this";

unsafe extern "C-unwind" {
    /// `std::__throw_runtime_error(char const *)` of libstdc++.
    #[link_name = "_ZSt21__throw_runtime_errorPKc"]
    fn throw(words: *const c_char) -> !;
}

/// What llama.cpp calls before and after each operation of a pass: throws once the flag is set.
unsafe extern "C-unwind" fn observe(_: *mut sys::ggml_tensor, asks: bool, data: *mut c_void) -> bool {
    // SAFETY: the test's flag outlives the context.
    if !asks && unsafe { &*data.cast::<AtomicBool>() }.swap(false, SeqCst) {
        // SAFETY: no frame between here and `guard.cpp` has anything to drop.
        unsafe { throw(WORDS.as_ptr()) };
    }
    true
}

type Observe = unsafe extern "C" fn(*mut sys::ggml_tensor, bool, *mut c_void) -> bool;

#[test]
fn an_exception_in_a_pass_is_an_error_with_its_words_and_the_context_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    gpt_oss_synth::write_dense_gguf(gpt_oss_synth::Family::Llama, 1, &path).unwrap();
    let load = LoadParameters { devices: Vec::new(), mmap: true, repack: false };
    let mut report = |_, _| true;
    let mut progress = Progress::new(&mut report);
    let model = Arc::new(LoadedModel::load("m", &[path], &load, 1, &mut progress).unwrap());
    let parameters = ContextParameters {
        cells: 256,
        sequences: 1,
        batch_tokens: 16,
        kv_format: KvFormat::F16,
        shared_cells: false,
        keeps_scores: false,
        embedding: None,
        threads: 2,
    };
    let throws = AtomicBool::new(false);
    let mut context = Context::with("m", model, &parameters, |given| {
        // SAFETY: the two kinds of pointer are called alike; unlike Rust, C++ lets exceptions through either.
        given.cb_eval = Some(unsafe {
            std::mem::transmute::<unsafe extern "C-unwind" fn(_, _, _) -> _, Observe>(observe)
        });
        given.cb_eval_user_data = (&raw const throws).cast_mut().cast();
    })
    .unwrap();
    let mut row = vec![0.0; context.vocabulary_size()];
    let mut pass = |context: &mut Context| {
        let mut batch = Batch::new();
        batch.push(Slot(0), 0, &[5, 6, 7], true);
        let size = row.len();
        let mut logits = Logits::new(&mut row, size);
        let done = context.decode(&batch, |_| 0, &mut logits, &mut progress);
        context.clear();
        done.map(|()| row.clone())
    };
    let before = pass(&mut context).unwrap();
    throws.store(true, SeqCst);
    let Err(DecodeError::Ended(status)) = pass(&mut context) else { panic!("it was thrown") };
    assert_eq!(status.code, StatusCode::Internal);
    assert!(status.message.contains("throws") && status.message.contains("no more of this"), "{status}");
    assert_eq!(pass(&mut context).unwrap(), before);
}
