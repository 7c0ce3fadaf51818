//! A host in a few lines, safe to use from the tests beside it.

use std::{
    ffi::{CStr, c_void},
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine_abi as c;

use crate::{
    abi::table,
    testing::{TestEngine, set_fault},
};

/// The engine is open once per process, so tests that open it take turns.
static TURN: Mutex<()> = Mutex::new(());

pub fn api() -> &'static c::EngineApi {
    table::<TestEngine>()
}

/// What a status says, once it is out of the C struct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub code: c::Code,
    pub reason: String,
    pub message: String,
    pub param: String,
    pub numbers: (u64, u64),
}

pub fn empty_status() -> c::Status {
    c::Status {
        struct_size: size_of::<c::Status>() as u32,
        code: -1,
        needed: 0,
        available: 0,
        reason: [0; c::REASON_BYTES],
        message: [0; c::MESSAGE_BYTES],
        param: [0; c::PARAM_BYTES],
    }
}

pub fn said(status: &c::Status) -> Said {
    // SAFETY: both arrays are closed by NUL, which is what is tested: without it this would read to the next one.
    let text =
        |chars: &[std::ffi::c_char]| unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap().to_owned();
    Said {
        code: status.code,
        reason: text(&status.reason),
        message: text(&status.message),
        param: text(&status.param),
        numbers: (status.needed, status.available),
    }
}

/// Calls a function with a status, and gives the status where it did not answer OK.
pub fn called(call: impl FnOnce(*mut c::Status) -> c::Code) -> Result<(), Said> {
    let mut status = empty_status();
    let code = call(&raw mut status);
    if code == c::OK {
        assert_eq!(status.code, -1, "a status is untouched on OK");
        return Ok(());
    }
    assert_eq!(status.code, code);
    Err(said(&status))
}

pub fn text(text: &str) -> c::Str {
    c::Str { data: text.as_ptr().cast(), size: text.len() }
}

