//! Request, response and stream types of the OpenAI API under `/v1`, and the checks of what a request may say.
//!
//! Every field of a request is honoured, accepted because it cannot change the answer, or refused by name; a field this
//! crate does not know is refused as well. `docs/api.md` has the table.
//!
//! **Invariant:** only types and checks; nothing here knows models, nodes or HTTP.
#![forbid(unsafe_code)]

pub mod chat;
pub mod completion;
pub mod embedding;
pub mod error;
pub mod logprobs;
pub mod models;
pub mod parse;
pub mod sampling;
pub mod stop;
pub mod stream_options;
pub mod usage;

pub use error::{ErrorBody, ErrorDetail, Numbers};
pub use parse::{InvalidRequest, parse};
pub use sampling::Sampling;
