//! What a plugin calls: log, progress, events. Each finds its Rust side behind the context pointer.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::time::{Duration, Instant};

use engine_abi as abi;
use engine_protocol::{
    Event, EventKind, FinishReason, LogLevel, Phase, SequenceId, ToNode, Token, TokenLogprob,
};

use crate::abi_in::{broken, read_bytes, read_plain, read_sized, read_status, read_text};
use crate::inbox::Inbox;
use crate::outbox::Outbox;

/// Progress messages are at least this far apart: ten a second are smooth to look at and cost nothing.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The context of [`log`].
pub struct LogContext {
    pub outbox: &'static Outbox,
    pub level: LogLevel,
}

/// `llmr_host.log`
pub unsafe extern "C" fn log(context: *mut c_void, level: abi::LogLevel, message: abi::Str, sequence: u64) {
    // SAFETY: the context given with this function is a LogContext that is never freed.
    let context = unsafe { &*context.cast::<LogContext>() };
    let level = log_level(level);
    if level <= context.level {
        // SAFETY: the plugin lends the message for the call.
        context.outbox.log(level, unsafe { read_text(message) }, sequence);
    }
}

/// A level unknown here is more detailed than any known.
fn log_level(level: abi::LogLevel) -> LogLevel {
    match level {
        abi::LOG_ERROR => LogLevel::Error,
        abi::LOG_WARN => LogLevel::Warn,
        abi::LOG_INFO => LogLevel::Info,
        abi::LOG_DEBUG => LogLevel::Debug,
        _ => LogLevel::Trace,
    }
}

pub fn log_level_number(level: LogLevel) -> abi::LogLevel {
    match level {
        LogLevel::Error => abi::LOG_ERROR,
        LogLevel::Warn => abi::LOG_WARN,
        LogLevel::Info => abi::LOG_INFO,
        LogLevel::Debug => abi::LOG_DEBUG,
        LogLevel::Trace => abi::LOG_TRACE,
    }
}

/// The context of `llmr_progress.report`, for one call of load or step.
pub struct ProgressContext<'a> {
    inbox: &'a Inbox,
    outbox: &'a Outbox,
    phase: Phase,
    /// When the node last heard of the engine's thread; shared by all calls, so that steps too short to report anything
    /// are seen too. `None`: report at once.
    heard: &'a Heard,
}

/// When the node last heard of the engine's thread.
pub type Heard = Cell<Option<Instant>>;

/// Tells the node that the engine's thread lives, unless it has heard so a moment ago.
pub fn sign_of_life(outbox: &Outbox, heard: &Heard, phase: Phase, done: u64, total: u64) {
    let now = Instant::now();
    if heard.get().is_none_or(|heard| now.duration_since(heard) >= PROGRESS_INTERVAL) {
        heard.set(Some(now));
        outbox.send(&ToNode::Progress { phase, done, total });
    }
}

impl<'a> ProgressContext<'a> {
    /// The first report of a load is sent at once; a step says nothing before it takes long.
    pub fn new(inbox: &'a Inbox, outbox: &'a Outbox, phase: Phase, heard: &'a Heard) -> ProgressContext<'a> {
        if phase == Phase::Load {
            heard.set(None);
        }
        ProgressContext { inbox, outbox, phase, heard }
    }

    /// The C side; valid while `self` is.
    pub fn as_abi(&self) -> abi::Progress {
        abi::Progress { context: (&raw const *self).cast_mut().cast(), report: Some(report) }
    }

    fn report(&self, done: u64, total: u64) -> u32 {
        if self.phase == Phase::Load && total > 0 && done >= total {
            self.heard.set(None);
        }
        sign_of_life(self.outbox, self.heard, self.phase, done, total);
        u32::from(self.inbox.stopping())
    }
}

unsafe extern "C" fn report(context: *mut c_void, done: u64, total: u64) -> u32 {
    // SAFETY: the context lives as long as the call it was given to, and the plugin calls only within that.
    unsafe { &*context.cast::<ProgressContext<'_>>() }.report(done, total)
}

/// The context of `llmr_event_sink.event`, for one step.
pub struct SinkContext<'a> {
    /// Sequences that run, with the number of their tokens so far.
    pub running: &'a mut HashMap<SequenceId, u32>,
    /// What the engine has said of the loaded model.
    pub embedding_size: u32,
    pub events: Vec<Event>,
    /// What the plugin did against the contract.
    pub complaints: Vec<String>,
}

impl SinkContext<'_> {
    /// The C side; valid while `self` is, which must not be touched meanwhile.
    pub fn as_abi(&mut self) -> abi::EventSink {
        abi::EventSink { context: (&raw mut *self).cast(), event: Some(event) }
    }

