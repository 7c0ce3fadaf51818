//! `/v1/completions`: a prompt goes to the model as it is, without a template.

pub mod parameters;
pub mod request;
pub mod response;

pub use parameters::CompletionParameters;
pub use request::{CompletionRequest, PromptInput};
pub use response::*;

#[cfg(test)]
mod tests;
