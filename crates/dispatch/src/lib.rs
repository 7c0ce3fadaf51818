//! Which node gets a request, how long it may wait for one, and where it goes when a node fails it.
//!
//! A [`Dispatcher`] is told of nodes and requests, and answers with [`Decision`]s. It is polled after every change and at
//! [`Dispatcher::next_deadline`].
//!
//! **Invariant:** `dispatch` knows no HTTP and reads no clock; time is an argument, counted from any fixed moment.
#![forbid(unsafe_code)]

mod dispatcher;
mod node_view;

pub use dispatcher::{Decision, Dispatcher, Limits, Refusal, Ticket};
pub use node_view::{NodeView, Replica};
