//! The C table of an engine: every function of `llmr_engine.h`, in terms of [`Engine`].
//!
//! Each function checks its pointers, runs behind a panic fence and turns a [`Status`] into the host's `llmr_status`.
//! Which thread may call what is checked where a mistake would be unsound: all functions of the engine-thread share one
//! lock that is only ever tried, and `cancel` touches nothing but the list of cancelled sequences.

mod fence;
mod host;
mod input;
mod opened;
mod output;

use std::{
    any::TypeId,
    collections::HashMap,
    ffi::c_void,
    marker::PhantomData,
    sync::{Mutex, PoisonError},
};

use engine_abi as c;

pub use engine_abi::EngineApi;

use crate::{Engine, Status, reason};
use fence::fence;
use opened::Opened;

pub(crate) use host::{enabled, log};

/// The table of an engine. Static; the same at every call.
pub fn table<E: Engine>() -> &'static EngineApi {
    &Table::<E>::API
}

struct Table<E>(PhantomData<E>);

impl<E: Engine> Table<E> {
    const API: EngineApi = EngineApi {
        struct_size: size_of::<EngineApi>() as u32,
        abi_major: c::ABI_MAJOR,
        abi_minor: c::ABI_MINOR,
        reserved: 0,
        info: Some(info::<E>),
        open: Some(open::<E>),
        close: Some(close::<E>),
        devices: Some(devices::<E>),
        estimate: Some(estimate::<E>),
        load: Some(load::<E>),
        unload: Some(unload::<E>),
        tokenize: Some(tokenize::<E>),
        submit: Some(submit::<E>),
        cancel: Some(cancel::<E>),
        step: Some(step::<E>),
        stats: Some(stats::<E>),
        get_extension: Some(get_extension),
    };
}

/// Constant data with pointers to constant text.
struct Constant(c::Info);

// SAFETY: nothing in it ever changes, and what it points to lives for ever.
unsafe impl Send for Constant {}
// SAFETY: as above.
unsafe impl Sync for Constant {}

/// What a plugin whose own `info` panics says of itself; no manifest agrees with it.
static NO_INFO: Constant = Constant(c::Info {
    struct_size: size_of::<c::Info>() as u32,
    reserved: 0,
    id: c::Str { data: std::ptr::null(), size: 0 },
    version: c::Str { data: std::ptr::null(), size: 0 },
});

extern "C" fn info<E: Engine>() -> *const c::Info {
    // One per engine type, for ever: a static cannot be generic.
    static INFOS: Mutex<Option<HashMap<TypeId, &'static Constant>>> = Mutex::new(None);
    let info = fence::quiet(|| {
        let mut infos = INFOS.lock().unwrap_or_else(PoisonError::into_inner);
        *infos.get_or_insert_default().entry(TypeId::of::<E>()).or_insert_with(|| {
            let info = E::info();
            let (id, version) = (output::text(info.id), output::text(info.version));
            &*Box::leak(Box::new(Constant(c::Info { id, version, ..NO_INFO.0 })))
        })
    });
    &raw const info.unwrap_or(&NO_INFO).0
}

/// # Safety
/// As the header says of `open`.
unsafe extern "C" fn open<E: Engine>(
    host: *const c::Host,
    out: *mut *mut c::Engine,
    status: *mut c::Status,
) -> c::Code {
    fence(status, || {
        // SAFETY: the host passes null or a live llmr_host.
        let host = unsafe { input::sized(host, "host") }?;
        if host.abi_major != c::ABI_MAJOR {
            return Err(Status::new(
                crate::StatusCode::AbiMismatch,
                reason::ABI_MISMATCH,
                format!("the host has ABI {}, this engine has {}", host.abi_major, c::ABI_MAJOR),
            )
            .with_numbers(host.abi_major.into(), c::ABI_MAJOR.into()));
        }
        input::not_null(out, "out")?;
        host::open(&host)?;
        let opened = Box::into_raw(Box::new(Opened::<E>::new()));
        // SAFETY: not null, and by the header a place for one pointer.
        unsafe { out.write(opened.cast()) };
        Ok(())
    })
}

/// # Safety
/// As the header says of `close`.
unsafe extern "C" fn close<E: Engine>(engine: *mut c::Engine) {
    if engine.is_null() {
        return;
    }
    fence::quiet(|| {
        // SAFETY: the pointer came from open, and by the header nobody uses it any more.
        drop(unsafe { Box::from_raw(engine.cast::<Opened<E>>()) });
    });
    host::close();
}

/// # Safety
/// As the header says of `devices`.
unsafe extern "C" fn devices<E: Engine>(
    engine: *mut c::Engine,
    out: *mut c::Devices,
    status: *mut c::Status,
) -> c::Code {
    fence(status, || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let mut on_thread = unsafe { opened::<E>(engine) }?.on_thread()?;
        input::not_null(out, "out")?;
        let value = on_thread.devices()?;
        // SAFETY: not null, with a struct_size that the host has set.
        unsafe { output::sized(out, &value) };
        Ok(())
    })
}

/// # Safety
/// As the header says of `estimate`.
unsafe extern "C" fn estimate<E: Engine>(
    engine: *mut c::Engine,
    model: *const c::Model,
    settings: *const c::Settings,
    out: *mut c::Estimate,
    status: *mut c::Status,
) -> c::Code {
    fence(status, || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let mut on_thread = unsafe { opened::<E>(engine) }?.on_thread()?;
        input::not_null(out, "out")?;
        // SAFETY: null or live for the call, as the header has it.
        let (files, settings) = unsafe { (input::model(model)?, input::settings(settings)?) };
        let value = on_thread.estimate(&files, &settings)?;
        // SAFETY: not null, with a struct_size that the host has set.
        unsafe { output::sized(out, &value) };
        Ok(())
    })
}

