//! The stable reasons of the header, and the few that only this crate gives.

pub use engine_abi::{
    REASON_ABI_MISMATCH as ABI_MISMATCH, REASON_BUDGET_EXCEEDED as BUDGET_EXCEEDED,
    REASON_CANCELLED as CANCELLED, REASON_CONTEXT_LENGTH_EXCEEDED as CONTEXT_LENGTH_EXCEEDED,
    REASON_DEVICE_FAILED as DEVICE_FAILED, REASON_EMPTY_PROMPT as EMPTY_PROMPT,
    REASON_FILE_CORRUPT as FILE_CORRUPT, REASON_FILE_UNREADABLE as FILE_UNREADABLE,
    REASON_INTERNAL as INTERNAL, REASON_INVALID_PROMPT as INVALID_PROMPT,
    REASON_INVALID_SAMPLING as INVALID_SAMPLING, REASON_INVALID_SETTINGS as INVALID_SETTINGS,
    REASON_KV_FULL as KV_FULL, REASON_MODEL_ALREADY_LOADED as MODEL_ALREADY_LOADED,
    REASON_MODEL_NOT_LOADED as MODEL_NOT_LOADED, REASON_NO_EMBEDDINGS as NO_EMBEDDINGS,
    REASON_NO_GENERATION as NO_GENERATION, REASON_QUEUE_FULL as QUEUE_FULL,
    REASON_SEQUENCE_EXISTS as SEQUENCE_EXISTS, REASON_UNKNOWN_DEVICE as UNKNOWN_DEVICE,
    REASON_UNKNOWN_OPTION as UNKNOWN_OPTION, REASON_UNSUPPORTED_MODEL as UNSUPPORTED_MODEL,
};

/// INTERNAL: a function of the engine panicked.
pub const PANIC: &str = "panic";
/// INTERNAL: the model gave a logit that is not a number, or positive infinity.
pub const LOGITS_NOT_FINITE: &str = "logits_not_finite";
/// INTERNAL: the model gave an embedding that has no direction: a number that is none, or zeros alone.
pub const EMBEDDING_NOT_FINITE: &str = "embedding_not_finite";
/// INTERNAL: biases and masks left no token that could be chosen.
pub const NO_TOKEN_POSSIBLE: &str = "no_token_possible";
/// INTERNAL: the host passed a pointer that it must not.
pub const NULL_ARGUMENT: &str = "null_argument";
