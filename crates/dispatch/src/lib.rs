//! Which node gets a request, how long it may wait for one, and whether it is sent again when it fails.
//!
//! A [`Dispatcher`] is told of nodes and requests, and answers with [`Decision`]s. It is polled after every change and at
//! [`Dispatcher::next_deadline`].
//!
//! **Invariant:** `dispatch` knows no HTTP and reads no clock; time is an argument, counted from any fixed moment.
#![forbid(unsafe_code)]

pub mod affinity;
mod budget;
mod dispatcher;
mod model;
mod node_view;
mod retry;

pub use budget::{RETRIES_PER_SECOND, RETRY_RESERVE, RETRY_SHARE};
pub use dispatcher::{
    Decision, Dispatcher, LOAD_STALL_MAX, LOAD_WAIT_MAX, Limits, NODE_RETURN_WAIT, Refusal, Submitted, Ticket,
};
pub use model::SURPLUS;
pub use node_view::{NodeView, Replica};
pub use retry::{Failure, RETRIES_MAX, RETRY_PAUSE, Verdict, WORKER_DEATHS_MAX};