    fn take(&mut self, event: &abi::Event) {
        let sequence = event.sequence;
        let Some(tokens) = self.running.get_mut(&sequence) else {
            self.complaints.push(format!("an event for sequence {sequence}, which is not running"));
            return;
        };
        let kind = match event.kind {
            abi::EVENT_STARTED => {
                EventKind::Started { prompt_tokens: event.prompt_tokens, cached_tokens: event.cached_tokens }
            }
            abi::EVENT_TOKEN => {
                *tokens += 1;
                EventKind::Token(token(event))
            }
            abi::EVENT_EMBEDDING => {
                // SAFETY: the plugin lends the numbers for the callback.
                let numbers = unsafe { read_plain(event.embedding, event.embedding_size) };
                if numbers.len() != self.embedding_size as usize {
                    let (got, said) = (numbers.len(), self.embedding_size);
                    self.complaints.push(format!(
                        "an embedding of {got} numbers for sequence {sequence}, where the model was said to have {said}"
                    ));
                    return;
                }
                EventKind::Embedding(numbers)
            }
            abi::EVENT_FINISHED => {
                let reason = match event.finish_reason {
                    abi::FINISH_STOP => FinishReason::Stop,
                    abi::FINISH_LENGTH => FinishReason::Length,
                    abi::FINISH_CANCELLED => FinishReason::Cancelled,
                    other => {
                        self.complaints.push(format!("the finish reason {other} for sequence {sequence}"));
                        FinishReason::Stop
                    }
                };
                EventKind::Finished { reason, completion_tokens: event.completion_tokens }
            }
            abi::EVENT_FAILED => {
                // SAFETY: the plugin lends the status for the callback.
                let status = match unsafe { read_sized(event.status) } {
                    Some(status) => read_status(status.code, &status),
                    None => broken(format!("sequence {sequence} failed without a status")),
                };
                EventKind::Failed { status }
            }
            other => {
                self.complaints.push(format!("an event of kind {other} for sequence {sequence}"));
                return;
            }
        };
        if matches!(kind, EventKind::Finished { .. } | EventKind::Failed { .. }) {
            self.running.remove(&sequence);
        }
        self.events.push(Event { sequence, kind });
    }
}

fn token(event: &abi::Event) -> Token {
    // SAFETY: the plugin lends bytes and logprobs for the callback.
    let logprobs = unsafe { read_plain(event.logprobs, event.logprob_count) };
    Token {
        id: event.token_id,
        // SAFETY: as above.
        bytes: unsafe { read_bytes(event.bytes) },
        control: event.control != 0,
        logprobs: logprobs
            .into_iter()
            .map(|l| TokenLogprob {
                id: l.id,
                logprob: l.logprob,
                // SAFETY: as above.
                bytes: unsafe { read_bytes(l.bytes) },
            })
            .collect(),
    }
}

unsafe extern "C" fn event(context: *mut c_void, event: *const abi::Event) {
    // SAFETY: the context lives as long as the step it was given to, on whose thread this runs; nobody else uses it.
    let sink = unsafe { &mut *context.cast::<SinkContext<'_>>() };
    // SAFETY: the plugin lends the event for the callback.
    match unsafe { read_sized(event) } {
        Some(event) => sink.take(&event),
        None => sink.complaints.push("an event that is a null pointer".to_owned()),
    }
}
