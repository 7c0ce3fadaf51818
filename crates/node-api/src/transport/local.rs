//! A link within one process: the calls are the service's own, and no value becomes text on its way.
//!
//! Both ends see what they would see of a connection: who ends, who is cut, and what runs until then.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::link::{LinkError, NodeLink};
use super::server::{EventStream, NodeService};
use crate::{
    ApiError, DesiredModels, EngineCommand, EngineReply, GenerateEvent, GenerateRequest, ModelCommand,
    ModelStatus, NodeInfo, NodeStatus, TokenizeReply, TokenizeRequest,
};

/// A router that runs in the node's own process.
pub trait LocalRouter: fmt::Debug + Send + Sync + 'static {
    /// Takes a node as it would over the wire, except that nobody here has to prove who it is.
    fn join(&self, node: NodeInfo, link: NodeLink) -> Result<(), ApiError>;
}

/// The node's end; see [`LocalServing::run`].
#[derive(Debug)]
pub struct LocalServing {
    calls: TaskTracker,
    end: CancellationToken,
    router_gone: CancellationToken,
    /// Cuts the link when dropped.
    closed: DropGuard,
}

/// A link to `service`, and the node's end of it: the link is there for as long as that runs.
///
/// `end` is what it is for [`super::serve`].
pub fn local<S: NodeService>(service: Arc<S>, end: CancellationToken) -> (NodeLink, LocalServing) {
    let (calls, closed, router_gone) =
        (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
    let client = Local {
        service,
        calls: calls.clone(),
        end: end.clone(),
        closed: closed.clone(),
        _router: Arc::new(router_gone.clone().drop_guard()),
    };
    let serving = LocalServing { calls, end, router_gone, closed: closed.clone().drop_guard() };
    (NodeLink::of_local(client, closed), serving)
}

impl LocalServing {
    /// Returns when the router has dropped its link, or after `end` when everything that ran is done. On `end` nothing new
    /// is taken; drop the future to cut what runs.
    pub async fn run(self) {
        let LocalServing { calls, end, router_gone, closed } = self;
        tokio::select! {
            () = router_gone.cancelled() => {}
            () = end.cancelled() => {}
        }
        calls.close();
        calls.wait().await;
        drop(closed);
    }
}

/// The router's end.
#[derive(Clone)]
pub(super) struct Local {
    service: Arc<dyn Service>,
    /// What is asked of the node and not answered to its end.
    calls: TaskTracker,
    end: CancellationToken,
    closed: CancellationToken,
    _router: Arc<DropGuard>,
}

impl Local {
    pub fn status(&self) -> Result<LocalEvents<NodeStatus>, LinkError> {
        let open = self.open()?;
        Ok(self.events(self.service.status(), open))
    }

    pub async fn generate(
        &self,
        request: GenerateRequest,
        call: &'static str,
        after: Duration,
    ) -> Result<LocalEvents<GenerateEvent>, LinkError> {
        let open = self.open()?;
        let events = self.answer(self.service.generate(request), call, after).await?;
        Ok(self.events(events, open))
    }

    /// One of the calls with one answer.
    pub async fn ask<'a, T>(
        &'a self,
        ask: impl FnOnce(&'a dyn Service) -> BoxFuture<'a, Result<T, ApiError>>,
        call: &'static str,
        after: Duration,
    ) -> Result<T, LinkError> {
        let _open = self.open()?;
        self.answer(ask(self.service.as_ref()), call, after).await
    }

    /// The link's end comes after this one, unless it is cut.
    fn open(&self) -> Result<TaskTrackerToken, LinkError> {
        let open = self.calls.token();
        match self.end.is_cancelled() || self.closed.is_cancelled() {
            true => Err(LinkError::Ended),
            false => Ok(open),
        }
    }

    async fn answer<T>(
        &self,
        answer: BoxFuture<'_, Result<T, ApiError>>,
        call: &'static str,
        after: Duration,
    ) -> Result<T, LinkError> {
        tokio::select! {
            biased;
            answer = timeout(after, answer) => {
                answer.map_err(|_| LinkError::Timeout { call, after })?.map_err(LinkError::Refused)
            }
            () = self.closed.cancelled() => Err(LinkError::Ended),
        }
    }

    fn events<T>(&self, events: EventStream<T>, open: TaskTrackerToken) -> LocalEvents<T> {
        LocalEvents { running: Some((events, open)), cut: Box::pin(self.closed.clone().cancelled_owned()) }
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("calls", &self.calls.len()).finish_non_exhaustive()
    }
}

/// The events of a call as the service gives them. Dropping them drops the service's stream.
pub(super) struct LocalEvents<T> {
    /// `None` behind the last one.
    running: Option<(EventStream<T>, TaskTrackerToken)>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<T> Stream for LocalEvents<T> {
    type Item = Result<T, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some((events, _)) = &mut self.running else { return Poll::Ready(None) };
        let event = match events.as_mut().poll_next(cx) {
            Poll::Ready(Some(event)) => return Poll::Ready(Some(Ok(event))),
            Poll::Ready(None) => None,
            Poll::Pending if self.cut.poll_unpin(cx).is_ready() => Some(Err(LinkError::Ended)),
            Poll::Pending => return Poll::Pending,
        };
        // At once, since the link waits for it: whoever reads may keep this for longer.
        self.running = None;
        Poll::Ready(event)
    }
}

impl<T> fmt::Debug for LocalEvents<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalEvents").field("ended", &self.running.is_none()).finish_non_exhaustive()
    }
}

/// [`NodeService`] of no certain type.
pub(super) trait Service: Send + Sync {
    fn status(&self) -> EventStream<NodeStatus>;
    fn put_models(&self, models: DesiredModels) -> BoxFuture<'_, Result<(), ApiError>>;
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> BoxFuture<'_, Result<EventStream<GenerateEvent>, ApiError>>;
    fn tokenize(&self, request: TokenizeRequest) -> BoxFuture<'_, Result<TokenizeReply, ApiError>>;
    fn engines(&self, command: EngineCommand) -> BoxFuture<'_, Result<EngineReply, ApiError>>;
    fn model(&self, command: ModelCommand) -> BoxFuture<'_, Result<ModelStatus, ApiError>>;
}

impl<S: NodeService> Service for S {
    fn status(&self) -> EventStream<NodeStatus> {
        NodeService::status(self)
    }

    fn put_models(&self, models: DesiredModels) -> BoxFuture<'_, Result<(), ApiError>> {
        NodeService::put_models(self, models).boxed()
    }

    fn generate(
        &self,
        request: GenerateRequest,
    ) -> BoxFuture<'_, Result<EventStream<GenerateEvent>, ApiError>> {
        NodeService::generate(self, request).boxed()
    }

    fn tokenize(&self, request: TokenizeRequest) -> BoxFuture<'_, Result<TokenizeReply, ApiError>> {
        NodeService::tokenize(self, request).boxed()
    }

    fn engines(&self, command: EngineCommand) -> BoxFuture<'_, Result<EngineReply, ApiError>> {
        NodeService::engines(self, command).boxed()
    }

    fn model(&self, command: ModelCommand) -> BoxFuture<'_, Result<ModelStatus, ApiError>> {
        NodeService::model(self, command).boxed()
    }
}
