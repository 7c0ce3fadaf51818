//! What a completion request asks for, once everything it says has been checked.

use super::request::{CompletionRequest, PromptInput};
use crate::InvalidRequest;
use crate::sampling::{CHOICES_MAX, Fields, Sampling, TOKENS_MAX, integer};
use crate::stream_options::Delivery;

/// As in the OpenAI API.
pub const TOKENS_DEFAULT: i64 = 16;
/// Prompts of one request; each has `n` choices.
pub const PROMPTS_MAX: usize = 16;
pub const LOGPROBS_MAX: i64 = 5;

/// A completion request whose every field is in range.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionParameters {
    pub model: String,
    /// Not empty, and none of them is.
    pub prompts: Vec<PromptText>,
    pub echo: bool,
    /// For each prompt.
    pub choices: u32,
    pub delivery: Delivery,
    pub sampling: Sampling,
    /// For the log.
    pub user: Option<String>,
}

/// One prompt. Spellings of control tokens in a text are control tokens: there is no template that could add them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptText {
    Text(String),
    Tokens(Vec<u32>),
}

impl CompletionRequest {
    /// Checks every field; the first that is wrong is named.
    pub fn checked(self) -> Result<CompletionParameters, InvalidRequest> {
        if self.model.is_empty() {
            return Err(InvalidRequest::value("model", "`model` is empty"));
        }
        let prompts = texts("prompt", self.prompt, PROMPTS_MAX)?;
        let choices = integer("n", self.n.unwrap_or(1), 1..=CHOICES_MAX)?;
        if let Some(best_of) = self.best_of
            && best_of != i64::from(choices)
        {
            let message = format!(
                "`best_of` is {best_of} and `n` is {choices}; they must be equal, answers are not ranked"
            );
            return Err(InvalidRequest::unsupported("best_of", message));
        }
        if self.suffix.is_some_and(|s| !s.is_empty()) {
            let message = "`suffix` is not supported: text is not inserted";
            return Err(InvalidRequest::unsupported("suffix", message));
        }
        let logprobs = self.logprobs.map(|n| integer("logprobs", n, 0..=LOGPROBS_MAX)).transpose()?;
        let echo = self.echo.unwrap_or(false);
        if echo && logprobs.is_some() {
            let message =
                "`echo` with `logprobs` is not supported: the prompt's log probabilities are not computed";
            return Err(InvalidRequest::unsupported("echo", message));
        }
        if echo && prompts.iter().any(|p| matches!(p, PromptText::Tokens(_))) {
            let message = "`echo` is not supported for prompts of token ids";
            return Err(InvalidRequest::unsupported("echo", message));
        }
        let sampling = Fields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            logit_bias: self.logit_bias,
            tokens_max: integer("max_tokens", self.max_tokens.unwrap_or(TOKENS_DEFAULT), 1..=TOKENS_MAX)?,
            min_tokens: self.min_tokens,
            stop: self.stop,
            stop_token_ids: self.stop_token_ids,
            ignore_eos: self.ignore_eos,
            logprobs,
        }
        .checked()?;
        let delivery = Delivery::checked(self.stream, self.stream_options)?;
        Ok(CompletionParameters {
            model: self.model,
            prompts,
            echo,
            choices,
            delivery,
            sampling,
            user: self.user,
        })
    }
}

/// One or several, up to `most`, none of them empty.
pub(crate) fn texts(field: &str, input: PromptInput, most: usize) -> Result<Vec<PromptText>, InvalidRequest> {
    let prompts: Vec<PromptText> = match input {
        PromptInput::Text(text) => vec![PromptText::Text(text)],
        PromptInput::Texts(texts) => texts.into_iter().map(PromptText::Text).collect(),
        PromptInput::Tokens(ids) => vec![PromptText::Tokens(ids)],
        PromptInput::TokenLists(lists) => lists.into_iter().map(PromptText::Tokens).collect(),
    };
    if prompts.len() > most {
        let message = format!("`{field}` has {} entries, {most} at most", prompts.len());
        return Err(InvalidRequest::value(field, message));
    }
    let empty = |p: &PromptText| match p {
        PromptText::Text(text) => text.is_empty(),
        PromptText::Tokens(ids) => ids.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(empty) {
        return Err(InvalidRequest::value(field, format!("`{field}` is empty")));
    }
    Ok(prompts)
}