/// # Safety
/// As the header says of `load`.
unsafe extern "C" fn load<E: Engine>(
    engine: *mut c::Engine,
    model: *const c::Model,
    settings: *const c::Settings,
    budget: *const c::DeviceBytes,
    budget_count: u32,
    progress: *const c::Progress,
    out: *mut c::Loaded,
    status: *mut c::Status,
) -> c::Code {
    fence(status, || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let mut on_thread = unsafe { opened::<E>(engine) }?.on_thread()?;
        input::not_null(out, "out")?;
        // SAFETY: null or live for the call, as the header has it.
        let (files, settings) = unsafe { (input::model(model)?, input::settings(settings)?) };
        // SAFETY: as above.
        let budget = unsafe { input::budget(budget, budget_count) }?;
        // SAFETY: as above; the report is called on this thread and during this call only.
        let mut report = unsafe { input::progress(progress) };
        let value = on_thread.load(&files, &settings, &budget, &mut report)?;
        // SAFETY: not null, with a struct_size that the host has set.
        unsafe { output::sized(out, &value) };
        Ok(())
    })
}

/// # Safety
/// As the header says of `unload`.
unsafe extern "C" fn unload<E: Engine>(engine: *mut c::Engine) {
    fence(std::ptr::null_mut(), || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let opened = unsafe { opened::<E>(engine) }?;
        opened.forget_sequences();
        opened.on_thread()?.unload();
        Ok(())
    });
}

/// # Safety
/// As the header says of `tokenize`.
unsafe extern "C" fn tokenize<E: Engine>(
    engine: *mut c::Engine,
    text: c::Str,
    literal: *const c::Range,
    literal_count: u32,
    out: *mut c::Tokens,
    status: *mut c::Status,
) -> c::Code {
    fence(status, || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let mut on_thread = unsafe { opened::<E>(engine) }?.on_thread()?;
        input::not_null(out, "out")?;
        // SAFETY: the host's arguments are live for the call.
        let (text, literal) = unsafe { (input::prompt_text(text)?, input::literal(literal, literal_count)?) };
        let value = on_thread.tokenize(&text, &literal)?;
        // SAFETY: not null, with a struct_size that the host has set.
        unsafe { output::sized(out, &value) };
        Ok(())
    })
}

/// # Safety
/// As the header says of `submit`.
unsafe extern "C" fn submit<E: Engine>(
    engine: *mut c::Engine,
    submit: *const c::Submit,
    status: *mut c::Status,
) -> c::Code {
    fence(status, || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let opened = unsafe { opened::<E>(engine) }?;
        let mut on_thread = opened.on_thread()?;
        // SAFETY: null or live for the call, as the header has it.
        let submission = unsafe { input::submit(submit) }?;
        let sequence = submission.sequence;
        on_thread.submit(submission)?;
        opened.remember(sequence);
        Ok(())
    })
}

/// # Safety
/// As the header says of `cancel`.
unsafe extern "C" fn cancel<E: Engine>(engine: *mut c::Engine, sequence: u64) {
    fence(std::ptr::null_mut(), || {
        // SAFETY: null, or from open and not closed; what cancel touches is behind a lock of its own.
        unsafe { opened::<E>(engine) }?.cancel(sequence);
        Ok(())
    });
}

/// # Safety
/// As the header says of `step`.
unsafe extern "C" fn step<E: Engine>(
    engine: *mut c::Engine,
    progress: *const c::Progress,
    sink: *const c::EventSink,
    pending: *mut u32,
    status: *mut c::Status,
) -> c::Code {
    let mut left = 0;
    let code = fence(status, || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let opened = unsafe { opened::<E>(engine) }?;
        input::not_null(pending, "pending")?;
        let mut on_thread = opened.on_thread()?;
        // SAFETY: null or live for the call; both are called on this thread and during this call only.
        let (mut sink, mut report) = unsafe { (output::Sink::new(sink)?, input::progress(progress)) };
        let stepped = fence::caught(|| {
            on_thread.step(&opened.take_cancelled(), &mut report, &mut |event| {
                opened.saw(event);
                sink.send(event);
            })
        });
        left = stepped.inspect_err(|_| {
            opened.forget_sequences();
            on_thread.fail_all();
        })?;
        Ok(())
    });
    if !pending.is_null() {
        // SAFETY: not null, and by the header a place for one number. After a failure nothing is left: 0.
        unsafe { pending.write(left) };
    }
    code
}

/// # Safety
/// As the header says of `stats`.
unsafe extern "C" fn stats<E: Engine>(
    engine: *mut c::Engine,
    out: *mut c::Stats,
    status: *mut c::Status,
) -> c::Code {
    fence(status, || {
        // SAFETY: null, or from open and not closed; the lifetime ends with this call.
        let mut on_thread = unsafe { opened::<E>(engine) }?.on_thread()?;
        input::not_null(out, "out")?;
        let value = on_thread.stats();
        // SAFETY: not null, with a struct_size that the host has set.
        unsafe { output::sized(out, &value) };
        Ok(())
    })
}

/// There are no extensions yet.
extern "C" fn get_extension(_id: c::Str) -> *const c_void {
    std::ptr::null()
}

/// # Safety
/// `engine` is null, or came from `open::<E>` and is not closed while the result is in use.
unsafe fn opened<'a, E: Engine>(engine: *mut c::Engine) -> Result<&'a Opened<E>, Status> {
    input::not_null(engine, "engine")?;
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { &*engine.cast::<Opened<E>>() })
}

#[cfg(test)]
mod tests;
