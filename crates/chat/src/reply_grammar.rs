//! What a whole reply has to be where its content, or the arguments of its calls, are held to a schema.
//!
//! A model whose replies are plain text is held to the schema from its first token. A harmony reply is held to its form as
//! well: thoughts and preambles as long as the model likes, then one message to the user or one call, whose body is what the
//! schema is about. A reply that never left the form could not come out of the parser as anything else either.

use std::fmt::Write as _;

use crate::template::{HARMONY_ARCHITECTURES, Rendered};
use crate::tool_choice::ForcedCall;

/// A function that may be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallShape<'a> {
    /// Letters, digits, `_` and `-`.
    pub name: &'a str,
    /// JSON Schema of the arguments; none: any text.
    pub arguments: Option<String>,
}

/// What is asked of a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyShape<'a> {
    /// JSON Schema of the content; none: any text.
    pub content: Option<String>,
    pub calls: Vec<CallShape<'a>>,
    /// What [`crate::force_tool_call`] was told.
    pub forced: Option<ForcedCall<'a>>,
}

/// What a reply is held to from its first token on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyGrammar {
    /// It is a JSON text that fits this schema.
    JsonSchema(String),
    /// It fits this grammar, in which `<|name|>` is a control token.
    Lark(String),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the replies of architecture {architecture} cannot be held to {what}")]
pub struct ReplyGrammarUnsupported {
    pub architecture: String,
    pub what: &'static str,
}

const TEXT: &str = "text: /(?s:.)+/\n";
/// What the model may say of the type of the arguments.
const TYPE: &str = "type: \" json\" | \" \"? <|constrain|> \"json\"\n";

/// The grammar of a reply that goes on behind `prompt`; none: nothing of the shape is held to anything. `prompt` is as
/// [`crate::force_tool_call`] left it.
///
/// # Errors
/// Calls are held to a schema and the reply's form has none, or the template leaves a harmony reply somewhere else than at
/// its beginning.
pub fn reply_grammar(
    architecture: &str,
    prompt: &Rendered,
    shape: &ReplyShape<'_>,
) -> Result<Option<ReplyGrammar>, ReplyGrammarUnsupported> {
    let refused = |what| ReplyGrammarUnsupported { architecture: architecture.to_owned(), what };
    let holds_calls = shape.calls.iter().any(|call| call.arguments.is_some());
    if !HARMONY_ARCHITECTURES.contains(&architecture) {
        if holds_calls {
            return Err(refused("the schema of a tool"));
        }
        return Ok(shape.content.clone().map(ReplyGrammar::JsonSchema));
    }
    match shape.forced {
        // The prompt has the header of the call.
        Some(ForcedCall::Named(name)) => {
            let call = shape.calls.iter().find(|call| call.name == name);
            Ok(call.and_then(|call| call.arguments.clone()).map(ReplyGrammar::JsonSchema))
        }
        Some(ForcedCall::AnyOf(_)) if !holds_calls => Ok(None),
        Some(ForcedCall::AnyOf(_)) => {
            let mut rules = Rules::new("start: call\n");
            rules.calls(&shape.calls, |name| {
                format!("\"{name}\" <|channel|> \"commentary json\" <|message|>")
            });
            Ok(Some(rules.finish()))
        }
        None if shape.content.is_none() && !holds_calls => Ok(None),
        None if !prompt.text.ends_with("<|start|>assistant") => {
            Err(refused("a schema with this chat template"))
        }
        None => Ok(Some(free_reply(shape))),
    }
}

/// Thoughts, then content or a call.
fn free_reply(shape: &ReplyShape<'_>) -> ReplyGrammar {
    let mut rules = Rules::new("start: thought* last\n");
    let again = "<|message|> text? <|end|> <|start|> \"assistant\"";
    rules.line(&format!("thought: <|channel|> \"analysis\" {again}"));
    if shape.calls.is_empty() {
        rules.line("last: content");
    } else {
        rules.line(&format!("    | <|channel|> \"commentary\" {again}"));
        rules.line("last: content | call");
        rules.calls(&shape.calls, |name| {
            let to = format!("to=functions.{name}\"");
            format!("(\" {to} <|channel|> \"commentary\" | <|channel|> \"commentary {to}) type? <|message|>")
        });
        rules.text.push_str(TYPE);
    }
    rules.line(&format!("content: <|channel|> \"final\" <|message|> {}", body(shape.content.as_deref())));
    rules.finish()
}

/// The body of a message.
fn body(schema: Option<&str>) -> String {
    schema.map_or_else(|| "text?".to_owned(), |schema| format!("%json {schema}"))
}

struct Rules {
    text: String,
}

impl Rules {
    fn new(start: &str) -> Rules {
        Rules { text: start.to_owned() }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// `call`: one of them, each behind its header.
    fn calls(&mut self, calls: &[CallShape<'_>], header: impl Fn(&str) -> String) {
        let names: Vec<String> = (0..calls.len()).map(|at| format!("call_{at}")).collect();
        self.line(&format!("call: {}", names.join(" | ")));
        for (rule, call) in names.iter().zip(calls) {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "{rule}: {} {}", header(call.name), body(call.arguments.as_deref()));
        }
    }

    fn finish(mut self) -> ReplyGrammar {
        if self.text.contains("text?") {
            self.text.push_str(TEXT);
        }
        ReplyGrammar::Lark(self.text)
    }
}

#[cfg(test)]
mod tests;
