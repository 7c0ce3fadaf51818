//! `/v1/chat/completions`.

pub mod message;
pub mod parameters;
pub mod request;
pub mod response;
pub mod tool;

pub use message::{Content, Message, Part, Role};
pub use parameters::{ChatParameters, Effort, ToolUse, Turn};
pub use request::ChatRequest;
pub use response::*;
pub use tool::{FunctionDefinition, Tool, ToolCall, ToolCallFunction, ToolChoice};

#[cfg(test)]
mod tests;
