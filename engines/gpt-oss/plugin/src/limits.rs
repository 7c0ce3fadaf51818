//! How long a context and how many sequences fit the memory that is granted.

use engine_sdk::{Settings, Status, StatusCode, reason};
use gpt_oss_cpu::{KvFormat, Needs};
use gpt_oss_model::GptOssConfig;

/// What a device takes when nobody asks for a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Defaults {
    /// Sequences at once.
    pub(crate) sequences: u32,
    /// Tokens of one step, if there are not more sequences.
    pub(crate) batch_tokens: u32,
}

/// Of 512 tokens each of 32 experts meets 64, as many as pass through its weights together. Beside answers that run the
/// scheduler takes fewer.
pub(crate) const ON_CPU: Defaults = Defaults { sequences: 4, batch_tokens: 512 };
const SEQUENCES_MAX: u32 = 256;
const BATCH_TOKENS_MAX: u32 = 8_192;
/// Context when nobody asks for one and memory does not say less: the cpu prefills some ten thousand tokens in minutes.
const CONTEXT_DEFAULT: u32 = 8_192;
/// Shorter contexts are of no use to anybody.
const CONTEXT_MIN: u32 = 16;

/// What was asked of keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvOptions {
    pub(crate) format: KvFormat,
    /// The sequences share room for so many tokens.
    pub(crate) tokens: Option<u32>,
}

/// What a loaded model promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) context_length: u32,
    pub(crate) sequences_max: u32,
    pub(crate) batch_tokens_max: u32,
    /// Bytes of the blocks of all sequences.
    pub(crate) kv_bytes: u64,
    /// Bytes besides, those of [`Fixed`] included.
    pub(crate) workspace: u64,
}

/// Bytes that are needed whatever runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fixed {
    pub(crate) tokenizer: u64,
    /// The copy of weights in another form.
    pub(crate) copy: u64,
}

/// # Errors
/// `UNSUPPORTED` for numbers that cannot be.
pub(crate) fn sequences_and_batch(settings: &Settings, defaults: Defaults) -> Result<(u32, u32), Status> {
    let sequences = settings.sequences_max.unwrap_or(defaults.sequences);
    if !(1..=SEQUENCES_MAX).contains(&sequences) {
        return Err(invalid(
            "sequences_max",
            format!("sequences_max is {sequences}, not a number from 1 to {SEQUENCES_MAX}"),
        ));
    }
    let batch = settings.batch_tokens_max.unwrap_or(defaults.batch_tokens.max(sequences));
    if batch < sequences || batch > BATCH_TOKENS_MAX {
        let message = format!(
            "batch_tokens_max is {batch}, not a number from {sequences}, one for each sequence, to {BATCH_TOKENS_MAX}"
        );
        return Err(invalid("batch_tokens_max", message));
    }
    Ok((sequences, batch))
}

/// The context that was asked for, if one was.
///
/// # Errors
/// `UNSUPPORTED` with both numbers for one that the model was not made for.
pub(crate) fn context(config: &GptOssConfig, settings: &Settings) -> Result<Option<u32>, Status> {
    let longest = config.context_length_max;
    match settings.context_length {
        Some(asked) if !(1..=longest).contains(&asked) => {
            let message = format!("context_length is {asked}; this model was made for 1 to {longest}");
            Err(invalid("context_length", message).with_numbers(u64::from(asked), u64::from(longest)))
        }
        asked => Ok(asked),
    }
}

/// What running takes.
pub(crate) fn needs(config: &GptOssConfig, batch: u32, sequences: u32, kv: KvOptions) -> Needs {
    let needs = Needs::of(config, kv.format, batch, sequences);
    kv.tokens.map_or(needs, |tokens| needs.sharing(tokens))
}

impl Limits {
    /// What was asked for has to fit `granted` bytes; what was not asked for is made to fit: first the context gets
    /// shorter, then there are fewer sequences.
    ///
    /// # Errors
    /// `UNSUPPORTED` for settings that cannot be, `OOM_RAM` with both numbers for what does not fit.
    pub(crate) fn choose(
        config: &GptOssConfig,
        settings: &Settings,
        kv: KvOptions,
        fixed: Fixed,
        granted: u64,
    ) -> Result<Limits, Status> {
        let longest = config.context_length_max;
        let asked_context = context(config, settings)?;
        let (asked_sequences, batch) = sequences_and_batch(settings, ON_CPU)?;
        let fewest = settings.sequences_max.unwrap_or(1);
        let shortest = asked_context.unwrap_or(CONTEXT_MIN.min(longest));
        let wanted = asked_context.unwrap_or(CONTEXT_DEFAULT.min(longest));

        let limits = |sequences: u32, context: u32| {
            let needs = needs(config, batch, sequences, kv);
            Limits {
                context_length: context,
                sequences_max: sequences,
                batch_tokens_max: batch,
                kv_bytes: needs.kv(sequences, context),
                workspace: needs.workspace + fixed.tokenizer + fixed.copy,
            }
        };
        for sequences in (fewest..=asked_sequences).rev() {
            let least = limits(sequences, shortest).total();
            if least > granted {
                continue;
            }
            let per_token = limits(sequences, shortest + 1).total() - least;
            let room = (granted - least).checked_div(per_token).unwrap_or(u64::MAX);
            let context = u64::from(shortest).saturating_add(room).min(u64::from(wanted)) as u32;
            // A context that leaves no room for an answer is worse than fewer sequences.
            if context >= wanted.min(CONTEXT_DEFAULT / 4) || sequences == fewest {
                return Ok(limits(sequences, context));
            }
        }
        let needed = limits(fewest, shortest).total();
        let copy = match fixed.copy {
            0 => String::new(),
            bytes => format!(" ({bytes} of them for the copy of weights)"),
        };
        let message = format!(
            "{fewest} sequences of {shortest} tokens need {needed} bytes{copy} on cpu besides the mapped weights, \
             and {granted} are granted"
        );
        Err(Status::new(StatusCode::OomRam, reason::BUDGET_EXCEEDED, message).with_numbers(needed, granted))
    }

    /// Private bytes at most.
    pub(crate) fn total(&self) -> u64 {
        self.kv_bytes + self.workspace
    }
}

pub(crate) fn invalid(setting: &'static str, message: String) -> Status {
    Status::unsupported(reason::INVALID_SETTINGS, message).with_param(setting)
}

#[cfg(test)]
mod tests;
