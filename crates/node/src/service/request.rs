//! One request from its arrival to its last event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use engine_protocol::{EventKind, LiteralRange, Submit};
use futures_util::StreamExt as _;
use node_api::transport::EventStream;
use node_api::{
    ApiError, FinishReason, GenerateEvent, GenerateRequest, Prompt, Sampling, Token, TokenBytes,
    TokenLogprob, TokenizeReply, TokenizeRequest,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::api_error::{of_status, of_worker, plain};
use crate::models::{Entry, Load, Replica};
use crate::node::Node;
use crate::worker::{WorkerError, WorkerEvents};

/// Requests on a node at once, waiting ones included.
pub const REQUESTS_MAX: u32 = 1024;
/// How long a request waits for its model: the time of a load of the largest one from a slow disk.
pub const LOAD_WAIT_MAX: Duration = Duration::from_secs(600);
/// While it waits, the router hears of it at least so often.
pub const LOADING_INTERVAL: Duration = Duration::from_secs(1);
/// Events between a request's task and its HTTP/2 stream; beyond them the worker's own buffer fills.
const EVENTS_MAX: usize = 64;
/// What a logarithm of a probability of zero becomes: JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

pub fn generate(node: &Arc<Node>, request: GenerateRequest) -> Result<EventStream<GenerateEvent>, ApiError> {
    let entry = admit(node, &request.model, &request.fingerprint)?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let place = Place::waiting(node)?;
    let node_of_task = Arc::clone(node);
    node.tasks.spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = run(&node_of_task, &entry, request, &sender, place) => {}
            // The router dropped the stream: the sequence is cancelled with its events.
            () = closed.closed() => {}
            () = node_of_task.end.cancelled() => {
                let error = plain(503, "node_ends", "the node ends and did not finish the request", true);
                let _ = sender.try_send(GenerateEvent::Failed(error));
            }
        }
    });
    Ok(Box::pin(ReceiverStream::new(events)))
}

pub async fn tokenize(node: &Arc<Node>, request: TokenizeRequest) -> Result<TokenizeReply, ApiError> {
    let entry = admit(node, &request.model, &request.fingerprint)?;
    let _place = Place::waiting(node)?;
    let replica = loaded(node, &entry, None).await?;
    let literal = request.literal.iter().map(|r| LiteralRange { start: r.start, end: r.end }).collect();
    let ids = replica.worker.tokenize(request.text, literal).await.map_err(|e| of_worker(&e))?;
    Ok(TokenizeReply { ids })
}

fn admit(node: &Node, model: &str, fingerprint: &str) -> Result<Arc<Entry>, ApiError> {
    if node.draining.is_cancelled() {
        return Err(plain(503, "node_draining", "this node is ending and takes no new requests", true));
    }
    node.table().find(model, fingerprint)
}

async fn run(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    request: GenerateRequest,
    sender: &mpsc::Sender<GenerateEvent>,
    place: Place,
) {
    let request_id = request.request_id.clone();
    let started = Instant::now();
    let result = match submit(node, entry, request, sender).await {
        Ok((replica, events)) => {
            let _place = place.running();
            follow(&replica, events, sender).await
        }
        Err(error) => Err(error),
    };
    let model = &entry.desired.manifest.id;
    match result {
        Ok(tokens) => {
            entry.worked();
            let seconds = started.elapsed().as_secs_f32();
            tracing::info!(node = node.info.id, request_id, model, tokens, seconds, "a request is done");
        }
        Err(error) => {
            tracing::warn!(
                node = node.info.id,
                request_id,
                model,
                code = error.code,
                status = error.status,
                "a request failed: {}",
                error.message
            );
            // The router may be gone by now; then nobody waits for the reason.
            let _ = sender.send(GenerateEvent::Failed(error)).await;
        }
    }
}

async fn submit(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    request: GenerateRequest,
    sender: &mpsc::Sender<GenerateEvent>,
) -> Result<(Arc<Replica>, WorkerEvents), ApiError> {
    let submit = Submit {
        // Chosen by the worker's handle.
        sequence: 0,
        request_id: request.request_id,
        prompt: prompt(request.prompt),
        sampling: sampling(request.sampling),
    };
    let replica = loaded(node, entry, Some(sender)).await?;
    match replica.worker.submit(submit.clone()) {
        Ok(events) => return Ok((replica, events)),
        // It died in between: the one after it gets the request, which has not begun.
        Err(WorkerError::Ended(_)) => {}
        Err(error) => return Err(of_worker(&error)),
    }
    let replica = loaded(node, entry, Some(sender)).await?;
    let events = replica.worker.submit(submit).map_err(|e| of_worker(&e))?;
    Ok((replica, events))
}

