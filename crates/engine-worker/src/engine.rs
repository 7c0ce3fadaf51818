//! An opened engine: the table's functions with Rust's types. One method, one call.

use std::collections::HashMap;

use engine_abi as abi;
use engine_protocol::{
    Device, DeviceBytes, DeviceNeed, EngineInfo, Estimate, LiteralRange, Loaded, LogLevel, Model, Open,
    SequenceId, Settings, Stats, Status, StatusCode, Submit, Task,
};

use crate::abi_in::{broken, check, empty_status, read_items, read_plain, read_text};
use crate::abi_out::{self, with_model, with_settings, with_submit};
use crate::callbacks::{self, LogContext, ProgressContext, SinkContext};
use crate::outbox::Outbox;
use crate::plugin;

/// Only the thread that opened it may use it: it is neither `Send` nor `Sync`.
pub struct Engine {
    api: abi::EngineApi,
    handle: *mut abi::Engine,
    id: String,
    version: String,
    /// Of the loaded model.
    embedding_size: u32,
}

/// The minor version of the ABI that embeddings came with.
const EMBEDDINGS_SINCE_MINOR: u32 = 1;
/// The one that constraints came with.
const CONSTRAINTS_SINCE_MINOR: u32 = 2;

/// The one function that other threads may call.
pub struct Canceller {
    cancel: unsafe extern "C" fn(*mut abi::Engine, u64),
    handle: *mut abi::Engine,
}

// SAFETY: by the header `cancel` may be called on any thread until close, before which the worker drops this.
unsafe impl Send for Canceller {}

impl Canceller {
    pub fn cancel(&self, sequence: SequenceId) {
        // SAFETY: see above.
        unsafe { (self.cancel)(self.handle, sequence) }
    }
}

const CHECKED: &str = "the table was checked when the plugin was opened";

/// An output struct with its size set and the rest zero.
macro_rules! zeroed {
    ($type:ty) => {{
        // SAFETY: numbers and raw pointers only.
        let mut out: $type = unsafe { std::mem::zeroed() };
        out.struct_size = size_of::<$type>() as u32;
        out
    }};
}

impl Engine {
    pub fn open(open: &Open, outbox: &'static Outbox) -> Result<Engine, Status> {
        let api = plugin::open(open)?;
        // Both live as long as the process: the plugin may log from any of its threads until it is closed.
        let context: &'static LogContext = Box::leak(Box::new(LogContext { outbox, level: open.log_level }));
        let host: &'static abi::Host = Box::leak(Box::new(host(context, open.log_level)));
        let (mut handle, mut status) = (std::ptr::null_mut(), empty_status());
        // SAFETY: first call, host is static, both outputs are ours.
        let code = unsafe { api.open.expect(CHECKED)(host, &raw mut handle, &raw mut status) };
        check(code, &status)?;
        if handle.is_null() {
            return Err(broken("open succeeded without an engine".to_owned()));
        }
        let (id, version) = (open.engine_id.clone(), open.engine_version.clone());
        Ok(Engine { api, handle, id, version, embedding_size: 0 })
    }

    pub fn canceller(&self) -> Canceller {
        Canceller { cancel: self.api.cancel.expect(CHECKED), handle: self.handle }
    }

    pub fn info(&mut self) -> Result<EngineInfo, Status> {
        let (mut out, mut status) = (zeroed!(abi::Devices), empty_status());
        // SAFETY: the engine's thread; outputs are ours.
        let code = unsafe { self.api.devices.expect(CHECKED)(self.handle, &raw mut out, &raw mut status) };
        check(code, &status)?;
        // SAFETY: borrowed until the next call of devices.
        let items = unsafe { read_items(out.items, out.count, out.element_size, "devices") }?;
        let device = |d: &abi::Device| {
            // SAFETY: as above.
            let (id, kind, name) = unsafe { (read_text(d.id), read_text(d.kind), read_text(d.name)) };
            Device { id, kind, name, memory_total: d.memory_total, memory_free: d.memory_free }
        };
        Ok(EngineInfo {
            id: self.id.clone(),
            version: self.version.clone(),
            abi_major: self.api.abi_major,
            abi_minor: self.api.abi_minor,
            devices: items.iter().map(device).collect(),
        })
    }

