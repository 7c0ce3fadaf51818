//! Turns the tokens of a reply into what the API shows of it: content, reasoning, tool calls.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::template::{HARMONY_ARCHITECTURES, Rendered};

mod harmony;
mod plain;
mod utf8;

use harmony::Harmony;
use plain::Plain;

/// A piece of the reply. Pieces of one kind, put together in order, are the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    pub kind: DeltaKind,
    /// The tokens whose text starts in this piece, counted from 0 in the order they were pushed. Tokens that belong to no
    /// text (control tokens, headers) are in no piece.
    pub tokens: Range<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeltaKind {
    Content(String),
    Reasoning(String),
    /// `index` counts the calls of the reply from 0.
    ToolCallStart {
        index: usize,
        id: String,
        name: String,
    },
    ToolCallArguments {
        index: usize,
        arguments: String,
    },
}

/// How a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// At an end token or a stop string.
    Stop,
    /// At the limit of tokens or the end of the context.
    Length,
    /// With calls that wait for results.
    ToolCalls,
}

impl Finish {
    /// As `finish_reason` of the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// A whole reply, put together from its pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    pub content: Option<String>,
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON, if the model wrote JSON.
    pub arguments: String,
}

impl Reply {
    pub fn add(&mut self, delta: &Delta) {
        match &delta.kind {
            DeltaKind::Content(text) => self.content.get_or_insert_default().push_str(text),
            DeltaKind::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(text),
            DeltaKind::ToolCallStart { id, name, .. } => self.tool_calls.push(ToolCall {
                id: id.clone(),
                name: name.clone(),
                arguments: String::new(),
            }),
            DeltaKind::ToolCallArguments { index, arguments } => {
                if let Some(call) = self.tool_calls.get_mut(*index) {
                    call.arguments.push_str(arguments);
                }
            }
        }
    }
}

/// Makes the id of a tool call.
pub type CallIds = Box<dyn FnMut() -> String + Send>;

/// Parses one reply. Never fails: what cannot be understood is content.
pub struct ReplyParser {
    grammar: Grammar,
    /// Tokens pushed so far.
    tokens: u64,
}

enum Grammar {
    Harmony(Harmony),
    Plain(Plain),
}

impl ReplyParser {
    /// For the reply to `prompt`, which may already hold the beginning of it (see [`crate::force_tool_call`]).
    /// `architecture` is `model_type` of `config.json`; `tools` are the names offered.
    pub fn new(architecture: &str, prompt: &Rendered, tools: Vec<String>, ids: CallIds) -> ReplyParser {
        let grammar = if HARMONY_ARCHITECTURES.contains(&architecture) {
            Grammar::Harmony(Harmony::new(prompt, tools, ids))
        } else {
            Grammar::Plain(Plain::default())
        };
        ReplyParser { grammar, tokens: 0 }
    }

    /// The next token: its bytes, and whether it is a control token (its bytes are then its spelling).
    pub fn push(&mut self, bytes: &[u8], is_control: bool) -> Vec<Delta> {
        let token = self.tokens;
        self.tokens += 1;
        match &mut self.grammar {
            Grammar::Harmony(harmony) => harmony.push(token, bytes, is_control),
            Grammar::Plain(plain) => plain.push(token, bytes, is_control),
        }
    }

    /// The end, and how it looks to the client. `ended_by` is [`Finish::Stop`] or [`Finish::Length`], as the engine says.
    pub fn finish(&mut self, ended_by: Finish) -> (Vec<Delta>, Finish) {
        match &mut self.grammar {
            Grammar::Harmony(harmony) => harmony.finish(ended_by),
            Grammar::Plain(plain) => (plain.finish(), ended_by),
        }
    }
}

#[cfg(test)]
mod tests;
