//! What happens to a sequence, as it goes to the host.

use crate::{Piece, SequenceId, Status, TokenLogprob};

/// `STARTED` once, `TOKEN` for every generated token, then `FINISHED` or `FAILED` once. A sequence that ends before it
/// was admitted has no `STARTED`. Of a prompt that is embedded: `STARTED`, `EMBEDDING`, `FINISHED`.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<'a> {
    pub sequence: SequenceId,
    pub kind: EventKind<'a>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum EventKind<'a> {
    Started {
        prompt_tokens: u32,
        /// Of these, found in a cache.
        cached_tokens: u32,
    },
    Token {
        id: u32,
        piece: Piece<'a>,
        /// As [`crate::Choice::logprobs`], with the bytes of each token.
        logprobs: &'a [(TokenLogprob, Piece<'a>)],
    },
    /// Of length 1.
    Embedding(&'a [f32]),
    Finished {
        reason: FinishReason,
        completion_tokens: u32,
    },
    /// This sequence alone failed.
    Failed(&'a Status),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, a stop token or a stop string.
    Stop,
    /// `tokens_max` or the context's end.
    Length,
    Cancelled,
}
