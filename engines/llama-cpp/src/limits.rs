//! How long a context and how many sequences fit the memory that is granted.

use engine_sdk::{Device, DeviceBytes, Settings, Status, StatusCode, reason};

use crate::CPU;
use crate::header::Header;
use crate::needs::Needs;
use crate::options::Options;

/// Sequences at once, when nobody asks for a number.
const SEQUENCES_DEFAULT: u32 = 4;
/// As many as llama.cpp can tell apart.
pub(crate) const SEQUENCES_MAX: u32 = 256;
/// Tokens of one step, when nobody asks for a number.
const BATCH_TOKENS_DEFAULT: u32 = 512;
const BATCH_TOKENS_MAX: u32 = 8_192;
/// Context when nobody asks for one and memory does not say less.
const CONTEXT_DEFAULT: u32 = 8_192;
/// Shorter contexts are of no use to anybody.
const CONTEXT_MIN: u32 = 16;
/// llama.cpp rounds the number of cells up to a multiple of this.
const CELLS_STEP: u32 = 256;

/// What a loaded model promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) context_length: u32,
    pub(crate) sequences_max: u32,
    pub(crate) batch_tokens_max: u32,
    /// KV of all sequences, on all devices together.
    pub(crate) kv_bytes: u64,
    /// Private bytes on each device, KV included.
    pub(crate) totals: Vec<DeviceBytes>,
}

/// # Errors
/// `UNSUPPORTED` for numbers that cannot be.
fn sequences_and_batch(settings: &Settings) -> Result<(u32, u32), Status> {
    let sequences = settings.sequences_max.unwrap_or(SEQUENCES_DEFAULT);
    if !(1..=SEQUENCES_MAX).contains(&sequences) {
        let message = format!("sequences_max is {sequences}, not a number from 1 to {SEQUENCES_MAX}");
        return Err(invalid("sequences_max", message));
    }
    let batch = settings.batch_tokens_max.unwrap_or(BATCH_TOKENS_DEFAULT.max(sequences));
    if batch < sequences || batch > BATCH_TOKENS_MAX {
        let message = format!(
            "batch_tokens_max is {batch}, not a number from {sequences}, one for each sequence, to {BATCH_TOKENS_MAX}"
        );
        return Err(invalid("batch_tokens_max", message));
    }
    Ok((sequences, batch))
}

/// The longest context, in tokens: what is read whole has to fit one pass.
pub(crate) fn longest(header: &Header) -> u32 {
    if header.reads_whole() { header.context_length.min(BATCH_TOKENS_MAX) } else { header.context_length }
}

/// Tokens of one step, of which a prompt that is read whole takes as many as the context has.
fn batch_tokens(header: &Header, batch: u32, context: u32) -> u32 {
    if header.reads_whole() { batch.max(context) } else { batch }
}

/// What the model needs, of whoever chooses the settings that are not there: by `kv_per_token` of any context up to the
/// longest, and of as many sequences as were asked for; of fewer in a context of [`CONTEXT_DEFAULT`] tokens at most.
///
/// # Errors
/// As [`sequences_and_batch`].
pub(crate) fn estimate(
    header: &Header,
    settings: &Settings,
    options: &Options,
    devices: &[Device],
) -> Result<Needs, Status> {
    let (sequences, batch) = sequences_and_batch(settings)?;
    let context = settings.context_length.unwrap_or(CONTEXT_DEFAULT).min(longest(header));
    let asked = (sequences, context, batch_tokens(header, batch, context));
    let mut needs = Needs::of(header, options, asked, devices);
    if settings.context_length.is_none() {
        needs.let_context_grow(header, options, asked);
    }
    Ok(needs)
}

impl Limits {
    /// What was asked for has to fit what is granted; what was not asked for is made to fit: first the context gets
    /// shorter, then there are fewer sequences.
    ///
    /// # Errors
    /// `UNSUPPORTED` for settings that cannot be, `OOM_RAM` or `OOM_VRAM` with both numbers for what does not fit.
    pub(crate) fn choose(
        header: &Header,
        settings: &Settings,
        options: &Options,
        devices: &[Device],
        granted: &[DeviceBytes],
    ) -> Result<Limits, Status> {
        let longest = longest(header);
        if let Some(asked) = settings.context_length
            && !(2..=longest).contains(&asked)
        {
            let message = format!("context_length is {asked}; this model was made for 2 to {longest}");
            return Err(invalid("context_length", message).with_numbers(u64::from(asked), u64::from(longest)));
        }
        let (asked_sequences, batch) = sequences_and_batch(settings)?;
        let fewest = settings.sequences_max.unwrap_or(1);
        let shortest = settings.context_length.unwrap_or(CONTEXT_MIN.min(longest));
        let wanted = settings.context_length.unwrap_or(CONTEXT_DEFAULT.min(longest));
        let limits = |sequences: u32, context: u32| {
            Limits::of(header, options, devices, (sequences, context, batch_tokens(header, batch, context)))
        };
        let fits = |limits: &Limits| limits.short_of(granted).is_none();
        for sequences in (fewest..=asked_sequences).rev() {
            if !fits(&limits(sequences, shortest)) {
                continue;
            }
            // The longest context between the shortest, which fits, and the one that is wanted.
            let (mut low, mut high) = (shortest, wanted);
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(&limits(sequences, middle)) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            // A context that leaves no room for an answer is worse than fewer sequences.
            if low >= wanted.min(CONTEXT_DEFAULT / 4) || sequences == fewest {
                return Ok(limits(sequences, low));
            }
        }
        let least = limits(fewest, shortest);
        let (device, needed, available) = least.short_of(granted).expect("it did not fit");
        let code = if device == CPU { StatusCode::OomRam } else { StatusCode::OomVram };
        let message = format!(
            "{fewest} sequences of {shortest} tokens need {needed} bytes on {device} besides the mapped weights, and \
             {available} are granted"
        );
        Err(Status::new(code, reason::BUDGET_EXCEEDED, message).with_numbers(needed, available))
    }

    fn of(
        header: &Header,
        options: &Options,
        devices: &[Device],
        (sequences, context, batch): (u32, u32, u32),
    ) -> Limits {
        let needs = Needs::of(header, options, (sequences, context, batch), devices);
        let mut kv_bytes = 0;
        let totals = needs.devices.into_iter().map(|need| {
            let each = need.kv_fixed + need.kv_per_token * u64::from(context);
            let kv = each.saturating_mul(u64::from(sequences));
            kv_bytes += kv;
            let rest = need.weights + need.workspace + u64::from(sequences) * need.per_sequence;
            DeviceBytes { device: need.device, bytes: rest.saturating_add(kv) }
        });
        let totals = totals.collect();
        Limits {
            context_length: context,
            sequences_max: sequences,
            batch_tokens_max: batch,
            totals,
            kv_bytes,
        }
    }

    /// The first device that does not hold it, with bytes needed and granted.
    fn short_of(&self, granted: &[DeviceBytes]) -> Option<(String, u64, u64)> {
        self.totals.iter().find_map(|total| {
            let granted = granted.iter().find(|granted| granted.device == total.device)?.bytes;
            (total.bytes > granted).then(|| (total.device.clone(), total.bytes, granted))
        })
    }

    /// Places for keys and values over all sequences.
    pub(crate) fn cells(&self) -> u32 {
        let each = self.context_length.next_multiple_of(CELLS_STEP);
        each.saturating_mul(self.sequences_max)
    }
}

fn invalid(setting: &'static str, message: String) -> Status {
    Status::unsupported(reason::INVALID_SETTINGS, message).with_param(setting)
}

#[cfg(test)]
mod tests;
