//! The OpenAI API.

pub mod chat;
pub mod completions;
mod logprobs;
pub mod models;
mod named;
mod sequence;
