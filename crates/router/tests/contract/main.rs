//! The router's contract over real HTTP: a fixture hub on one side, a fake node on the other.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which clippy does not take for tests")]

mod chat;
mod completions;
mod failures;
mod http;
mod models;
mod nodes;
mod openapi;
mod restart;
mod support;