/// # Safety
/// The text is live.
pub unsafe fn string(text: c::Str) -> String {
    if text.size == 0 {
        return String::new();
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(text.data.cast::<u8>(), text.size) };
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub type Lines = Mutex<Vec<(c::LogLevel, u64, String)>>;

pub unsafe extern "C" fn keep_line(context: *mut c_void, level: c::LogLevel, message: c::Str, sequence: u64) {
    // SAFETY: the context is the test's list of lines; the message lives for the call.
    let (lines, message) = unsafe { (&*context.cast::<Lines>(), string(message)) };
    lines.lock().unwrap().push((level, sequence, message));
}

/// An opened engine.
pub struct Host {
    pub engine: *mut c::Engine,
    pub lines: Box<Lines>,
    pub host: Box<c::Host>,
    _turn: MutexGuard<'static, ()>,
}

impl Host {
    pub fn open() -> Host {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        set_fault("");
        let lines: Box<Lines> = Box::default();
        let host = Box::new(c_host(&lines, c::LOG_DEBUG));
        let mut engine = std::ptr::null_mut();
        // SAFETY: all pointers are live.
        called(|status| unsafe { api().open.unwrap()(&raw const *host, &raw mut engine, status) }).unwrap();
        assert!(!engine.is_null());
        Host { engine, lines, host, _turn: turn }
    }

    /// With a model of two slots.
    pub fn loaded() -> Host {
        let host = Host::open();
        host.load(&[]).unwrap();
        host
    }

    pub fn load(&self, budget: &[(&str, u64)]) -> Result<c::Loaded, Said> {
        self.load_with(budget, &c_settings(), &c::Progress { context: std::ptr::null_mut(), report: None })
    }

    pub fn load_with(
        &self,
        budget: &[(&str, u64)],
        settings: &c::Settings,
        progress: &c::Progress,
    ) -> Result<c::Loaded, Said> {
        let files = [c::File { name: text("config.json"), path: text("/models/m/config.json") }];
        let model = c_model(&files);
        let budget: Vec<c::DeviceBytes> = budget
            .iter()
            .map(|(device, bytes)| c::DeviceBytes { device: text(device), bytes: *bytes })
            .collect();
        let mut loaded = empty_loaded();
        // SAFETY: all pointers are live.
        called(|status| unsafe {
            api().load.unwrap()(
                self.engine,
                &raw const model,
                settings,
                budget.as_ptr(),
                budget.len() as u32,
                progress,
                &raw mut loaded,
                status,
            )
        })?;
        Ok(loaded)
    }

    pub fn unload(&self) {
        // SAFETY: the engine is open.
        unsafe { api().unload.unwrap()(self.engine) };
    }

    pub fn submit(&self, sequence: u64, prompt: &str) -> Result<(), Said> {
        self.submit_with(sequence, prompt, &c_sampling())
    }

    pub fn submit_with(&self, sequence: u64, prompt: &str, sampling: &c::Sampling) -> Result<(), Said> {
        let submit = c_submit(sequence, prompt, sampling);
        // SAFETY: all pointers are live.
        called(|status| unsafe { api().submit.unwrap()(self.engine, &raw const submit, status) })
    }

    pub fn tokenize(&self, prompt: &str, literal: &[c::Range]) -> Result<Vec<u32>, Said> {
        let mut tokens =
            c::Tokens { struct_size: size_of::<c::Tokens>() as u32, count: 0, ids: std::ptr::null() };
        // SAFETY: all pointers are live.
        called(|status| unsafe {
            api().tokenize.unwrap()(
                self.engine,
                text(prompt),
                literal.as_ptr(),
                literal.len() as u32,
                &raw mut tokens,
                status,
            )
        })?;
        if tokens.count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the engine's until the next call.
        Ok(unsafe { std::slice::from_raw_parts(tokens.ids, tokens.count as usize) }.to_vec())
    }

    pub fn cancel(&self, sequence: u64) {
        // SAFETY: the engine is open.
        unsafe { api().cancel.unwrap()(self.engine, sequence) };
    }

    /// (events in words, pending).
    pub fn step(&self) -> Result<(Vec<String>, u32), Said> {
        self.step_with(&c::Progress { context: std::ptr::null_mut(), report: None })
    }

    pub fn step_with(&self, progress: &c::Progress) -> Result<(Vec<String>, u32), Said> {
        let mut events: Vec<String> = Vec::new();
        let sink = c::EventSink { context: (&raw mut events).cast(), event: Some(keep_event) };
        let mut pending = 77;
        // SAFETY: all pointers are live.
        let result = called(|status| unsafe {
            api().step.unwrap()(self.engine, progress, &raw const sink, &raw mut pending, status)
        });
        if result.is_err() {
            assert_eq!(pending, 0, "nothing is pending after a failure");
        }
        result.map(|()| (events, pending))
    }

    /// Steps until nothing is pending.
    pub fn run(&self) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..1000 {
            let (events, pending) = self.step().unwrap();
            all.extend(events);
            if pending == 0 {
                return all;
            }
        }
        panic!("it does not end: {all:?}");
    }

    pub fn stats(&self) -> Result<c::Stats, Said> {
        let mut stats = empty_stats();
        // SAFETY: all pointers are live.
        called(|status| unsafe { api().stats.unwrap()(self.engine, &raw mut stats, status) })?;
        Ok(stats)
    }

    pub fn devices(&self) -> Result<Vec<(String, String, u64)>, Said> {
        let mut devices = c::Devices {
            struct_size: size_of::<c::Devices>() as u32,
            count: 0,
            element_size: 0,
            items: std::ptr::null(),
        };
        // SAFETY: all pointers are live.
        called(|status| unsafe { api().devices.unwrap()(self.engine, &raw mut devices, status) })?;
        Ok((0..devices.count as usize)
            .map(|i| {
                // SAFETY: the engine's until the next call; walked as the header says.
                let device = unsafe {
                    &*devices.items.cast::<u8>().add(i * devices.element_size as usize).cast::<c::Device>()
                };
                // SAFETY: as above.
                unsafe { (string(device.id), string(device.name), device.memory_total) }
            })
            .collect())
    }

    pub fn estimate(&self, model: &c::Model) -> Result<c::Estimate, Said> {
        let mut estimate = empty_estimate();
        let settings = c_settings();
        // SAFETY: all pointers are live.
        called(|status| unsafe {
            api().estimate.unwrap()(self.engine, model, &raw const settings, &raw mut estimate, status)
        })?;
        Ok(estimate)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: the engine is open, and is not used again.
        unsafe { api().close.unwrap()(self.engine) };
    }
}

