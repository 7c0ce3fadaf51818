//! `/v1/embeddings`: texts become directions.

pub mod parameters;
pub mod request;
pub mod response;

pub use parameters::{EmbeddingParameters, EncodingFormat};
pub use request::EmbeddingRequest;
pub use response::*;

#[cfg(test)]
mod tests;
