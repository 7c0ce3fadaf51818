//! Tokens of one reply into its pieces: parsed, cut at stop strings, with the log probabilities of its content.

use std::collections::VecDeque;
use std::ops::Range;

use chat::{Delta, DeltaKind, Finish, Rendered, ReplyParser, StopScanner};
use node_api::Token;
use openai_api::chat::FinishReason;
use openai_api::logprobs::TokenLogprob;

use crate::v1::logprobs::chat_entry;
use crate::v1::sequence::Assemble;

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    Content { text: String, logprobs: Vec<TokenLogprob> },
    Reasoning(String),
    CallStart { index: u32, id: String, name: String },
    CallArguments { index: u32, arguments: String },
}

pub struct Reply {
    parser: ReplyParser,
    stop: StopScanner,
    /// (number, entry) of tokens whose text is not out yet.
    logprobs: VecDeque<(u64, TokenLogprob)>,
    tokens: u64,
    reasoning_tokens: u64,
    has_call: bool,
    parallel_calls: bool,
}

impl Reply {
    pub fn new(
        architecture: &str,
        prompt: &Rendered,
        tools: Vec<String>,
        stop: Vec<String>,
        parallel_calls: bool,
    ) -> Reply {
        let ids = Box::new(|| format!("call_{}", uuid::Uuid::new_v4().simple()));
        Reply {
            parser: ReplyParser::new(architecture, prompt, tools, ids),
            stop: StopScanner::new(stop),
            logprobs: VecDeque::new(),
            tokens: 0,
            reasoning_tokens: 0,
            has_call: false,
            parallel_calls,
        }
    }

    fn pieces(&mut self, deltas: Vec<Delta>) -> (Vec<Piece>, Option<FinishReason>) {
        let mut pieces = Vec::new();
        for delta in deltas {
            match delta.kind {
                DeltaKind::Content(text) => {
                    let scanned = self.stop.push(&text, delta.tokens);
                    self.content(scanned.text, scanned.tokens, &mut pieces);
                    if scanned.is_stopped {
                        let finish = if self.has_call { FinishReason::ToolCalls } else { FinishReason::Stop };
                        return (pieces, Some(finish));
                    }
                }
                DeltaKind::Reasoning(text) => {
                    self.reasoning_tokens += delta.tokens.end - delta.tokens.start;
                    pieces.push(Piece::Reasoning(text));
                }
                DeltaKind::ToolCallStart { index, .. } if index > 0 && !self.parallel_calls => {
                    return (pieces, Some(FinishReason::ToolCalls));
                }
                DeltaKind::ToolCallStart { index, id, name } => {
                    self.has_call = true;
                    pieces.push(Piece::CallStart { index: number(index), id, name });
                }
                DeltaKind::ToolCallArguments { index, arguments } => {
                    pieces.push(Piece::CallArguments { index: number(index), arguments });
                }
            }
        }
        (pieces, None)
    }

    fn content(&mut self, text: String, tokens: Range<u64>, pieces: &mut Vec<Piece>) {
        let mut logprobs = Vec::new();
        while let Some((number, _)) = self.logprobs.front()
            && *number < tokens.end
        {
            let (number, entry) = self.logprobs.pop_front().expect("it was just looked at");
            // Tokens before the range had no text: control tokens and headers.
            if tokens.contains(&number) {
                logprobs.push(entry);
            }
        }
        if !text.is_empty() || !logprobs.is_empty() {
            pieces.push(Piece::Content { text, logprobs });
        }
    }
}

impl Assemble for Reply {
    type Piece = Piece;
    type Finish = FinishReason;

    fn push(&mut self, token: &Token) -> (Vec<Piece>, Option<FinishReason>) {
        if let Some(entry) = chat_entry(token) {
            self.logprobs.push_back((self.tokens, entry));
        }
        self.tokens += 1;
        let deltas = self.parser.push(&token.bytes.to_vec(), token.control);
        self.pieces(deltas)
    }

    fn finish(&mut self, length: bool) -> (Vec<Piece>, FinishReason) {
        let (deltas, finish) = self.parser.finish(if length { Finish::Length } else { Finish::Stop });
        let (mut pieces, stopped) = self.pieces(deltas);
        let held = self.stop.finish();
        self.content(held.text, held.tokens, &mut pieces);
        let finish = match finish {
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::ToolCalls => FinishReason::ToolCalls,
        };
        (pieces, stopped.unwrap_or(finish))
    }

    fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens.try_into().unwrap_or(u32::MAX)
    }
}

/// Calls of one reply are few: each takes several tokens.
fn number(index: usize) -> u32 {
    index.try_into().unwrap_or(u32::MAX)
}
