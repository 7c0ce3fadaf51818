//! Numbers and names of the header, under the header's names without the `LLMR_` prefix.

use crate::{Code, ConstraintKind, EventKind, FinishReason, LogLevel, PromptKind, Task};

pub const ABI_MAJOR: u32 = 1;
pub const ABI_MINOR: u32 = 2;
pub const ENTRY_SYMBOL: &str = "llmr_engine_entry";

/// Bytes of [`crate::Status::reason`] and [`crate::Status::message`], the closing NUL included.
pub const REASON_BYTES: usize = 64;
pub const MESSAGE_BYTES: usize = 1024;
pub const PARAM_BYTES: usize = 64;
pub const LOGPROBS_MAX: i32 = 20;
pub const EMBEDDING_SIZE_MAX: u32 = 16384;

pub const OK: Code = 0;
pub const OOM_VRAM: Code = 1;
pub const OOM_RAM: Code = 2;
pub const MODEL_CORRUPT: Code = 3;
pub const TIMEOUT: Code = 4;
pub const CANCELLED: Code = 5;
pub const UNSUPPORTED: Code = 6;
pub const INTERNAL: Code = 7;
pub const ABI_MISMATCH: Code = 8;
pub const LOAD_FAILED: Code = 9;

pub const REASON_CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";
pub const REASON_EMPTY_PROMPT: &str = "empty_prompt";
pub const REASON_INVALID_PROMPT: &str = "invalid_prompt";
pub const REASON_INVALID_SAMPLING: &str = "invalid_sampling";
pub const REASON_INVALID_SETTINGS: &str = "invalid_settings";
pub const REASON_UNKNOWN_OPTION: &str = "unknown_option";
pub const REASON_UNKNOWN_DEVICE: &str = "unknown_device";
pub const REASON_UNSUPPORTED_MODEL: &str = "unsupported_model";
pub const REASON_MODEL_NOT_LOADED: &str = "model_not_loaded";
pub const REASON_MODEL_ALREADY_LOADED: &str = "model_already_loaded";
pub const REASON_NO_EMBEDDINGS: &str = "no_embeddings";
pub const REASON_NO_GENERATION: &str = "no_generation";
pub const REASON_SEQUENCE_EXISTS: &str = "sequence_exists";
pub const REASON_QUEUE_FULL: &str = "queue_full";
pub const REASON_KV_FULL: &str = "kv_full";
pub const REASON_BUDGET_EXCEEDED: &str = "budget_exceeded";
pub const REASON_FILE_UNREADABLE: &str = "file_unreadable";
pub const REASON_FILE_CORRUPT: &str = "file_corrupt";
pub const REASON_CANCELLED: &str = "cancelled";
pub const REASON_INTERNAL: &str = "internal";
pub const REASON_DEVICE_FAILED: &str = "device_failed";
pub const REASON_ABI_MISMATCH: &str = "abi_mismatch";

pub const LOG_ERROR: LogLevel = 0;
pub const LOG_WARN: LogLevel = 1;
pub const LOG_INFO: LogLevel = 2;
pub const LOG_DEBUG: LogLevel = 3;
pub const LOG_TRACE: LogLevel = 4;

/// Bit of [`crate::Sampling::flags`].
pub const SAMPLING_IGNORE_END_TOKENS: u32 = 1;

pub const PROMPT_TEXT: PromptKind = 0;
pub const PROMPT_TOKENS: PromptKind = 1;

pub const CONSTRAINT_NONE: ConstraintKind = 0;
pub const CONSTRAINT_JSON_SCHEMA: ConstraintKind = 1;
pub const CONSTRAINT_LARK: ConstraintKind = 2;

pub const TASK_GENERATE: Task = 0;
pub const TASK_EMBED: Task = 1;

/// Bit of [`crate::Loaded::flags`].
pub const LOADED_EMBEDS_ONLY: u32 = 1;

pub const FINISH_STOP: FinishReason = 0;
pub const FINISH_LENGTH: FinishReason = 1;
pub const FINISH_CANCELLED: FinishReason = 2;

pub const EVENT_STARTED: EventKind = 1;
pub const EVENT_TOKEN: EventKind = 2;
pub const EVENT_FINISHED: EventKind = 3;
pub const EVENT_FAILED: EventKind = 4;
pub const EVENT_EMBEDDING: EventKind = 5;
