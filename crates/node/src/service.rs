//! What a router asks of this node, answered.

mod alive;
mod convert;
mod place;
mod probation;
mod request;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream;
use node_api::transport::{EventStream, NodeService};
use node_api::{
    ApiError, DesiredModels, EngineCommand, EngineReply, GenerateEvent, GenerateRequest, HEARTBEAT,
    ModelCommand, ModelStatus, NodeStatus, TokenizeReply, TokenizeRequest,
};
use tokio::time::timeout;

use crate::models;
use crate::node::Node;

/// Changes that come closer together than this share a status line.
const STATUS_INTERVAL: Duration = Duration::from_millis(50);

/// The node as one router sees it.
#[derive(Debug)]
pub struct Service {
    node: Arc<Node>,
    router: usize,
}

impl Service {
    pub fn new(node: Arc<Node>, router: usize) -> Service {
        Service { node, router }
    }
}

impl NodeService for Service {
    fn status(&self) -> EventStream<NodeStatus> {
        let node = Arc::clone(&self.node);
        let changed = node.changed.subscribe();
        Box::pin(stream::unfold((node, changed, 0), async |(node, mut changed, sequence)| {
            if sequence > 0 {
                let next = async {
                    // The sender lives in the node that is held here.
                    let _ = timeout(HEARTBEAT - STATUS_INTERVAL, changed.changed()).await;
                    tokio::time::sleep(STATUS_INTERVAL).await;
                };
                tokio::select! {
                    () = next => {}
                    () = node.end.cancelled() => return None,
                }
            }
            changed.mark_unchanged();
            let status = NodeStatus {
                sequence: sequence + 1,
                models: node.table().statuses(),
                engines: node.engines.current().summaries(),
                memory: node.memory.status(),
                alerts: node.memory.alerts(),
                counters: node.counters.snapshot(),
                requests_running: node.requests_running.load(Ordering::Relaxed),
                requests_waiting: node.requests_waiting.load(Ordering::Relaxed),
                draining: node.draining.is_cancelled(),
            };
            Some((status, (node, changed, sequence + 1)))
        }))
    }

    async fn put_models(&self, models: DesiredModels) -> Result<(), ApiError> {
        models::put(&self.node, self.router, models)
    }

    async fn generate(&self, request: GenerateRequest) -> Result<EventStream<GenerateEvent>, ApiError> {
        request::generate(&self.node, request)
    }

    async fn tokenize(&self, request: TokenizeRequest) -> Result<TokenizeReply, ApiError> {
        request::tokenize(&self.node, request).await
    }

    async fn engines(&self, command: EngineCommand) -> Result<EngineReply, ApiError> {
        models::engines(&self.node, command).await
    }

    async fn model(&self, command: ModelCommand) -> Result<ModelStatus, ApiError> {
        models::model(&self.node, command).await
    }
}
