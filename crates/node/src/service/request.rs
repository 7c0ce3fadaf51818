//! One request from its arrival to its last event. Nothing is tried twice here: what failed is the router's to send again.

use std::sync::Arc;
use std::time::Duration;

use engine_protocol::{EventKind, Submit, Task};
use futures_util::StreamExt as _;
use node_api::transport::EventStream;
use node_api::{
    ALIVE_INTERVAL, ApiError, Embedding, FinishReason, GenerateEvent, GenerateRequest, TokenizeReply,
    TokenizeRequest,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::alive::Alive;
use super::convert::{literal, prompt, sampling, token};
use super::place::Place;
use super::probation::{self, Pass};
use crate::api_error::{of_end, of_status, of_worker, plain};
use crate::models::{Entry, Lease, LeaseEvent, Replica, Suspect};
use crate::node::Node;
use crate::worker::{WorkerError, WorkerEvents};

/// How long a request waits for its model: the time of a load of the largest one from a slow disk.
pub const LOAD_WAIT_MAX: Duration = Duration::from_secs(600);
/// While it waits, the router hears of it at least so often.
pub const LOADING_INTERVAL: Duration = Duration::from_secs(1);
const _: () = assert!(LOADING_INTERVAL.as_millis() <= ALIVE_INTERVAL.as_millis());
/// Events between a request's task and its HTTP/2 stream; beyond them the worker's own buffer fills.
const EVENTS_MAX: usize = 64;
/// For a router to take the last word of a request that is cut.
const LAST_WORD_TIME: Duration = Duration::from_secs(1);

pub fn generate(node: &Arc<Node>, request: GenerateRequest) -> Result<EventStream<GenerateEvent>, ApiError> {
    let entry = admit(node, &request.model, &request.fingerprint, request.worker_deaths)?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let place = Place::waiting(node)?;
    node.counters.requests.one();
    let node_of_task = Arc::clone(node);
    node.tasks.spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = run(&node_of_task, &entry, request, &sender, place) => {}
            // The router dropped the stream: the sequence is cancelled with its events.
            () = closed.closed() => node_of_task.counters.requests_cancelled.one(),
            () = node_of_task.end.cancelled() => {
                let error = plain(503, "node_ends", "the node ends and did not finish the request", true);
                let _ = timeout(LAST_WORD_TIME, sender.send(GenerateEvent::Failed(error))).await;
            }
        }
    });
    Ok(Box::pin(Alive::new(events)))
}

pub async fn tokenize(node: &Arc<Node>, request: TokenizeRequest) -> Result<TokenizeReply, ApiError> {
    let entry = admit(node, &request.model, &request.fingerprint, 0)?;
    let _place = Place::waiting(node)?;
    let wait = Wait { node, entry: &entry, affinity: 0, worker_deaths: 0, tell: None, deadline: deadline() };
    let replica = wait.lease().await?;
    let ids = replica.worker.tokenize(request.text, literal(&request.literal)).await;
    Ok(TokenizeReply { ids: ids.map_err(|e| of_worker(&e))? })
}