/// Waits for the model, and tells of its progress at each change and each [`LOADING_INTERVAL`].
async fn loaded(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    tell: Option<&mpsc::Sender<GenerateEvent>>,
) -> Result<Arc<Replica>, ApiError> {
    let deadline = Instant::now() + LOAD_WAIT_MAX;
    let mut load = entry.acquire(node)?;
    loop {
        let now = load.borrow_and_update().clone();
        let progress = match now {
            Load::Loaded(replica) => return Ok(replica),
            Load::Failed(error) => return Err(error),
            Load::Loading(progress) => progress,
        };
        if Instant::now() >= deadline {
            let message =
                format!("{} was not loaded within {} s", entry.desired.manifest.id, LOAD_WAIT_MAX.as_secs());
            return Err(plain(504, "load_timeout", message, true));
        }
        if let Some(sender) = tell {
            // A reader that takes nothing does not need to hear it.
            let _ = sender.try_send(GenerateEvent::Loading { progress });
        }
        if let Ok(Err(_)) = tokio::time::timeout(LOADING_INTERVAL, load.changed()).await {
            let message = format!("the load of {} was given up", entry.desired.manifest.id);
            return Err(plain(503, "load_aborted", message, true));
        }
    }
}

/// Passes events on to the end; how many tokens there were.
async fn follow(
    replica: &Replica,
    mut events: WorkerEvents,
    sender: &mpsc::Sender<GenerateEvent>,
) -> Result<u32, ApiError> {
    let mut tokens = 0;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(EventKind::Started { prompt_tokens, cached_tokens }) => GenerateEvent::Started {
                prompt_tokens,
                cached_tokens,
                engine: replica.engine.clone(),
                engine_version: replica.engine_version.clone(),
                end_tokens: replica.loaded.end_tokens.clone(),
            },
            Ok(EventKind::Token(token)) => {
                tokens += 1;
                GenerateEvent::Token(self::token(token))
            }
            Ok(EventKind::Finished { reason, completion_tokens }) => {
                let reason = match reason {
                    engine_protocol::FinishReason::Stop => FinishReason::Stop,
                    engine_protocol::FinishReason::Length => FinishReason::Length,
                    engine_protocol::FinishReason::Cancelled => FinishReason::Cancelled,
                };
                let _ = sender.send(GenerateEvent::Finished { reason, completion_tokens }).await;
                return Ok(tokens);
            }
            Ok(EventKind::Failed { status }) => return Err(of_status(&status)),
            Err(end) => return Err(of_status(&end.status())),
        };
        if sender.send(event).await.is_err() {
            return Ok(tokens);
        }
    }
    Err(plain(500, "events_ended", "the worker's events ended without an end", false))
}

/// A request's place among those a node has, in its status: waiting, then running.
struct Place {
    node: Arc<Node>,
    counted: Counted,
}

#[derive(Clone, Copy)]
enum Counted {
    Waiting,
    Running,
}

impl Place {
    fn waiting(node: &Arc<Node>) -> Result<Place, ApiError> {
        let (running, waiting) = (&node.requests_running, &node.requests_waiting);
        let all = running.load(Ordering::Relaxed) + waiting.fetch_add(1, Ordering::Relaxed) + 1;
        // From here on dropping it takes the count back.
        let place = Place { node: Arc::clone(node), counted: Counted::Waiting };
        if all > REQUESTS_MAX {
            let message = format!("this node has {REQUESTS_MAX} requests already");
            return Err(plain(503, "node_busy", message, true));
        }
        node.touch();
        Ok(place)
    }

    fn running(mut self) -> Place {
        self.node.requests_running.fetch_add(1, Ordering::Relaxed);
        self.counter().fetch_sub(1, Ordering::Relaxed);
        self.counted = Counted::Running;
        self.node.touch();
        self
    }

    fn counter(&self) -> &AtomicU32 {
        match self.counted {
            Counted::Waiting => &self.node.requests_waiting,
            Counted::Running => &self.node.requests_running,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.counter().fetch_sub(1, Ordering::Relaxed);
        self.node.touch();
    }
}

fn prompt(prompt: Prompt) -> engine_protocol::Prompt {
    match prompt {
        Prompt::Tokens(ids) => engine_protocol::Prompt::Tokens(ids),
        Prompt::Text { text, literal } => engine_protocol::Prompt::Text {
            text,
            literal: literal.iter().map(|r| LiteralRange { start: r.start, end: r.end }).collect(),
        },
    }
}

fn sampling(s: Sampling) -> engine_protocol::Sampling {
    engine_protocol::Sampling {
        temperature: s.temperature,
        top_p: s.top_p,
        top_k: s.top_k,
        min_p: s.min_p,
        seed: s.seed.unwrap_or_else(rand::random),
        presence_penalty: s.presence_penalty,
        frequency_penalty: s.frequency_penalty,
        repetition_penalty: s.repetition_penalty,
        logit_bias: s.logit_bias,
        tokens_max: s.tokens_max,
        tokens_min: s.tokens_min,
        stop: s.stop,
        stop_tokens: s.stop_tokens,
        ignore_end_tokens: s.ignore_end_tokens,
        logprobs: s.logprobs,
        begin_with: s.begin_with,
    }
}

fn token(token: engine_protocol::Token) -> Token {
    let logprob = |l: engine_protocol::TokenLogprob| TokenLogprob {
        id: l.id,
        logprob: if l.logprob.is_finite() { l.logprob } else { LOGPROB_MIN },
        bytes: TokenBytes::from(l.bytes),
    };
    Token {
        id: token.id,
        bytes: TokenBytes::from(token.bytes),
        control: token.control,
        logprobs: token.logprobs.into_iter().map(logprob).collect(),
    }
}