    pub fn estimate(&mut self, model: &Model, settings: &Settings) -> Result<Estimate, Status> {
        let (mut out, mut status) = (zeroed!(abi::Estimate), empty_status());
        let estimate = self.api.estimate.expect(CHECKED);
        let code = with_model(model, |model| {
            with_settings(settings, |settings| {
                // SAFETY: the engine's thread; inputs live for the call, outputs are ours.
                unsafe { estimate(self.handle, model, settings, &raw mut out, &raw mut status) }
            })
        })??;
        check(code, &status)?;
        // SAFETY: borrowed until the next call of estimate.
        let items = unsafe { read_items(out.items, out.count, out.element_size, "estimate") }?;
        let need = |n: &abi::DeviceNeed| DeviceNeed {
            // SAFETY: as above.
            device: unsafe { read_text(n.device) },
            weights: n.weights,
            weights_mapped: n.weights_mapped,
            workspace: n.workspace,
            per_sequence: n.per_sequence,
            kv_per_token: n.kv_per_token,
            kv_fixed: n.kv_fixed,
        };
        Ok(Estimate { devices: items.iter().map(need).collect(), context_length_max: out.context_length_max })
    }

    pub fn load(
        &mut self,
        model: &Model,
        settings: &Settings,
        budget: &[DeviceBytes],
        progress: &ProgressContext<'_>,
    ) -> Result<Loaded, Status> {
        let (mut out, mut status) = (zeroed!(abi::Loaded), empty_status());
        let budget = abi_out::budget(budget);
        let (load, progress) = (self.api.load.expect(CHECKED), progress.as_abi());
        let code = with_model(model, |model| {
            with_settings(settings, |settings| {
                let (at, count) = (budget.as_ptr(), budget.len() as u32);
                // SAFETY: the engine's thread; inputs live for the call, outputs are ours.
                unsafe {
                    load(self.handle, model, settings, at, count, &progress, &raw mut out, &raw mut status)
                }
            })
        })??;
        check(code, &status)?;
        if out.embedding_size > abi::EMBEDDING_SIZE_MAX {
            let (size, most) = (out.embedding_size, abi::EMBEDDING_SIZE_MAX);
            return Err(broken(format!("its embeddings have {size} numbers, and {most} are the most")));
        }
        self.embedding_size = out.embedding_size;
        Ok(Loaded {
            context_length: out.context_length,
            sequences_max: out.sequences_max,
            vocabulary_size: out.vocabulary_size,
            // SAFETY: borrowed until unload.
            end_tokens: unsafe { read_plain(out.end_tokens, out.end_token_count) },
            embedding_size: out.embedding_size,
            embeds_only: out.flags & abi::LOADED_EMBEDS_ONLY != 0,
        })
    }

    pub fn tokenize(&mut self, text: &str, literal: &[LiteralRange]) -> Result<Vec<u32>, Status> {
        let (mut out, mut status) = (zeroed!(abi::Tokens), empty_status());
        let literal = abi_out::literal_ranges(text, literal)?;
        let tokenize = self.api.tokenize.expect(CHECKED);
        let (text, at, count) = (abi_out::text(text), literal.as_ptr(), literal.len() as u32);
        // SAFETY: the engine's thread; inputs live for the call, outputs are ours.
        let code = unsafe { tokenize(self.handle, text, at, count, &raw mut out, &raw mut status) };
        check(code, &status)?;
        // SAFETY: borrowed until the next call of tokenize.
        Ok(unsafe { read_plain(out.ids, out.count) })
    }

    pub fn submit(&mut self, submit: &Submit) -> Result<(), Status> {
        self.check_known(&submit.task)?;
        let mut status = empty_status();
        let function = self.api.submit.expect(CHECKED);
        let code = with_submit(submit, |submit| {
            // SAFETY: the engine's thread; inputs live for the call, the output is ours.
            unsafe { function(self.handle, submit, &raw mut status) }
        })?;
        check(code, &status)
    }

