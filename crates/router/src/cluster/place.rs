//! A request's place on a node, from waiting for it to giving it back.

use std::sync::Arc;

use dispatch::{Refusal, Ticket};
use node_api::transport::NodeLink;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Chosen, Cluster, RETRY_AFTER_SECONDS};
use crate::error::{Failure, Retry};

/// Given back when dropped, waiting or running.
pub struct Place {
    ticket: Ticket,
    cluster: Arc<Cluster>,
    outcome: oneshot::Receiver<Result<Chosen, Refusal>>,
    /// Where the request runs.
    pub node: Option<OnNode>,
}

/// The node that has the request now.
pub struct OnNode {
    pub id: String,
    pub link: NodeLink,
    /// Cancelled when the node is gone.
    pub gone: CancellationToken,
}

/// No node takes the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub Refusal);

impl Place {
    /// Asks for a place on a node that has the model.
    pub fn ask(cluster: &Arc<Cluster>, model: &str) -> Place {
        let mut inner = cluster.lock();
        let ticket = inner.dispatcher.submit(cluster.now(), model);
        let (sender, outcome) = oneshot::channel();
        inner.waiting.insert(ticket, sender);
        cluster.dispatch(&mut inner);
        Place { ticket, cluster: Arc::clone(cluster), outcome, node: None }
    }

    /// Waits for the node. The dispatcher's deadline bounds it.
    pub async fn wait(&mut self) -> Result<&OnNode, Refused> {
        let outcome = (&mut self.outcome).await;
        // The sender is dropped unused only if the ticket is unknown, which is a refusal as well.
        let chosen = outcome.unwrap_or(Err(Refusal::NotReady)).map_err(Refused)?;
        Ok(self.node.insert(OnNode { id: chosen.node_id, link: chosen.link, gone: chosen.gone }))
    }

    /// Asks again after the node failed; false: often enough.
    pub fn ask_again(&mut self) -> bool {
        let mut inner = self.cluster.lock();
        if !inner.dispatcher.retry(self.cluster.now(), self.ticket) {
            return false;
        }
        let (sender, outcome) = oneshot::channel();
        inner.waiting.insert(self.ticket, sender);
        self.outcome = outcome;
        self.node = None;
        self.cluster.dispatch(&mut inner);
        true
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
    /// What the caller is told.
    pub fn failure(self, cluster: &Cluster, model: &str) -> Failure {
        let busy = |message: String| {
            Failure::new(http::StatusCode::SERVICE_UNAVAILABLE, "overloaded", message)
                .retry(Retry::After(RETRY_AFTER_SECONDS))
        };
        match self.0 {
            Refusal::NotReady => cluster.not_ready(model),
            Refusal::QueueFull { waiting } => busy(format!("{waiting} requests are waiting already")),
            Refusal::WaitedTooLong { waited } => {
                let seconds = waited.as_secs();
                busy(format!("no node had a place for `{model}` within {seconds} s"))
            }
        }
    }
}
