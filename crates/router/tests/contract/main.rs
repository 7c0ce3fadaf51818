//! The router's contract over real HTTP: a fixture hub on one side, a fake node on the other.

mod chat;
mod completions;
mod failures;
mod http;
mod models;
mod nodes;
mod openapi;
mod restart;
mod support;
