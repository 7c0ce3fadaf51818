//! One sequence: from the wait for a node to its last event, sent again as long as nothing of it was passed on and
//! `dispatch` allows it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dispatch::Verdict;
use futures_util::stream::{self, Stream};
use http::StatusCode;
use node_api::transport::{Lines, LinkError};
use node_api::{ALIVE_SILENCE_MAX, ApiError, FinishReason, GenerateEvent, GenerateRequest, Token};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::app::App;
use crate::cluster::{OnNode, Place};
use crate::error::{Failure, Retry};
use crate::metrics::{RetryCause, Wait};
use crate::queued::Queued;

/// So many looks without an event between them, and the request is lost. A look costs less than a timer for each event.
const SILENT_LOOKS_MAX: u32 = 3;
const LOOK_INTERVAL: Duration =
    Duration::from_millis(ALIVE_SILENCE_MAX.as_millis() as u64 / SILENT_LOOKS_MAX as u64);
const _: () = assert!(node_api::ALIVE_INTERVAL.as_millis() * 2 < LOOK_INTERVAL.as_millis());

/// What a sequence comes to, step by step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// 0 to 1.
    Loading(f32),
    Started(Started),
    Token(Token),
    /// Before the end; once more where a worker died behind the first.
    Embedding(Vec<f32>),
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
    queued: Arc<Queued>,
    running: Option<Running>,
    place: Option<Place>,
    /// Counts it as waiting or running, until its end.
    counted: Wait,
    /// A token was passed on: what was said cannot be taken back.
    token_passed: bool,
    /// Why it is sent again.
    last_error: Option<ApiError>,
}

/// A sequence on its node.
struct Running {
    node: Arc<str>,
    lines: Lines<GenerateEvent>,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    look: Interval,
    /// Looks since the last event.
    silent_looks: u32,
}

/// Runs a sequence. Dropping the stream ends it on its node. After an error nothing comes.
pub fn generate(
    app: Arc<App>,
    request: GenerateRequest,
    queued: Arc<Queued>,
) -> impl Stream<Item = Result<Step, Failure>> + Send {
    let counted = Wait::begin(app.metrics.model(&request.model));
    let generation = Generation {
        app,
        request,
        queued,
        running: None,
        place: None,
        counted,
        token_passed: false,
        last_error: None,
    };
    stream::unfold(Some(generation), |generation| async move {
        let mut generation = generation?;
        let step = generation.step().await;
        // The place is free from its end on, whenever the stream is dropped.
        let goes_on = !matches!(step, Err(_) | Ok(Step::Finished { .. }));
        Some((step, goes_on.then_some(generation)))
    })
}

impl Generation {
    async fn step(&mut self) -> Result<Step, Failure> {
        loop {
            match self.next_event().await? {
                Ok(step) => return Ok(step),
                Err(error) => self.failed(error)?,
            }
        }
    }

    /// The outer error ends the request, the inner one is the node's.
    async fn next_event(&mut self) -> Result<Result<Step, ApiError>, Failure> {
        if self.running.is_none() {
            match self.begin().await? {
                Ok(running) => self.running = Some(running),
                Err(error) => return Ok(Err(error)),
            }
        }
        let running = self.running.as_mut().expect("it was just begun");
        let event = match running.event().await? {
            Ok(event) => event,
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(match event {
            GenerateEvent::Loading { progress } => {
                self.counted.loading();
                Step::Loading(progress)
            }
            GenerateEvent::Alive => unreachable!("passed over where events are read"),
            GenerateEvent::Started { prompt_tokens, cached_tokens, engine, engine_version, end_tokens } => {
                if let Some(place) = &self.place {
                    place.begun();
                }
                let engine = format!("{engine}/{engine_version}");
                Step::Started(Started { prompt_tokens, cached_tokens, engine, end_tokens })
            }
            GenerateEvent::Token(token) => {
                self.token_passed = true;
                Step::Token(token)
            }
            GenerateEvent::Embedding(embedding) => Step::Embedding(embedding.numbers),
            GenerateEvent::Finished { reason: FinishReason::Cancelled, .. } => {
                return Ok(Err(lost("the node cancelled the request")));
            }
            GenerateEvent::Finished { reason, completion_tokens } => {
                Step::Finished { reason, completion_tokens }
            }
            GenerateEvent::Failed(error) => return Ok(Err(error)),
        }))
    }

