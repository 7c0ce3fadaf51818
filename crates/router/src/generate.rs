//! One sequence: from the wait for a node to its last event, tried again elsewhere as long as nothing of it was passed on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use http::StatusCode;
use node_api::transport::{Lines, LinkError};
use node_api::{ApiError, FinishReason, GenerateEvent, GenerateRequest, Token};
use tokio::time::timeout;

use crate::app::App;
use crate::cluster::{OnNode, Place};
use crate::error::{Failure, Retry};

/// Between two events of a sequence at most. Nodes watch their workers much more closely and say when a model loads.
const EVENT_TIMEOUT: Duration = Duration::from_secs(600);

/// What a sequence comes to, step by step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// 0 to 1.
    Loading(f32),
    Started(Started),
    Token(Token),
    /// Nothing comes after it.
    Finished {
        reason: FinishReason,
        completion_tokens: u32,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// `gpt-oss/1.0.0`
    pub engine: String,
    pub end_tokens: Vec<u32>,
}

struct Generation {
    app: Arc<App>,
    request: GenerateRequest,
    place: Option<Place>,
    lines: Option<Lines<GenerateEvent>>,
    /// A token was passed on: what was said cannot be taken back.
    token_passed: bool,
    ended: bool,
}

/// Runs a sequence. Dropping the stream ends it on its node. After an error nothing comes.
pub fn generate(app: Arc<App>, request: GenerateRequest) -> impl Stream<Item = Result<Step, Failure>> + Send {
    let generation = Generation { app, request, place: None, lines: None, token_passed: false, ended: false };
    stream::unfold(generation, |mut generation| async move {
        if generation.ended {
            return None;
        }
        let step = generation.step().await;
        if matches!(step, Err(_) | Ok(Step::Finished { .. })) {
            generation.ended = true;
            // The place is free from here on, whenever the stream is dropped.
            generation.lines = None;
            generation.place = None;
        }
        Some((step, generation))
    })
}

impl Generation {
    async fn step(&mut self) -> Result<Step, Failure> {
        loop {
            match self.next_event().await? {
                Ok(event) => return Ok(event),
                Err(error) => {
                    let place = self.place.as_mut().filter(|_| error.retry && !self.token_passed);
                    let node = place.as_ref().and_then(|p| p.node.as_ref()).map(|n| n.id.clone());
                    let again = place.is_some_and(Place::ask_again);
                    tracing::warn!(node, code = error.code, again, "a node failed a request: {error}");
                    if !again {
                        return Err(Failure::from(error));
                    }
                    self.lines = None;
                }
            }
        }
    }

    /// The outer error ends the request, the inner one may be tried again.
    async fn next_event(&mut self) -> Result<Result<Step, ApiError>, Failure> {
        let cluster = &self.app.cluster;
        let place = self.place.get_or_insert_with(|| Place::ask(cluster, &self.request.model));
        if place.node.is_none() {
            let chosen = tokio::select! {
                chosen = place.wait() => chosen.map(drop),
                () = self.app.cut.cancelled() => return Err(ending()),
            };
            chosen.map_err(|refused| refused.failure(cluster, &self.request.model))?;
        }
        let node = place.node.as_ref().expect("it was just waited for");
        let event = tokio::select! {
            // What has arrived counts, also when the node that sent it is gone.
            biased;
            event = event(&mut self.lines, node, &self.request) => event,
            () = node.gone.cancelled() => Err(lost("the node is gone")),
            () = self.app.cut.cancelled() => return Err(ending()),
        };
        Ok(event.and_then(|event| match event {
            GenerateEvent::Loading { progress } => Ok(Step::Loading(progress)),
            GenerateEvent::Started { prompt_tokens, cached_tokens, engine, engine_version, end_tokens } => {
                let engine = format!("{engine}/{engine_version}");
                Ok(Step::Started(Started { prompt_tokens, cached_tokens, engine, end_tokens }))
            }
            GenerateEvent::Token(token) => {
                self.token_passed = true;
                Ok(Step::Token(token))
            }
            GenerateEvent::Finished { reason: FinishReason::Cancelled, .. } => {
                Err(lost("the node cancelled the request"))
            }
            GenerateEvent::Finished { reason, completion_tokens } => {
                Ok(Step::Finished { reason, completion_tokens })
            }
            GenerateEvent::Failed(error) => Err(error),
        }))
    }
}

async fn event(
    lines: &mut Option<Lines<GenerateEvent>>,
    node: &OnNode,
    request: &GenerateRequest,
) -> Result<GenerateEvent, ApiError> {
    if lines.is_none() {
        *lines = Some(node.link.generate(request).await?);
    }
    let open = lines.as_mut().expect("it was just opened");
    match timeout(EVENT_TIMEOUT, open.next()).await {
        Ok(Some(Ok(event))) => Ok(event),
        Ok(Some(Err(error))) => Err(LinkError::into(error)),
        Ok(None) => Err(lost("the node ended the answer early")),
        Err(_) => Err(ApiError {
            status: StatusCode::GATEWAY_TIMEOUT.as_u16(),
            code: "node_silent".to_owned(),
            message: format!("the node said nothing about the request for {} s", EVENT_TIMEOUT.as_secs()),
            hint: None,
            retry: false,
        }),
    }
}

fn lost(message: &str) -> ApiError {
    ApiError {
        status: StatusCode::BAD_GATEWAY.as_u16(),
        code: "node_lost".to_owned(),
        message: message.to_owned(),
        hint: None,
        retry: true,
    }
}

fn ending() -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "router_ending", "the router is ending")
        .retry(Retry::After(crate::cluster::RETRY_AFTER_SECONDS))
}
