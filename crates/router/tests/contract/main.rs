//! The router's contract over real HTTP: a fixture hub on one side, a fake node on the other.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which clippy does not take for tests")]

mod catalogue;
mod chat;
mod completions;
mod embeddings;
mod engines;
mod failures;
mod http;
mod loaded;
mod metrics;
mod models;
mod nodes;
mod openapi;
mod queueing;
mod restart;
mod structured;
mod support;
