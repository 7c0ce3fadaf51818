//! The contract between router and node: the types, their version, the reversed HTTP/2 connection, and the link within one
//! process that takes its place in `up`.
//!
//! A node dials the router with `POST /node/v1/link`, `Upgrade: llm-router-node/2`, its join secret as bearer token and
//! a [`Join`] as JSON body. The router answers 101, or an error with an [`ApiError`] body that says why the node is not
//! taken. After 101 the node is the HTTP/2 server on that connection and the router opens streams on it:
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | never-ending lines of [`NodeStatus`], at every change and at least once a [`HEARTBEAT`] |
//! | `PUT /v1/models` with [`DesiredModels`] | 204; the node fetches, verifies and drops until it has just these |
//! | `POST /v1/generate` with [`GenerateRequest`] | lines of [`GenerateEvent`] until `finished` or `failed` |
//! | `POST /v1/embed` with the same, its `embed` set | the same; a node of before does not know it, and says so |
//! | `POST /v1/tokenize` with [`TokenizeRequest`] | [`TokenizeReply`] |
//! | `POST /v1/engines` with [`EngineCommand`] | [`EngineReply`], when it is done |
//! | `POST /v1/model` with [`ModelCommand`] | [`ModelStatus`], when it is done |
//!
//! Dropping a stream cancels what it asked for. Lines are JSON, each ended by a newline; readers ignore fields they do
//! not know, so the minor parts of the contract can grow; [`PROTOCOL_VERSION`] changes when they cannot.
//!
//! **Invariant:** the router never learns a path of the node's disk, the node never learns a client's key.

#![forbid(unsafe_code)]

mod event;
pub mod numbers;
pub mod transport;
pub mod types;

pub use types::*;

use std::time::Duration;

/// In the `Upgrade` header as `llm-router-node/2`.
pub const PROTOCOL_VERSION: u32 = 2;
/// Path on the router that nodes dial.
pub const LINK_PATH: &str = "/node/v1/link";
/// Token of the `Upgrade` header.
pub const UPGRADE_TOKEN: &str = "llm-router-node/2";
/// A node says something at least this often.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// A router that has heard nothing for this long treats the node as gone.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// A request's stream says something at least this often.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// A request of which a router has heard nothing for this long is lost.
pub const ALIVE_SILENCE_MAX: Duration = Duration::from_secs(15);
const _: () = assert!(ALIVE_INTERVAL.as_millis() * 5 < ALIVE_SILENCE_MAX.as_millis());
/// One line of either stream at most: a prompt of the largest context fits with room to spare.
pub const LINE_BYTES_MAX: usize = 64 << 20;
