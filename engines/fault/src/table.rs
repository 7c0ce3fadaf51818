//! The exported table: the SDK's, with faults in front of the functions that an engine of the SDK does not write itself.
#![expect(unsafe_code, reason = "the C boundary")]

use std::ffi::c_char;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use engine_abi as c;
use engine_sdk::Status;
use engine_sdk::abi::EngineApi;

use crate::plan::{Concerned, Plan, Point};
use crate::version::{Early, early};
use crate::{Engine, act};

/// What the loaded model asked for.
static PLAN: Mutex<Option<Arc<Plan>>> = Mutex::new(None);

pub fn remember(plan: &Arc<Plan>) {
    *PLAN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(plan));
}

static TABLE: LazyLock<EngineApi> = LazyLock::new(|| {
    let mut table = *sdk();
    table.open = Some(open);
    table.tokenize = Some(tokenize);
    table.submit = Some(submit);
    table.unload = Some(unload);
    table.stats = Some(stats);
    match early() {
        Early::Abi => table.abi_major = c::ABI_MAJOR + 1,
        Early::NoStep => table.step = None,
        Early::OtherId => table.info = Some(other_info),
        Early::None | Early::HangInOpen | Early::AbortInOpen | Early::PrintInOpen => {}
    }
    table
});

/// The one exported symbol; see `llmr_engine.h`.
// SAFETY: a plugin has one such symbol, and its type is the header's.
#[unsafe(no_mangle)]
pub extern "C" fn llmr_engine_entry() -> *const EngineApi {
    &raw const *TABLE
}

fn sdk() -> &'static EngineApi {
    engine_sdk::abi::table::<Engine>()
}

const FROM_SDK: &str = "the SDK's table has every function";

/// Strikes; on a failure the status is written and its code given, otherwise `go_on` is called.
fn guarded(point: Point, prompt: &[u8], status: *mut c::Status, go_on: impl FnOnce() -> c::Code) -> c::Code {
    let plan = PLAN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let concerned = [Concerned { prompt, tokens: None }];
    let strike = || plan.map_or(Ok(()), |plan| plan.strike(point, &concerned, None));
    // The SDK's own fence is behind this: a panic that was asked for has to stop here.
    let struck = std::panic::catch_unwind(std::panic::AssertUnwindSafe(strike))
        .unwrap_or_else(|_| Err(Status::internal("panic", "the engine panicked, as it was asked to")));
    match struck {
        Ok(()) => go_on(),
        Err(why) => {
            // SAFETY: the host passes null or a live llmr_status.
            if let Some(status) = unsafe { status.as_mut() } {
                write(status, &why);
            }
            why.code as c::Code
        }
    }
}

/// The fields that every version of the struct has.
fn write(status: &mut c::Status, why: &Status) {
    status.code = why.code as c::Code;
    (status.needed, status.available) = (why.needed, why.available);
    copy(&mut status.reason, &why.reason);
    copy(&mut status.message, &why.message);
}

/// As much as fits, and NUL.
fn copy(to: &mut [c_char], text: &str) {
    let end = text.floor_char_boundary(to.len() - 1);
    to.fill(0);
    for (to, byte) in to.iter_mut().zip(text[..end].bytes()) {
        *to = byte as c_char;
    }
}

/// # Safety
/// As the header says of `open`.
unsafe extern "C" fn open(host: *const c::Host, out: *mut *mut c::Engine, status: *mut c::Status) -> c::Code {
    let struck = match early() {
        Early::HangInOpen => act::perform(&act::Act::Hang, &[], None),
        Early::AbortInOpen => act::perform(&act::Act::Abort, &[], None),
        Early::PrintInOpen => act::perform(&act::Act::Print { bytes: PRINTED_IN_OPEN }, &[], None),
        Early::None | Early::Abi | Early::NoStep | Early::OtherId => Ok(()),
    };
    debug_assert!(struck.is_ok(), "none of these answers");
    // SAFETY: the host's arguments, as they came.
    unsafe { sdk().open.expect(FROM_SDK)(host, out, status) }
}

const PRINTED_IN_OPEN: u64 = 4096;

/// # Safety
/// As the header says of `tokenize`.
unsafe extern "C" fn tokenize(
    engine: *mut c::Engine,
    text: c::Str,
    literal: *const c::Range,
    literal_count: u32,
    out: *mut c::Tokens,
    status: *mut c::Status,
) -> c::Code {
    // SAFETY: live for the call, as the header has it.
    let prompt = unsafe { bytes(text.data.cast(), text.size) };
    guarded(Point::Tokenize, prompt, status, || {
        // SAFETY: the host's arguments, as they came.
        unsafe { sdk().tokenize.expect(FROM_SDK)(engine, text, literal, literal_count, out, status) }
    })
}

/// # Safety
/// As the header says of `submit`.
unsafe extern "C" fn submit(
    engine: *mut c::Engine,
    submit: *const c::Submit,
    status: *mut c::Status,
) -> c::Code {
    let mut prompt = Vec::new();
    // SAFETY: null, or live for the call. These fields have been there from the first version on.
    if let Some(submit) = unsafe { submit.as_ref() } {
        if submit.prompt_kind == c::PROMPT_TEXT {
            // SAFETY: as above.
            prompt.extend_from_slice(unsafe { bytes(submit.text.data.cast(), submit.text.size) });
        } else if !submit.tokens.is_null() {
            // SAFETY: as above.
            let ids = unsafe { std::slice::from_raw_parts(submit.tokens, submit.token_count as usize) };
            prompt.extend(ids.iter().filter_map(|id| u8::try_from(*id).ok()));
        }
    }
    guarded(Point::Submit, &prompt, status, || {
        // SAFETY: the host's arguments, as they came.
        unsafe { sdk().submit.expect(FROM_SDK)(engine, submit, status) }
    })
}

/// # Safety
/// As the header says of `unload`.
unsafe extern "C" fn unload(engine: *mut c::Engine) {
    guarded(Point::Unload, &[], std::ptr::null_mut(), || {
        // SAFETY: the host's argument, as it came.
        unsafe { sdk().unload.expect(FROM_SDK)(engine) };
        c::OK
    });
}

/// # Safety
/// As the header says of `stats`.
unsafe extern "C" fn stats(engine: *mut c::Engine, out: *mut c::Stats, status: *mut c::Status) -> c::Code {
    guarded(Point::Stats, &[], status, || {
        // SAFETY: the host's arguments, as they came.
        unsafe { sdk().stats.expect(FROM_SDK)(engine, out, status) }
    })
}

/// Another name than the manifest's.
extern "C" fn other_info() -> *const c::Info {
    struct Constant(c::Info);
    // SAFETY: nothing in it changes, and what it points to lives for ever.
    unsafe impl Sync for Constant {}
    static INFO: Constant = Constant(c::Info {
        struct_size: size_of::<c::Info>() as u32,
        reserved: 0,
        id: c::Str { data: c"other".as_ptr(), size: 5 },
        version: c::Str { data: c"0.0.1".as_ptr(), size: 5 },
    });
    &raw const INFO.0
}

/// # Safety
/// `data` is null or points to `size` bytes that live as long as the result is used.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, size) }
}