fn admit(node: &Node, model: &str, fingerprint: &str, worker_deaths: u32) -> Result<Arc<Entry>, ApiError> {
    if node.draining.is_cancelled() {
        return Err(plain(503, "node_draining", "this node is ending and takes no new requests", true));
    }
    node.table().find(model, fingerprint, worker_deaths)
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
        Ok(submitted) => {
            let _place = place.running();
            follow(submitted, sender).await
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
            if error.worker_died {
                node.counters.requests_interrupted.one();
            }
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

/// A request on a worker.
struct Submitted {
    replica: Lease,
    events: WorkerEvents,
    /// Until its first token, or its embedding. In this order: nobody else is alone before this one is no suspect.
    probation: (Option<Suspect>, Pass),
}

/// Brings a request aboard. A worker that ends while the request waits before it costs the request nothing: it was on no
/// worker, and waits for the next one.
async fn submit(
    node: &Arc<Node>,
    entry: &Arc<Entry>,
    request: GenerateRequest,
    sender: &mpsc::Sender<GenerateEvent>,
) -> Result<Submitted, ApiError> {
    let (affinity, worker_deaths) = (request.affinity, request.worker_deaths);
    let submit = Submit {
        // Chosen by the worker's handle.
        sequence: 0,
        request_id: request.request_id,
        prompt: prompt(request.prompt),
        task: if request.embed { Task::Embed } else { Task::Generate(Box::new(sampling(request.sampling))) },
        cache_salt: request.cache_salt,
    };
    let wait = Wait { node, entry, affinity, worker_deaths, tell: Some(sender), deadline: deadline() };
    loop {
        let replica = wait.lease().await?;
        let Some(pass) = wait.turn(&replica).await? else { continue };
        match replica.worker.submit(submit.clone()) {
            Ok(events) => {
                let suspect = (worker_deaths > 0).then(|| replica.suspect(worker_deaths));
                return Ok(Submitted { replica, events, probation: (suspect, pass) });
            }
            Err(WorkerError::Ended(_)) => {}
            Err(error) => return Err(of_worker(&error)),
        }
    }
}

fn deadline() -> Instant {
    Instant::now() + LOAD_WAIT_MAX
}

/// What a request waits for, and how long.
struct Wait<'a> {
    node: &'a Arc<Node>,
    entry: &'a Arc<Entry>,
    affinity: u64,
    worker_deaths: u32,
    /// Whom the progress of the model is told.
    tell: Option<&'a mpsc::Sender<GenerateEvent>>,
    deadline: Instant,
}

impl Wait<'_> {
    /// Waits for the model, and tells of its progress at each change and each [`LOADING_INTERVAL`].
    async fn lease(&self) -> Result<Lease, ApiError> {
        let affinity = Some(self.affinity).filter(|affinity| *affinity != 0);
        let mut leasing = self.entry.lease(self.node, affinity, self.worker_deaths)?;
        let mut progress = 0.0;
        loop {
            match timeout(LOADING_INTERVAL, leasing.next()).await {
                Ok(LeaseEvent::Granted(lease)) => return Ok(lease),
                Ok(LeaseEvent::Failed(error)) => return Err(error),
                Ok(LeaseEvent::Loading(now)) => progress = now,
                Err(_) => {}
            }
            if Instant::now() >= self.deadline {
                return Err(self.too_long());
            }
            if let Some(sender) = self.tell {
                // A reader that takes nothing does not need to hear it.
                let _ = sender.try_send(GenerateEvent::Loading { progress });
            }
        }
    }

    /// Waits for its turn to begin on this worker; `None`: the worker has ended.
    async fn turn(&self, replica: &Replica) -> Result<Option<Pass>, ApiError> {
        let mut ended = replica.worker.ended();
        let died = async {
            // The sender is gone only with the worker itself.
            let _ = ended.wait_for(Option::is_some).await;
        };
        tokio::select! {
            biased;
            () = died => Ok(None),
            pass = probation::enter(&replica.gate, self.worker_deaths) => Ok(Some(pass)),
            () = tokio::time::sleep_until(self.deadline) => Err(self.too_long()),
        }
    }

    fn too_long(&self) -> ApiError {
        let (id, seconds) = (&self.entry.desired.manifest.id, LOAD_WAIT_MAX.as_secs());
        plain(504, "load_timeout", format!("{id} had no place for the request within {seconds} s"), true)
    }
}

/// Passes events on to the end; how many tokens there were.
async fn follow(submitted: Submitted, sender: &mpsc::Sender<GenerateEvent>) -> Result<u32, ApiError> {
    let Submitted { replica, mut events, probation } = submitted;
    let mut probation = Some(probation);
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
                // From here on it is known not to be what kills a worker at once.
                if probation.take().is_some() {
                    replica.worked();
                }
                tokens += 1;
                GenerateEvent::Token(self::token(token))
            }
            Ok(EventKind::Embedding(numbers)) => {
                if probation.take().is_some() {
                    replica.worked();
                }
                GenerateEvent::Embedding(Embedding { numbers })
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
            Ok(EventKind::Failed { status }) => {
                replica.failed_with(&status);
                return Err(of_status(&status));
            }
            Err(end) => return Err(of_end(&end)),
        };
        if sender.send(event).await.is_err() {
            return Ok(tokens);
        }
    }
    drop(probation);
    Err(plain(500, "events_ended", "the worker's events ended without an end", false))
}
