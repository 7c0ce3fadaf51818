//! The OpenAI API.

pub mod chat;
pub mod completions;
pub mod embeddings;
mod logprobs;
pub mod models;
mod named;
mod sequence;
