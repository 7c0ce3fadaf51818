//! How the next token is chosen: the fields chat completions and completions have in common, and their ranges.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::InvalidRequest;
use crate::stop::Stop;

pub const TEMPERATURE_RANGE: RangeInclusive<f64> = 0.0..=2.0;
pub const PENALTY_RANGE: RangeInclusive<f64> = -2.0..=2.0;
pub const LOGIT_BIAS_RANGE: RangeInclusive<f64> = -100.0..=100.0;
/// Entries. The OpenAI API takes 300 as well.
pub const LOGIT_BIAS_MAX: usize = 300;
pub const REPETITION_PENALTY_MAX: f64 = 10.0;
pub const STOP_TOKENS_MAX: usize = 64;
/// Choices of one request.
pub const CHOICES_MAX: i64 = 16;
/// Larger contexts than this do not exist.
pub const TOKENS_MAX: i64 = 1 << 24;

/// Checked, in the meaning of the engines.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    pub temperature: f32,
    pub top_p: f32,
    /// 0: off.
    pub top_k: u32,
    pub min_p: f32,
    pub seed: Option<u64>,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    /// 0: up to the end of the context.
    pub tokens_max: u32,
    pub tokens_min: u32,
    pub stop: Vec<String>,
    pub stop_tokens: Vec<u32>,
    pub ignore_end_tokens: bool,
    /// `Some(n)`: of the chosen token and the n most likely.
    pub logprobs: Option<u32>,
}

/// The fields as they came.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub seed: Option<i64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Checked by the caller, who knows which field it came from.
    pub tokens_max: u32,
    pub min_tokens: Option<i64>,
    pub stop: Option<Stop>,
    pub stop_token_ids: Option<Vec<i64>>,
    pub ignore_eos: Option<bool>,
    pub logprobs: Option<u32>,
}

impl Fields {
    pub(crate) fn checked(self) -> Result<Sampling, InvalidRequest> {
        let top_p = number("top_p", self.top_p, 0.0..=1.0, 1.0)?;
        let top_k = match self.top_k {
            None | Some(-1) => 0,
            Some(k) => integer("top_k", k, 0..=i64::from(u32::MAX))?,
        };
        let repetition_penalty =
            number("repetition_penalty", self.repetition_penalty, 0.0..=REPETITION_PENALTY_MAX, 1.0)?;
        if repetition_penalty == 0.0 {
            return Err(InvalidRequest::value("repetition_penalty", "`repetition_penalty` must be above 0"));
        }
        let tokens_min = integer("min_tokens", self.min_tokens.unwrap_or(0), 0..=TOKENS_MAX)?;
        if self.tokens_max != 0 && tokens_min > self.tokens_max {
            let message = format!(
                "`min_tokens` is {tokens_min}, more than the {} tokens the answer may have",
                self.tokens_max
            );
            return Err(InvalidRequest::value("min_tokens", message));
        }
        Ok(Sampling {
            temperature: number("temperature", self.temperature, TEMPERATURE_RANGE, 1.0)?,
            // The smallest set with a probability of at least 0 is the best token alone.
            top_k: if top_p == 0.0 { 1 } else { top_k },
            top_p: if top_p == 0.0 { 1.0 } else { top_p },
            min_p: number("min_p", self.min_p, 0.0..=1.0, 0.0)?,
            // Any 64 bits are a seed; the sign has no meaning.
            seed: self.seed.map(i64::cast_unsigned),
            presence_penalty: number("presence_penalty", self.presence_penalty, PENALTY_RANGE, 0.0)?,
            frequency_penalty: number("frequency_penalty", self.frequency_penalty, PENALTY_RANGE, 0.0)?,
            repetition_penalty,
            logit_bias: logit_bias(self.logit_bias.unwrap_or_default())?,
            tokens_max: self.tokens_max,
            tokens_min,
            stop: Stop::strings(self.stop)?,
            stop_tokens: stop_tokens(self.stop_token_ids.unwrap_or_default())?,
            ignore_end_tokens: self.ignore_eos.unwrap_or(false),
            logprobs: self.logprobs,
        })
    }
}

/// A number in its range, or the default.
fn number(
    name: &str,
    value: Option<f64>,
    range: RangeInclusive<f64>,
    default: f32,
) -> Result<f32, InvalidRequest> {
    let Some(value) = value else { return Ok(default) };
    if !range.contains(&value) {
        let message =
            format!("`{name}` is {value}, it must be between {} and {}", range.start(), range.end());
        return Err(InvalidRequest::value(name, message));
    }
    Ok(value as f32)
}

/// An integer in its range, which lies within `u32`.
pub(crate) fn integer(name: &str, value: i64, range: RangeInclusive<i64>) -> Result<u32, InvalidRequest> {
    match u32::try_from(value) {
        Ok(fits) if range.contains(&value) => Ok(fits),
        _ => {
            let message =
                format!("`{name}` is {value}, it must be between {} and {}", range.start(), range.end());
            Err(InvalidRequest::value(name, message))
        }
    }
}

fn logit_bias(map: BTreeMap<String, f64>) -> Result<Vec<(u32, f32)>, InvalidRequest> {
    if map.len() > LOGIT_BIAS_MAX {
        let message = format!("`logit_bias` has {} entries, {LOGIT_BIAS_MAX} at most", map.len());
        return Err(InvalidRequest::value("logit_bias", message));
    }
    map.into_iter()
        .map(|(token, bias)| {
            let id = token.parse::<u32>().map_err(|_| {
                InvalidRequest::value(
                    "logit_bias",
                    format!("`logit_bias` has the key `{token}`, which is not a token id"),
                )
            })?;
            Ok((id, number(&format!("logit_bias.{token}"), Some(bias), LOGIT_BIAS_RANGE, 0.0)?))
        })
        .collect()
}

fn stop_tokens(ids: Vec<i64>) -> Result<Vec<u32>, InvalidRequest> {
    if ids.len() > STOP_TOKENS_MAX {
        let message = format!("`stop_token_ids` has {} ids, {STOP_TOKENS_MAX} at most", ids.len());
        return Err(InvalidRequest::value("stop_token_ids", message));
    }
    let check = |(at, id)| integer(&format!("stop_token_ids[{at}]"), id, 0..=i64::from(u32::MAX));
    ids.into_iter().enumerate().map(check).collect()
}
