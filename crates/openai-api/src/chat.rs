//! `/v1/chat/completions`.

pub mod message;
pub mod parameters;
pub mod request;
pub mod response;
pub mod tool;

pub use message::{Content, Message, Part, Role};
pub use parameters::{AnswerFormat, ChatParameters, Effort, NamedSchema, ToolUse, Turn};
pub use request::ChatRequest;
pub use response::*;
pub use tool::{FunctionDefinition, Tool, ToolCall, ToolCallFunction, ToolChoice};

#[cfg(test)]
mod tests;
