//! The reversed HTTP/2 connection: dialling, joining, serving and calling.
//!
//! | side | use |
//! |---|---|
//! | node | [`dial`] the router, then [`serve`] a [`NodeService`] on what it returns |
//! | router | [`check_upgrade`], read the [`crate::Join`], answer [`switching_protocols`], then [`NodeLink::open`] |
//!
//! Where both are one process there is no connection: the node makes a [`NodeLink`] with [`local`], gives it to its
//! [`LocalRouter`] and runs the rest.
//!
//! **Invariant:** whoever is silent is found out: both ends send HTTP/2 pings, and every wait has a deadline.

mod accept;
mod client;
mod dial;
mod lines;
mod link;
mod local;
mod server;

pub use accept::{check_upgrade, error_response, switching_protocols};
pub use dial::{DialError, Dialled, dial};
use lines::append_line;
pub use lines::{LineDecoder, LineError, Lines, encode_line};
pub use link::{LinkError, NodeLink};
pub use local::{LocalRouter, LocalServing, local};
pub use server::{EventStream, NodeService, serve};

use std::time::Duration;

/// Between two HTTP/2 pings.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// A peer that leaves a ping unanswered for this long is gone.
pub const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// For the TCP connection, and again for the router's answer to a join.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of a node's answer to a request that needs no model: the status, the wanted models.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of the answer to a generate request: the node only has to look at it.
pub const GENERATE_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// For a tokenize request, which may have to load the model first.
pub const TOKENIZE_TIMEOUT: Duration = Duration::from_secs(600);
/// For a command of the operator, which may have to load models first.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(900);
/// Streams the router may have open on a node at once; far above what a node runs, so that waiting is the node's to decide.
pub const STREAMS_MAX: u32 = 4096;
/// The body of an error at most.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// 1 MiB a stream: a prompt of usual size leaves without waiting for the other side.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// 16 MiB a connection: sixteen such streams at once.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const _: () = assert!(STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
const _: () = assert!(crate::HEARTBEAT.as_millis() * 2 < crate::SILENCE_MAX.as_millis());

/// A stream of bytes of either kind of connection.
pub trait Io: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static {}
impl<T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static> Io for T {}

#[cfg(test)]
mod tests;