unsafe extern "C" fn keep_event(context: *mut c_void, event: *const c::Event) {
    // SAFETY: the context is the test's list; the event lives for the call.
    let (events, event) = unsafe { (&mut *context.cast::<Vec<String>>(), &*event) };
    assert_eq!(event.struct_size as usize, size_of::<c::Event>());
    let n = event.sequence;
    events.push(match event.kind {
        c::EVENT_STARTED => format!("{n} started {}", event.prompt_tokens),
        c::EVENT_TOKEN => {
            // SAFETY: live for the call.
            let bytes = unsafe { std::slice::from_raw_parts(event.bytes.data, event.bytes.size) };
            let mut words = format!("{n} token {} {}", event.token_id, String::from_utf8_lossy(bytes));
            if event.control == 1 {
                words += " control";
            }
            for i in 0..event.logprob_count as usize {
                // SAFETY: live for the call.
                words += &format!(" {}", unsafe { (*event.logprobs.add(i)).id });
            }
            words
        }
        c::EVENT_EMBEDDING => format!("{n} embedding {}", event.embedding_size),
        c::EVENT_FINISHED => format!("{n} finished {} {}", event.finish_reason, event.completion_tokens),
        // SAFETY: live for the call.
        c::EVENT_FAILED => format!("{n} failed {}", said(unsafe { &*event.status }).reason),
        other => panic!("event of kind {other}"),
    });
}

pub fn c_host(lines: &Lines, log_level: c::LogLevel) -> c::Host {
    c::Host {
        struct_size: size_of::<c::Host>() as u32,
        abi_major: c::ABI_MAJOR,
        abi_minor: c::ABI_MINOR,
        log_level,
        context: std::ptr::from_ref(lines).cast_mut().cast(),
        log: Some(keep_line),
    }
}

pub fn c_model(files: &[c::File]) -> c::Model {
    c::Model {
        struct_size: size_of::<c::Model>() as u32,
        file_count: files.len() as u32,
        id: text("org/model"),
        format: text("safetensors"),
        architecture: text("test"),
        runtime: text("test"),
        model_dir: text("/models/m"),
        primary: text("config.json"),
        files: files.as_ptr(),
    }
}

pub fn c_settings() -> c::Settings {
    c::Settings {
        struct_size: size_of::<c::Settings>() as u32,
        context_length: 0,
        sequences_max: 2,
        batch_tokens_max: 0,
        threads: 0,
        device_count: 0,
        devices: std::ptr::null(),
        options_json: c::Str { data: std::ptr::null(), size: 0 },
    }
}

pub fn c_sampling() -> c::Sampling {
    c::Sampling {
        struct_size: size_of::<c::Sampling>() as u32,
        flags: 0,
        seed: 0,
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        top_k: 0,
        tokens_max: 0,
        tokens_min: 0,
        logprobs: -1,
        logit_bias_count: 0,
        stop_count: 0,
        stop_token_count: 0,
        reserved: 0,
        logit_bias: std::ptr::null(),
        stop: std::ptr::null(),
        stop_tokens: std::ptr::null(),
        begin_with: std::ptr::null(),
        begin_with_count: 0,
        reserved2: 0,
        constraint_kind: c::CONSTRAINT_NONE,
        reserved3: 0,
        constraint: c::Str { data: std::ptr::null(), size: 0 },
    }
}

pub fn c_submit(sequence: u64, prompt: &str, sampling: &c::Sampling) -> c::Submit {
    c::Submit {
        struct_size: size_of::<c::Submit>() as u32,
        prompt_kind: c::PROMPT_TEXT,
        sequence,
        request_id: text("req-1"),
        text: text(prompt),
        literal: std::ptr::null(),
        tokens: std::ptr::null(),
        literal_count: 0,
        token_count: 0,
        sampling,
        cache_salt: 0,
        task: c::TASK_GENERATE,
        reserved: 0,
    }
}

pub fn empty_loaded() -> c::Loaded {
    c::Loaded {
        struct_size: size_of::<c::Loaded>() as u32,
        context_length: 0,
        sequences_max: 0,
        vocabulary_size: 0,
        end_token_count: 0,
        reserved: 0,
        end_tokens: std::ptr::null(),
        embedding_size: 0,
        flags: 0,
    }
}

pub fn empty_estimate() -> c::Estimate {
    c::Estimate {
        struct_size: size_of::<c::Estimate>() as u32,
        count: 0,
        element_size: 0,
        items: std::ptr::null(),
        context_length_max: 0,
        reserved: 0,
    }
}

pub fn empty_stats() -> c::Stats {
    c::Stats {
        struct_size: size_of::<c::Stats>() as u32,
        sequences_running: 0,
        sequences_waiting: 0,
        batch_sequences_max: 0,
        steps: 0,
        prompt_tokens: 0,
        completion_tokens: 0,
        kv_bytes_used: 0,
        kv_bytes_total: 0,
        memory: std::ptr::null(),
        memory_count: 0,
        reserved: 0,
        details_json: c::Str { data: std::ptr::null(), size: 0 },
    }
}
