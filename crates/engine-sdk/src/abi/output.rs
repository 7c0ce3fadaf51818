//! What goes out to the host: structs behind their `struct_size`, statuses, events.

use std::ffi::c_char;

use engine_abi as c;

use super::input::{self, Sized32};
use crate::{Event, EventKind, FinishReason, Piece, Status, reason};

/// As much of `value` as the host's struct has room for, its `struct_size` left as it is.
///
/// # Safety
/// `out` is not null and points to as many bytes as its `struct_size` says.
pub(super) unsafe fn sized<T: Sized32>(out: *mut T, value: &T) {
    // SAFETY: Sized32: the first field is the u32 struct_size.
    let size = unsafe { out.cast::<u32>().read() } as usize;
    let Some(rest) = size.min(size_of::<T>()).checked_sub(size_of::<u32>()) else { return };
    // SAFETY: behind struct_size and within both structs.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>().add(size_of::<u32>());
        std::ptr::copy_nonoverlapping(from, out.cast::<u8>().add(size_of::<u32>()), rest);
    }
}

pub(super) fn text(text: &str) -> c::Str {
    c::Str { data: text.as_ptr().cast(), size: text.len() }
}

pub(super) fn bytes(bytes: &[u8]) -> c::Bytes {
    c::Bytes { data: bytes.as_ptr(), size: bytes.len() }
}

/// # Safety
/// `out` is null or a live `llmr_status` with its `struct_size` set.
pub(super) unsafe fn status(out: *mut c::Status, status: &Status) {
    if out.is_null() || !out.is_aligned() {
        return;
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { sized(out, &c_status(status)) };
}

fn c_status(status: &Status) -> c::Status {
    c::Status {
        struct_size: size_of::<c::Status>() as u32,
        code: status.code as c::Code,
        needed: status.needed,
        available: status.available,
        reason: characters(&status.reason),
        message: characters(&status.message),
        param: characters(&status.param),
    }
}

/// One line, cut between characters, closed by NUL.
fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    let end = text.floor_char_boundary(N - 1);
    for (to, byte) in out.iter_mut().zip(text[..end].bytes()) {
        *to = (if byte.is_ascii_control() { b' ' } else { byte }) as c_char;
    }
    out
}

/// Where events go.
pub(super) struct Sink {
    context: *mut std::ffi::c_void,
    event: unsafe extern "C" fn(*mut std::ffi::c_void, *const c::Event),
    /// Kept from event to event.
    logprobs: Vec<c::TokenLogprob>,
}

impl Sink {
    /// # Safety
    /// `sink` is null or a live `llmr_event_sink`, and what it points to stays so as long as the result is used.
    pub unsafe fn new(sink: *const c::EventSink) -> Result<Sink, Status> {
        input::not_null(sink, "sink")?;
        // SAFETY: not null, aligned, and the caller's promise.
        let sink = unsafe { sink.read() };
        let Some(event) = sink.event else {
            return Err(Status::internal(reason::NULL_ARGUMENT, "sink.event is null"));
        };
        Ok(Sink { context: sink.context, event, logprobs: Vec::new() })
    }

    pub fn send(&mut self, event: &Event<'_>) {
        let mut out = c::Event {
            struct_size: size_of::<c::Event>() as u32,
            kind: 0,
            sequence: event.sequence,
            prompt_tokens: 0,
            cached_tokens: 0,
            token_id: 0,
            control: 0,
            bytes: c::Bytes { data: std::ptr::null(), size: 0 },
            logprobs: std::ptr::null(),
            logprob_count: 0,
            finish_reason: 0,
            completion_tokens: 0,
            reserved: 0,
            status: std::ptr::null(),
            embedding: std::ptr::null(),
            embedding_size: 0,
            reserved2: 0,
        };
        let failure;
        match event.kind {
            EventKind::Started { prompt_tokens, cached_tokens } => {
                (out.kind, out.prompt_tokens, out.cached_tokens) =
                    (c::EVENT_STARTED, prompt_tokens, cached_tokens);
            }
            EventKind::Token { id, piece: Piece { bytes: spelled, control }, logprobs } => {
                (out.kind, out.token_id, out.control) = (c::EVENT_TOKEN, id, control.into());
                out.bytes = bytes(spelled);
                self.logprobs.clear();
                self.logprobs.extend(logprobs.iter().map(|(token, piece)| c::TokenLogprob {
                    id: token.id,
                    logprob: token.logprob,
                    bytes: bytes(piece.bytes),
                }));
                if !self.logprobs.is_empty() {
                    out.logprobs = self.logprobs.as_ptr();
                    out.logprob_count = u32::try_from(self.logprobs.len()).expect("21 at most");
                }
            }
            EventKind::Finished { reason, completion_tokens } => {
                (out.kind, out.completion_tokens) = (c::EVENT_FINISHED, completion_tokens);
                out.finish_reason = match reason {
                    FinishReason::Stop => c::FINISH_STOP,
                    FinishReason::Length => c::FINISH_LENGTH,
                    FinishReason::Cancelled => c::FINISH_CANCELLED,
                };
            }
            EventKind::Embedding(numbers) => {
                (out.kind, out.embedding) = (c::EVENT_EMBEDDING, numbers.as_ptr());
                out.embedding_size = u32::try_from(numbers.len()).expect("EMBEDDING_SIZE_MAX at most");
            }
            EventKind::Failed(status) => {
                failure = c_status(status);
                (out.kind, out.status) = (c::EVENT_FAILED, &raw const failure);
            }
        }
        // SAFETY: live, by the promise of `new`; everything the event points to outlives the call.
        unsafe { (self.event)(self.context, &raw const out) };
    }
}
