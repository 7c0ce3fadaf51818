//! Log probabilities from the node's form into the API's.

use node_api::Token;
use openai_api::logprobs::{TokenLogprob, TopLogprob};

/// Of a token that was asked for with log probabilities; `None` when the engine gave none.
pub fn chat_entry(token: &Token) -> Option<TokenLogprob> {
    let (chosen, best) = token.logprobs.split_first()?;
    let bytes = chosen.bytes.to_vec();
    let top = |t: &node_api::TokenLogprob| {
        let bytes = t.bytes.to_vec();
        TopLogprob { token: spelling(&bytes), logprob: finite(t.logprob), bytes: Some(bytes) }
    };
    Some(TokenLogprob {
        token: spelling(&bytes),
        logprob: finite(chosen.logprob),
        bytes: Some(bytes),
        top_logprobs: best.iter().map(top).collect(),
    })
}

pub fn spelling(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The least logarithm the API gives, as the OpenAI API does: JSON has no minus infinity.
const LOGPROB_MIN: f32 = -9999.0;

pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob.max(LOGPROB_MIN) } else { LOGPROB_MIN }
}