    /// Waits for a node and gives it the request.
    async fn begin(&mut self) -> Result<Result<Running, ApiError>, Failure> {
        let cut = self.app.cut.clone();
        let node = tokio::select! {
            node = self.node() => node?,
            () = cut.cancelled() => return Err(ending()),
        };
        self.request.worker_deaths = node.worker_deaths;
        let lines = tokio::select! {
            // What has arrived counts, also when the node that sent it is gone.
            biased;
            lines = node.link.generate(&self.request) => lines.map_err(ApiError::from),
            () = node.gone.cancelled() => Err(lost("the node is gone")),
            () = cut.cancelled() => return Err(ending()),
        };
        let mut look = interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.reset();
        Ok(lines.map(|lines| Running {
            node: node.id,
            lines,
            gone: Box::pin(node.gone.cancelled_owned()),
            cut: Box::pin(cut.cancelled_owned()),
            look,
            silent_looks: 0,
        }))
    }

    async fn node(&mut self) -> Result<OnNode, Failure> {
        let cluster = &self.app.cluster;
        let first = self.place.is_none().then(Instant::now);
        let place = self.place.get_or_insert_with(|| {
            let place = Place::ask(cluster, &self.request.model, self.request.affinity);
            self.queued.came(place.position);
            self.counted.position(place.position);
            place
        });
        let node = place.wait().await;
        if let Some(since) = first {
            self.queued.placed(since.elapsed());
        }
        let node = node.map_err(|refused| {
            self.counted.refused(refused.word());
            // This request's own failure is why the model is not ready any more: it says more, in the engine's words.
            let own = self.last_error.take().filter(|_| refused.is_not_ready());
            own.map_or_else(|| refused.failure(cluster, &self.request.model), Failure::from)
        })?;
        self.counted.placed();
        Ok(node)
    }

    /// The node failed the request: `Ok` when it is to be sent again.
    fn failed(&mut self, error: ApiError) -> Result<(), Failure> {
        let node = self.running.take().map(|r| r.node);
        let place = self.place.as_mut().filter(|_| !self.token_passed && (error.retry || error.worker_died));
        let (failure, cause) = match error.worker_died {
            true => (dispatch::Failure::WorkerDied, RetryCause::WorkerDied),
            false => (dispatch::Failure::NobodyDied, RetryCause::Failed),
        };
        let verdict = place.map(|place| place.failed(failure));
        let request_id = &self.request.request_id;
        let node = node.as_deref();
        tracing::warn!(request_id, node, code = error.code, ?verdict, "a node failed a request: {error}");
        match verdict {
            Some(Verdict::Again) => {
                self.counted.retry(cause);
                self.last_error = Some(error);
                Ok(())
            }
            Some(Verdict::Quarantined) => {
                self.counted.quarantined();
                Err(quarantined(error))
            }
            Some(Verdict::OverBudget) => {
                self.counted.over_budget();
                Err(error.into())
            }
            Some(Verdict::TriedOften) | None => Err(error.into()),
        }
    }
}

impl Running {
    /// The next event that says something.
    async fn event(&mut self) -> Result<Result<GenerateEvent, ApiError>, Failure> {
        loop {
            tokio::select! {
                // What has arrived counts, also when the node that sent it is gone.
                biased;
                event = self.lines.next() => {
                    self.silent_looks = 0;
                    return Ok(match event {
                        Some(Ok(GenerateEvent::Alive)) => continue,
                        Some(Ok(event)) => Ok(event),
                        Some(Err(error)) => Err(LinkError::into(error)),
                        None => Err(lost("the node ended the answer early")),
                    });
                }
                () = &mut self.gone => return Ok(Err(lost("the node is gone"))),
                () = &mut self.cut => return Err(ending()),
                _ = self.look.tick() => {
                    self.silent_looks += 1;
                    if self.silent_looks >= SILENT_LOOKS_MAX {
                        return Ok(Err(silent()));
                    }
                }
            }
        }
    }
}

fn lost(message: &str) -> ApiError {
    ApiError {
        status: StatusCode::BAD_GATEWAY.as_u16(),
        code: "node_lost".to_owned(),
        message: message.to_owned(),
        retry: true,
        ..ApiError::default()
    }
}

fn silent() -> ApiError {
    ApiError {
        status: StatusCode::GATEWAY_TIMEOUT.as_u16(),
        code: "node_silent".to_owned(),
        message: format!("the node said nothing about the request for {} s", ALIVE_SILENCE_MAX.as_secs()),
        retry: true,
        ..ApiError::default()
    }
}

fn quarantined(last: ApiError) -> Failure {
    let message = format!(
        "{} workers died with this request on them before it began, so it is not tried on another; the last one: {}",
        dispatch::WORKER_DEATHS_MAX,
        last.message
    );
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "request_quarantined", message)
        .hint("the node's log has the last words of the workers; a shorter prompt or another engine may help")
        .retry(Retry::Useless)
}

/// The router is told to end.
pub fn ending() -> Failure {
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "router_ending", "the router is ending")
        .retry(Retry::After(crate::cluster::RETRY_AFTER_SECONDS))
}
