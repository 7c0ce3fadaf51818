//! How the tokens of one sequence are to be chosen, and the checks of that.

use crate::{Constraint, Status, reason};

/// As many alternatives as the header allows with each token.
pub const LOGPROBS_MAX: u32 = engine_abi::LOGPROBS_MAX.unsigned_abs();
/// Stop strings of a sequence; OpenAI's API has 4.
pub const STOP_MAX: usize = 16;
/// Bytes of one stop string.
pub const STOP_BYTES_MAX: usize = 4096;
/// Stop tokens of a sequence besides the model's own.
pub const STOP_TOKENS_MAX: usize = 128;
/// Texts that an answer may begin with: as many as OpenAI's API takes tools.
pub const BEGIN_WITH_MAX: usize = 128;
/// Bytes of one of them.
pub const BEGIN_WITH_BYTES_MAX: usize = 256;

/// `llmr_sampling`, with the header's meanings. [`Sampling::default`] has everything off and temperature 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub top_k: u32,
    /// 0: off.
    pub min_p: f32,
    pub seed: u64,
    /// 0: off.
    pub presence_penalty: f32,
    /// 0: off.
    pub frequency_penalty: f32,
    /// 1: off.
    pub repetition_penalty: f32,
    /// (token, added to its logit before everything else).
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens of the answer at most; 0: up to the context's end.
    pub tokens_max: u32,
    /// End tokens and stop tokens are not chosen before this many tokens.
    pub tokens_min: u32,
    pub stop: Vec<Vec<u8>>,
    pub stop_tokens: Vec<u32>,
    /// The model's own end tokens are tokens like any other.
    pub ignore_end_tokens: bool,
    /// None: no logprobs; `Some(n)`: of the chosen token and of the n most likely.
    pub logprobs: Option<u32>,
    /// The answer begins with one of these; none: with anything. Spellings of control tokens stand for the tokens.
    pub begin_with: Vec<String>,
    /// None: the answer may be anything.
    pub constraint: Option<Constraint>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            tokens_max: 0,
            tokens_min: 0,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end_tokens: false,
            logprobs: None,
            begin_with: Vec::new(),
            constraint: None,
        }
    }
}

impl Sampling {
    /// Checks every value against the ranges of the header, and token ids against the vocabulary.
    ///
    /// # Errors
    /// `UNSUPPORTED` `invalid_sampling`, naming the field, its value and its range.
    pub fn check(&self, vocabulary_size: u32) -> Result<(), Status> {
        // Written so that a NaN is outside every range.
        let within = |field: &'static str, value: f32, sound: bool, range: &str| {
            if sound {
                Ok(())
            } else {
                Err(invalid(field, format!("{field} is {value}; it must be {range}")))
            }
        };
        let penalty = |p: f32| (-2.0..=2.0).contains(&p);
        within("temperature", self.temperature, (0.0..=2.0).contains(&self.temperature), "0 to 2")?;
        within("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "over 0, to 1")?;
        within("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1")?;
        within("presence_penalty", self.presence_penalty, penalty(self.presence_penalty), "-2 to 2")?;
        within("frequency_penalty", self.frequency_penalty, penalty(self.frequency_penalty), "-2 to 2")?;
        let repetition = self.repetition_penalty;
        within("repetition_penalty", repetition, repetition > 0.0 && repetition.is_finite(), "over 0")?;
        if let Some(n) = self.logprobs.filter(|&n| n > LOGPROBS_MAX) {
            return Err(invalid("logprobs", format!("logprobs is {n}; it must be 0 to {LOGPROBS_MAX}")));
        }
        for &(id, bias) in &self.logit_bias {
            known("logit_bias", id, vocabulary_size)?;
            if !(-100.0..=100.0).contains(&bias) {
                let message = format!("logit_bias of token {id} is {bias}; it must be -100 to 100");
                return Err(invalid("logit_bias", message));
            }
        }
        for &id in &self.stop_tokens {
            known("stop_tokens", id, vocabulary_size)?;
        }
        if self.stop_tokens.len() > STOP_TOKENS_MAX {
            let count = self.stop_tokens.len();
            return Err(invalid(
                "stop_tokens",
                format!("stop_tokens has {count} tokens; it may have {STOP_TOKENS_MAX}"),
            ));
        }
        if self.stop.len() > STOP_MAX {
            return Err(invalid(
                "stop",
                format!("stop has {} strings; it may have {STOP_MAX}", self.stop.len()),
            ));
        }
        if let Some(stop) = self.stop.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
            let bytes = stop.len();
            return Err(invalid(
                "stop",
                format!("a string of stop has {bytes} bytes; it must have 1 to {STOP_BYTES_MAX}"),
            ));
        }
        if self.begin_with.len() > BEGIN_WITH_MAX {
            let count = self.begin_with.len();
            return Err(invalid(
                "begin_with",
                format!("begin_with has {count} texts; it may have {BEGIN_WITH_MAX}"),
            ));
        }
        if let Some(text) = self.begin_with.iter().find(|t| t.is_empty() || t.len() > BEGIN_WITH_BYTES_MAX) {
            let bytes = text.len();
            return Err(invalid(
                "begin_with",
                format!("a text of begin_with has {bytes} bytes; it must have 1 to {BEGIN_WITH_BYTES_MAX}"),
            ));
        }
        // Each of these and a constraint have their own word on where an answer may end, or on how it begins.
        let beside = [
            ("tokens_min", self.tokens_min > 0),
            ("flags", self.ignore_end_tokens),
            ("begin_with", !self.begin_with.is_empty()),
        ];
        match beside.into_iter().find(|(_, is_set)| *is_set && self.constraint.is_some()) {
            Some((field, _)) => {
                Err(invalid(field, format!("{field} cannot be used together with a constraint")))
            }
            None => Ok(()),
        }
    }
}

fn known(field: &'static str, id: u32, vocabulary_size: u32) -> Result<(), Status> {
    if id < vocabulary_size {
        return Ok(());
    }
    Err(invalid(field, format!("{field} names token {id}; the model has the tokens below {vocabulary_size}")))
}

fn invalid(field: &'static str, message: String) -> Status {
    Status::unsupported(reason::INVALID_SAMPLING, message).with_param(field)
}
