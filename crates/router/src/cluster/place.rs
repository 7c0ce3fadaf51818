//! A request's place on a node, from waiting for it to giving it back.

use std::sync::Arc;
use std::time::Duration;

use dispatch::{Refusal, Ticket, Verdict};
use node_api::transport::NodeLink;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Chosen, Cluster, RETRY_AFTER_SECONDS, RETRY_AFTER_SECONDS_MAX};
use crate::error::{Failure, Retry};

/// Given back when dropped, waiting or running.
pub struct Place {
    ticket: Ticket,
    cluster: Arc<Cluster>,
    outcome: oneshot::Receiver<Result<Chosen, Refusal>>,
    /// Requests for the model that waited when it came.
    pub position: usize,
}

/// The node that has the request now.
pub struct OnNode {
    pub id: Arc<str>,
    pub link: NodeLink,
    /// Cancelled when the node is gone.
    pub gone: CancellationToken,
    /// Workers that have died with the request.
    pub worker_deaths: u32,
}

/// No node takes the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub Refusal);

impl Place {
    /// Asks for a place on a node that has the model.
    pub fn ask(cluster: &Arc<Cluster>, model: &str, affinity: u64) -> Place {
        let mut inner = cluster.lock();
        let submitted = inner.dispatcher.submit(cluster.now(), model, affinity);
        let (sender, outcome) = oneshot::channel();
        inner.waiting.insert(submitted.ticket, sender);
        cluster.dispatch(&mut inner);
        let (ticket, position) = (submitted.ticket, submitted.position);
        Place { ticket, cluster: Arc::clone(cluster), outcome, position }
    }

    /// Waits for the node. The dispatcher's deadlines bound it.
    pub async fn wait(&mut self) -> Result<OnNode, Refused> {
        let outcome = (&mut self.outcome).await;
        // The sender is dropped unused only if the ticket is unknown, which is a refusal as well.
        let chosen = outcome.unwrap_or(Err(Refusal::NotReady)).map_err(Refused)?;
        let Chosen { node_id: id, link, gone, worker_deaths } = chosen;
        Ok(OnNode { id, link, gone, worker_deaths })
    }

    /// The sequence runs: its model is in a worker.
    pub fn begun(&self) {
        let mut inner = self.cluster.lock();
        inner.dispatcher.begun(self.ticket);
        self.cluster.dispatch(&mut inner);
    }

    /// The node failed the request. After `Again` there is a node to wait for.
    pub fn failed(&mut self, failure: dispatch::Failure) -> Verdict {
        let mut inner = self.cluster.lock();
        let verdict = inner.dispatcher.failed(self.cluster.now(), self.ticket, failure);
        if verdict == Verdict::Again {
            let (sender, outcome) = oneshot::channel();
            inner.waiting.insert(self.ticket, sender);
            self.outcome = outcome;
            self.cluster.dispatch(&mut inner);
        }
        verdict
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.cluster.lock();
        inner.waiting.remove(&self.ticket);
        inner.dispatcher.finish(self.ticket);
        self.cluster.dispatch(&mut inner);
    }
}

impl Refused {
    /// The model is not ready anywhere, any more.
    pub fn is_not_ready(self) -> bool {
        matches!(self.0, Refusal::NotReady)
    }

    /// As metrics name it.
    pub fn word(self) -> &'static str {
        match self.0 {
            Refusal::NotReady => "not_ready",
            Refusal::QueueFull { .. } => "queue_full",
            Refusal::WaitedTooLong { .. } => "waited_too_long",
        }
    }

    /// What the caller is told.
    pub fn failure(self, cluster: &Cluster, model: &str) -> Failure {
        let busy = |message: String| {
            let wait = cluster.lock().dispatcher.wait(cluster.now(), model);
            Failure::new(http::StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
                .retry(Retry::After(retry_after(wait)))
        };
        match self.0 {
            Refusal::NotReady => cluster.not_ready(model),
            Refusal::QueueFull { waiting } => {
                busy(format!("{waiting} requests for `{model}` are waiting already"))
            }
            Refusal::WaitedTooLong { waited } => {
                let seconds = waited.as_secs();
                busy(format!("no node had a place for `{model}` within {seconds} s"))
            }
        }
    }
}

/// Seconds after which a place may be free: the wait of those who are let in, a second at least.
fn retry_after(wait: Option<Duration>) -> u32 {
    let Some(wait) = wait else { return RETRY_AFTER_SECONDS };
    u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1).min(RETRY_AFTER_SECONDS_MAX)
}

#[cfg(test)]
mod tests;
