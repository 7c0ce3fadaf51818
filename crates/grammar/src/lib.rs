//! Holds an answer to a grammar: which tokens may come next, so that the answer fits a JSON Schema or a grammar.
//!
//! The work is done by the crate `llguidance`; here are the limits, the words of refusals, and what the rest of the tree
//! needs of it. Engines have a [`Vocabulary`] and follow an answer with [`Constrained`]; the router only asks [`check`],
//! which needs no tokens.
//!
//! **Invariant:** whatever text comes in, a limit, an error or a result comes out: no panic, and no time without an end.

#![forbid(unsafe_code)]

mod schema;
mod vocabulary;

pub use schema::{check, prepared};
pub use vocabulary::{Constrained, TokenSet, Vocabulary};

/// Bytes of a schema. OpenAI's API takes 15,000 characters of names and values and as many again of syntax.
pub const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// Bytes of a grammar, the schemas in it included.
pub const GRAMMAR_BYTES_MAX: usize = 512 << 10;
/// White space between two parts of a JSON text. Without an end a model can fill its answer with nothing else.
pub const SPACE_CHARS_MAX: usize = 32;

/// What an answer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A JSON text that fits a JSON Schema.
    JsonSchema,
    /// A text that fits a grammar in `llguidance`'s form of Lark, in which `<|name|>` is a control token and `%json {…}` a
    /// JSON text that fits a schema.
    Lark,
}

/// Why a grammar is not taken, or cannot be followed further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(String);

impl GrammarError {
    /// Of what the library says the first line: what follows is the state of its parser.
    fn of(error: &impl std::fmt::Display) -> GrammarError {
        let words = error.to_string();
        let first = words.lines().next().unwrap_or_default();
        let first = if first.starts_with("panic") { "it is beyond what can be compiled" } else { first };
        GrammarError(first.chars().take(MESSAGE_CHARS_MAX).collect())
    }
}

/// Characters of an error.
const MESSAGE_CHARS_MAX: usize = 400;

/// What following a grammar may cost. Fuel is the library's measure of work.
fn limits() -> llguidance::api::ParserLimits {
    llguidance::api::ParserLimits {
        // 20 ms of work.
        initial_lexer_fuel: 1_000_000,
        // 14 ms of work for one token.
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        // Some 50 MB at the most for one answer, where the library's own value allows ten times that.
        max_lexer_states: 25_000,
        max_grammar_size: 200_000,
        // It makes the first token wait for what most answers never need.
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}
