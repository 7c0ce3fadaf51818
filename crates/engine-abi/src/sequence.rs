//! A sequence: what is submitted, how tokens are chosen, what happens to it.

use std::ffi::c_void;

use crate::{Bytes, DeviceBytes, Range, Status, Str, TokenBias, TokenLogprob};

pub type PromptKind = u32;
pub type ConstraintKind = u32;
pub type Task = u32;
pub type FinishReason = u32;
pub type EventKind = u32;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    pub struct_size: u32,
    pub flags: u32,
    pub seed: u64,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repetition_penalty: f32,
    pub top_k: u32,
    pub tokens_max: u32,
    pub tokens_min: u32,
    /// -1: none; 0 to [`crate::LOGPROBS_MAX`]: of the chosen token and of so many of the most likely.
    pub logprobs: i32,
    pub logit_bias_count: u32,
    pub stop_count: u32,
    pub stop_token_count: u32,
    pub reserved: u32,
    pub logit_bias: *const TokenBias,
    pub stop: *const Str,
    pub stop_tokens: *const u32,
    /// Texts of which the answer begins with one.
    pub begin_with: *const Str,
    pub begin_with_count: u32,
    pub reserved2: u32,
    pub constraint_kind: ConstraintKind,
    pub reserved3: u32,
    /// What the answer has to be.
    pub constraint: Str,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Submit {
    pub struct_size: u32,
    pub prompt_kind: PromptKind,
    pub sequence: u64,
    pub request_id: Str,
    pub text: Str,
    pub literal: *const Range,
    pub tokens: *const u32,
    pub literal_count: u32,
    pub token_count: u32,
    pub sampling: *const Sampling,
    /// Sequences with the same number may share KV.
    pub cache_salt: u64,
    /// [`crate::TASK_GENERATE`] or [`crate::TASK_EMBED`].
    pub task: Task,
    pub reserved: u32,
}

/// Fields of other kinds than `kind` are 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub struct_size: u32,
    pub kind: EventKind,
    pub sequence: u64,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub token_id: u32,
    pub control: u32,
    pub bytes: Bytes,
    pub logprobs: *const TokenLogprob,
    pub logprob_count: u32,
    pub finish_reason: FinishReason,
    pub completion_tokens: u32,
    pub reserved: u32,
    pub status: *const Status,
    pub embedding: *const f32,
    pub embedding_size: u32,
    pub reserved2: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EventSink {
    pub context: *mut c_void,
    pub event: Option<unsafe extern "C" fn(context: *mut c_void, event: *const Event)>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Stats {
    pub struct_size: u32,
    pub sequences_running: u32,
    pub sequences_waiting: u32,
    pub batch_sequences_max: u32,
    pub steps: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Bytes.
    pub kv_bytes_used: u64,
    /// Bytes.
    pub kv_bytes_total: u64,
    pub memory: *const DeviceBytes,
    pub memory_count: u32,
    pub reserved: u32,
    pub details_json: Str,
}
