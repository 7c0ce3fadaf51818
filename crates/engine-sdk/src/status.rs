//! What an engine answers when something cannot be done: one of ten codes, a stable reason, words, two numbers.

use std::borrow::Cow;

use crate::reason;

/// The codes of the ABI. `include/engine/llmr_engine.h` says what each means to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum StatusCode {
    Ok = engine_abi::OK,
    OomVram = engine_abi::OOM_VRAM,
    OomRam = engine_abi::OOM_RAM,
    ModelCorrupt = engine_abi::MODEL_CORRUPT,
    Timeout = engine_abi::TIMEOUT,
    Cancelled = engine_abi::CANCELLED,
    Unsupported = engine_abi::UNSUPPORTED,
    Internal = engine_abi::INTERNAL,
    AbiMismatch = engine_abi::ABI_MISMATCH,
    LoadFailed = engine_abi::LOAD_FAILED,
}

/// Why something failed. The error type of everything an engine does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({reason})")]
pub struct Status {
    pub code: StatusCode,
    /// Stable and machine-readable, snake_case: `context_length_exceeded`.
    pub reason: Cow<'static, str>,
    /// For a person: names the file, the tensor, the device or the number.
    pub message: String,
    /// What was needed, in the unit the message names; 0 where no numbers explain it.
    pub needed: u64,
    /// What there was.
    pub available: u64,
    /// The field that was refused, by its name in the header's structs, or the key of an option; empty: none.
    pub param: Cow<'static, str>,
}

impl Status {
    pub fn new(code: StatusCode, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Status {
        Status {
            code,
            reason: reason.into(),
            message: message.into(),
            needed: 0,
            available: 0,
            param: "".into(),
        }
    }

    /// The two numbers that explain the refusal (bytes, tokens).
    #[must_use]
    pub fn with_numbers(mut self, needed: u64, available: u64) -> Status {
        self.needed = needed;
        self.available = available;
        self
    }

    /// The field that was refused: `logit_bias`, `context_length`, `prefill_gap_ms`.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<Cow<'static, str>>) -> Status {
        self.param = param.into();
        self
    }

    /// A file of the model is damaged or lies: the model must not be offered any more.
    pub fn model_corrupt(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Status {
        Status::new(StatusCode::ModelCorrupt, reason, message)
    }

    /// The request asks for what this engine or model cannot do.
    pub fn unsupported(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Status {
        Status::new(StatusCode::Unsupported, reason, message)
    }

    /// The model cannot be loaded here, though its files are not to blame.
    pub fn load_failed(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Status {
        Status::new(StatusCode::LoadFailed, reason, message)
    }

    /// A mistake of the engine's own.
    pub fn internal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Status {
        Status::new(StatusCode::Internal, reason, message)
    }

    /// The host asked to stop.
    pub fn cancelled(message: impl Into<String>) -> Status {
        Status::new(StatusCode::Cancelled, reason::CANCELLED, message)
    }

    /// Too little memory of the device, both in bytes.
    pub fn oom_vram(message: impl Into<String>, needed: u64, available: u64) -> Status {
        Status::new(StatusCode::OomVram, "out_of_device_memory", message).with_numbers(needed, available)
    }

    /// Too little memory of the machine, both in bytes.
    pub fn oom_ram(message: impl Into<String>, needed: u64, available: u64) -> Status {
        Status::new(StatusCode::OomRam, "out_of_memory", message).with_numbers(needed, available)
    }
}
