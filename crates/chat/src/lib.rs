//! Text on both sides of a model: requests rendered to a prompt, generated tokens parsed to a reply.
//!
//! Pure: no clock, no files, no network. Time, chance and identifiers are arguments.
//!
//! The way in: [`TemplateSet::select`] picks a model's chat template, [`Template::compile`] readies it, and
//! [`Template::render`] turns a [`RenderRequest`] into [`Rendered`]: the prompt, and the byte ranges of it in which no
//! control token may be recognised. Templates come from strangers, so the router renders them in a process of their own,
//! by the crate `template-sandbox`, which calls the same functions.
//!
//! The way out: [`ReplyParser`] takes the tokens of a reply one by one and answers with [`Delta`]s: content, reasoning,
//! tool calls. [`StopScanner`] ends content at a stop string. [`force_tool_call`] makes a reply begin with a call,
//! and [`reply_grammar`] says what all of it has to be where something of it is held to a schema.

#![forbid(unsafe_code)]

mod control_tokens;
mod prepare;
mod reply;
mod reply_grammar;
mod stop;
mod template;
mod tool_choice;

pub use control_tokens::{ControlTokens, ControlTokensError};
pub use prepare::response_format_instructions;
pub use reply::{CallIds, Delta, DeltaKind, Finish, Reply, ReplyParser, ToolCall};
pub use reply_grammar::{CallShape, ReplyGrammar, ReplyGrammarUnsupported, ReplyShape, reply_grammar};
pub use stop::{Scanned, StopScanner};
pub use template::{
    LITERAL_BYTES_MAX, LiteralRange, Origin, RenderError, RenderRequest, Rendered, SelectError,
    TEMPLATE_BYTES_MAX, Template, TemplateSet, TemplateSource, plain_beginning,
};
pub use tool_choice::{ForcedCall, ToolChoiceUnsupported, force_tool_call};
