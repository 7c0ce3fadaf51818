//! The engine's own options: a JSON object whose keys are all known, or it is refused.

use std::time::Duration;

use engine_sdk::scheduler::PREFILL_GAP_DEFAULT;
use engine_sdk::{Settings, Status, reason};
use gpt_oss_cpu::pool::THREADS_MAX;
use gpt_oss_cpu::{Activations, DenseBytes, Isa, KvFormat};
use gpt_oss_model::GptOssConfig;
use serde_json::{Map, Value};

use crate::files::ARTIFACTS;
use crate::limits::KvOptions;

/// What `options_json` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// `isa`: one by name instead of the best one.
    pub(crate) isa: Isa,
    /// `activations`: in what form they are multiplied.
    pub(crate) activations: Activations,
    /// `touch`: whether a load reads all weights once, so that the first request does not wait for the disk.
    pub(crate) touch: bool,
    /// `deterministic`: the same request has the same tokens whatever else runs, was cached, or gave way.
    pub(crate) deterministic: bool,
    /// `prefill_gap_ms`: how much later a token of a stream may come because somebody else's prompt is read.
    pub(crate) prefill_gap: Duration,
    /// `pin`: whether each thread stays on a processor of its own while a step is computed.
    pub(crate) pin: bool,
    /// `kv_format`: "f32" or "bf16", what keys and values are kept in.
    pub(crate) kv_format: KvFormat,
    /// `kv_tokens`: room for so many tokens, shared by all sequences, instead of for the longest of each.
    pub(crate) kv_tokens: Option<u32>,
    /// `dense_weights`: the form in which the weights of attention and output are used.
    pub(crate) dense_weights: DenseWeights,
}

/// Weights that every token reads: those of attention and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DenseWeights {
    /// As published.
    Bf16,
    /// A copy in eight bits, made when the model is loaded.
    Int8,
}

impl DenseWeights {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DenseWeights::Bf16 => "bf16",
            DenseWeights::Int8 => "int8",
        }
    }
}

/// A stream that waits longer than a minute is none.
const PREFILL_GAP_MS_MAX: u64 = 60_000;
/// Far more than any memory holds; sums of bytes stay far below 2^64.
const KV_TOKENS_MAX: u64 = 1 << 31;
const KNOWN: &str = "isa, activations, touch, deterministic, prefill_gap_ms, kv_format, kv_tokens, pin, dense_weights, artifacts";

impl Options {
    pub(crate) fn kv(&self) -> KvOptions {
        KvOptions { format: self.kv_format, tokens: self.kv_tokens }
    }

    /// # Errors
    /// `UNSUPPORTED`, naming the key, and also for a number of threads that cannot be.
    pub(crate) fn of(settings: &Settings) -> Result<Options, Status> {
        if let Some(threads) = settings.threads
            && !(1..=THREADS_MAX).contains(&(threads as usize))
        {
            let message = format!("threads is {threads}, not a number from 1 to {THREADS_MAX}");
            return Err(invalid("threads", message));
        }
        let mut options = Options {
            isa: Isa::detect(),
            activations: Activations::Int8,
            touch: true,
            deterministic: false,
            prefill_gap: PREFILL_GAP_DEFAULT,
            pin: true,
            kv_format: KvFormat::Bf16,
            kv_tokens: None,
            dense_weights: DenseWeights::Bf16,
        };
        if settings.options_json.is_empty() {
            return Ok(options);
        }
        let object: Map<String, Value> = serde_json::from_str(&settings.options_json)
            .map_err(|error| invalid("options_json", format!("options are not a JSON object: {error}")))?;
        for (key, value) in object {
            match key.as_str() {
                "isa" => options.isa = isa(&value)?,
                "activations" => options.activations = activations(&value)?,
                "touch" => options.touch = flag(&key, &value)?,
                "deterministic" => options.deterministic = flag(&key, &value)?,
                "prefill_gap_ms" => {
                    options.prefill_gap = Duration::from_millis(number(&key, &value, PREFILL_GAP_MS_MAX)?);
                }
                "pin" => options.pin = flag(&key, &value)?,
                "kv_format" => options.kv_format = kv_format(&value)?,
                "kv_tokens" => {
                    // At most 2^31, so it fits.
                    options.kv_tokens = u32::try_from(number(&key, &value, KV_TOKENS_MAX)?).ok();
                }
                "dense_weights" => options.dense_weights = dense_weights(&value)?,
                // Read where the files are opened.
                ARTIFACTS => {}
                _ => {
                    let message = format!("option {key} is not one of: {KNOWN}");
                    return Err(Status::unsupported(reason::UNKNOWN_OPTION, message).with_param(key));
                }
            }
        }
        Ok(options)
    }

    /// What a copy of weights takes, and what it stands for; nothing without one.
    pub(crate) fn copy_bytes(&self, config: &GptOssConfig) -> DenseBytes {
        match self.dense_weights {
            DenseWeights::Bf16 => DenseBytes { copy: 0, replaced: 0 },
            DenseWeights::Int8 => DenseBytes::of(config),
        }
    }
}

fn flag(key: &str, value: &Value) -> Result<bool, Status> {
    value.as_bool().ok_or_else(|| invalid(key, format!("option {key} is {value}, not a boolean")))
}

fn number(key: &str, value: &Value, most: u64) -> Result<u64, Status> {
    let number = value.as_u64().filter(|number| (1..=most).contains(number));
    number
        .ok_or_else(|| invalid(key, format!("option {key} is {value}, not a whole number from 1 to {most}")))
}

fn dense_weights(value: &Value) -> Result<DenseWeights, Status> {
    let known = [DenseWeights::Bf16, DenseWeights::Int8];
    known.into_iter().find(|form| value.as_str() == Some(form.as_str())).ok_or_else(|| {
        invalid("dense_weights", format!("option dense_weights is {value}, not one of: bf16, int8"))
    })
}

fn isa(value: &Value) -> Result<Isa, Status> {
    let Some(isa) = value.as_str().and_then(Isa::named) else {
        let known = Isa::ALL.map(Isa::as_str).join(", ");
        return Err(invalid("isa", format!("option isa is {value}, not one of: {known}")));
    };
    if !isa.is_available() {
        return Err(invalid("isa", format!("option isa is {value}, which this processor does not have")));
    }
    Ok(isa)
}

fn kv_format(value: &Value) -> Result<KvFormat, Status> {
    let known = [KvFormat::F32, KvFormat::Bf16];
    let found = known.into_iter().find(|format| value.as_str() == Some(format.as_str()));
    found.ok_or_else(|| invalid("kv_format", format!("option kv_format is {value}, not one of: f32, bf16")))
}

fn activations(value: &Value) -> Result<Activations, Status> {
    value.as_str().and_then(Activations::named).ok_or_else(|| {
        let known = Activations::ALL.map(Activations::as_str).join(", ");
        invalid("activations", format!("option activations is {value}, not one of: {known}"))
    })
}

fn invalid(name: &str, message: String) -> Status {
    Status::unsupported(reason::INVALID_SETTINGS, message).with_param(name.to_owned())
}