    /// Refuses what an engine of before would leave unread, and answer the prompt as if nothing were asked.
    fn check_known(&self, task: &Task) -> Result<(), Status> {
        let minor = self.api.abi_minor;
        let (what, reason, param) = match task {
            Task::Embed if minor < EMBEDDINGS_SINCE_MINOR => ("embeddings", abi::REASON_NO_EMBEDDINGS, None),
            Task::Generate(sampling) if sampling.constraint.is_some() && minor < CONSTRAINTS_SINCE_MINOR => {
                ("constraint", abi::REASON_INVALID_SAMPLING, Some("constraint".to_owned()))
            }
            _ => return Ok(()),
        };
        let message =
            format!("engine {} was built for ABI {}.{minor}, which has no {what}", self.id, abi::ABI_MAJOR);
        Err(Status { param, ..Status::new(StatusCode::Unsupported, reason, message) })
    }

    /// Numbers of an embedding of the loaded model.
    pub fn embedding_size(&self) -> u32 {
        self.embedding_size
    }

    pub fn cancel(&mut self, sequence: SequenceId) {
        self.canceller().cancel(sequence);
    }

    /// Returns how many sequences the engine still has.
    pub fn step(
        &mut self,
        progress: &ProgressContext<'_>,
        sink: &mut SinkContext<'_>,
    ) -> Result<u32, Status> {
        let (mut pending, mut status) = (0, empty_status());
        let (step, progress, sink) = (self.api.step.expect(CHECKED), progress.as_abi(), sink.as_abi());
        // SAFETY: the engine's thread; the callbacks' contexts live for the call, outputs are ours.
        let code = unsafe { step(self.handle, &progress, &sink, &raw mut pending, &raw mut status) };
        check(code, &status).map(|()| pending)
    }

    pub fn stats(&mut self) -> Result<Stats, Status> {
        let (mut out, mut status) = (zeroed!(abi::Stats), empty_status());
        // SAFETY: the engine's thread; outputs are ours.
        let code = unsafe { self.api.stats.expect(CHECKED)(self.handle, &raw mut out, &raw mut status) };
        check(code, &status)?;
        // SAFETY: borrowed until the next call of stats, as are the texts below.
        let memory = unsafe { read_plain(out.memory, out.memory_count) };
        Ok(Stats {
            sequences_running: out.sequences_running,
            sequences_waiting: out.sequences_waiting,
            steps: out.steps,
            prompt_tokens: out.prompt_tokens,
            completion_tokens: out.completion_tokens,
            batch_sequences_max: out.batch_sequences_max,
            memory: memory
                .into_iter()
                // SAFETY: as above.
                .map(|m| DeviceBytes { device: unsafe { read_text(m.device) }, bytes: m.bytes })
                .collect(),
            kv_bytes_used: out.kv_bytes_used,
            kv_bytes_total: out.kv_bytes_total,
            // SAFETY: as above.
            details_json: unsafe { read_text(out.details_json) },
        })
    }

    /// Unloads and closes the engine. No canceller may be left.
    pub fn close(self) {
        // SAFETY: the engine's thread, last two calls; `self` is gone after them.
        unsafe {
            self.api.unload.expect(CHECKED)(self.handle);
            self.api.close.expect(CHECKED)(self.handle);
        }
    }
}

fn host(context: &'static LogContext, level: LogLevel) -> abi::Host {
    abi::Host {
        struct_size: size_of::<abi::Host>() as u32,
        abi_major: abi::ABI_MAJOR,
        abi_minor: abi::ABI_MINOR,
        log_level: callbacks::log_level_number(level),
        context: (&raw const *context).cast_mut().cast(),
        log: Some(callbacks::log),
    }
}

/// Sequences that run, with the number of their tokens so far.
pub type Running = HashMap<SequenceId, u32>;
