//! The router's words in the worker's, and back.

use engine_protocol::{Constraint, LiteralRange};
use node_api::{Prompt, Sampling, Token, TokenBytes, TokenLogprob};

/// What a logarithm of a probability of zero becomes: JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

pub fn prompt(prompt: Prompt) -> engine_protocol::Prompt {
    match prompt {
        Prompt::Tokens(ids) => engine_protocol::Prompt::Tokens(ids),
        Prompt::Text { text, literal: ranges } => {
            engine_protocol::Prompt::Text { text, literal: literal(&ranges) }
        }
    }
}

pub fn literal(ranges: &[node_api::LiteralRange]) -> Vec<LiteralRange> {
    ranges.iter().map(|r| LiteralRange { start: r.start, end: r.end }).collect()
}

pub fn sampling(s: Sampling) -> engine_protocol::Sampling {
    engine_protocol::Sampling {
        temperature: s.temperature,
        top_p: s.top_p,
        top_k: s.top_k,
        min_p: s.min_p,
        seed: s.seed.unwrap_or_else(rand::random),
        presence_penalty: s.presence_penalty,
        frequency_penalty: s.frequency_penalty,
        repetition_penalty: s.repetition_penalty,
        logit_bias: s.logit_bias,
        tokens_max: s.tokens_max,
        tokens_min: s.tokens_min,
        stop: s.stop,
        stop_tokens: s.stop_tokens,
        ignore_end_tokens: s.ignore_end_tokens,
        logprobs: s.logprobs,
        begin_with: s.begin_with,
        constraint: s.constraint.map(|constraint| match constraint {
            node_api::Constraint::JsonSchema(text) => Constraint::JsonSchema(text),
            node_api::Constraint::Lark(text) => Constraint::Lark(text),
        }),
    }
}

pub fn token(token: engine_protocol::Token) -> Token {
    let logprob = |l: engine_protocol::TokenLogprob| TokenLogprob {
        id: l.id,
        logprob: if l.logprob.is_finite() { l.logprob } else { LOGPROB_MIN },
        bytes: TokenBytes::from(l.bytes),
    };
    Token {
        id: token.id,
        bytes: TokenBytes::from(token.bytes),
        control: token.control,
        logprobs: token.logprobs.into_iter().map(logprob).collect(),
    }
}
