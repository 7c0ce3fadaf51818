//! What a worker says, and to whom it goes.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use engine_protocol::{
    EngineInfo, Estimate, EventKind, FrameReader, Loaded, LogLevel, SequenceId, Status, StatusCode, ToNode,
};
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, oneshot, watch};

use super::last_words::RateLimit;
use super::{EVENTS_MAX, Worker};

pub type Call = engine_protocol::CallId;

/// Bytes taken from the pipe at once; a pipe holds no more.
const READ_BYTES: usize = 64 << 10;
/// Of a line logged through the ABI.
const LOG_BYTES_MAX: usize = 8 << 10;

#[derive(Debug)]
pub(super) enum Answer {
    Opened(EngineInfo),
    Estimated(Estimate),
    Loaded(Loaded),
    Tokenized(Vec<u32>),
}

impl Answer {
    pub fn name(&self) -> &'static str {
        match self {
            Answer::Opened(_) => "an opened engine",
            Answer::Estimated(_) => "an estimate",
            Answer::Loaded(_) => "a loaded model",
            Answer::Tokenized(_) => "token ids",
        }
    }
}

/// Why a sequence ended without the engine ending it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestEnd {
    /// With the exit status and last words.
    Worker(Arc<str>),
    /// Its reader stopped reading.
    Overflow,
}

/// Shared by a worker's handle and its tasks.
#[derive(Debug)]
pub(super) struct Shared {
    /// For log lines.
    pub engine_id: String,
    pub engine_version: String,
    pub model: String,
    state: Mutex<State>,
    pub progress: watch::Sender<f32>,
    /// Changes with every message: a sign of life.
    pub alive: watch::Sender<()>,
    pub ended: watch::Sender<Option<Arc<str>>>,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<Call, oneshot::Sender<Result<Answer, Status>>>,
    sequences: HashMap<SequenceId, Sequence>,
    ended: Option<Arc<str>>,
    expected: bool,
}

#[derive(Debug)]
struct Sequence {
    request_id: String,
    events: mpsc::Sender<Result<EventKind, RequestEnd>>,
    end: Option<oneshot::Sender<RequestEnd>>,
}

#[derive(Debug)]
pub(super) struct SequenceEvents {
    events: mpsc::Receiver<Result<EventKind, RequestEnd>>,
    end: oneshot::Receiver<RequestEnd>,
}

impl Shared {
    pub fn new(engine_id: String, engine_version: String, model: String) -> Shared {
        Shared {
            engine_id,
            engine_version,
            model,
            state: Mutex::default(),
            progress: watch::Sender::new(0.0),
            alive: watch::Sender::new(()),
            ended: watch::Sender::new(None),
        }
    }

    /// Nothing that holds the lock can panic half way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open_call(&self, call: Call) -> Result<oneshot::Receiver<Result<Answer, Status>>, Arc<str>> {
        let mut state = self.lock();
        if let Some(end) = &state.ended {
            return Err(Arc::clone(end));
        }
        let (sender, receiver) = oneshot::channel();
        state.calls.insert(call, sender);
        Ok(receiver)
    }

    pub fn forget_call(&self, call: Call) {
        self.lock().calls.remove(&call);
    }

    pub fn open_sequence(
        &self,
        sequence: SequenceId,
        request_id: String,
    ) -> Result<SequenceEvents, Arc<str>> {
        let mut state = self.lock();
        if let Some(end) = &state.ended {
            return Err(Arc::clone(end));
        }
        let (events_in, events) = mpsc::channel(EVENTS_MAX);
        let (end_in, end) = oneshot::channel();
        state.sequences.insert(sequence, Sequence { request_id, events: events_in, end: Some(end_in) });
        Ok(SequenceEvents { events, end })
    }

    /// Whether it was still running.
    pub fn close_sequence(&self, sequence: SequenceId) -> bool {
        self.lock().sequences.remove(&sequence).is_some()
    }

    pub fn expect_end(&self) {
        self.lock().expected = true;
    }

    pub fn is_end_expected(&self) -> bool {
        self.lock().expected
    }

    pub fn end_reason(&self) -> Arc<str> {
        self.lock().ended.clone().unwrap_or_else(|| "the worker is ending".into())
    }

    /// Everything that waits is told. Called once, by the supervising task.
    pub fn end(&self, reason: Arc<str>) {
        let mut state = self.lock();
        state.ended = Some(Arc::clone(&reason));
        // Calls learn it by their sender's end and ask for the reason.
        state.calls.clear();
        for (_, mut sequence) in state.sequences.drain() {
            if let Some(end) = sequence.end.take() {
                let _ = end.send(RequestEnd::Worker(Arc::clone(&reason)));
            }
        }
        drop(state);
        self.ended.send_replace(Some(reason));
    }

    /// Reads until the end of the pipe; `Err` says what could not be understood.
    pub async fn read(&self, mut pipe: impl AsyncRead + Unpin) -> Result<(), String> {
        let mut frames = FrameReader::default();
        let mut log_limit = RateLimit::default();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let n = pipe.read(&mut buffer).await.map_err(|e| format!("its pipe broke: {e}"))?;
            if n == 0 {
                return Ok(());
            }
            frames.extend(&buffer[..n]);
            while let Some(message) = frames.next::<ToNode>().map_err(|e| format!("it sent garbage: {e}"))? {
                self.alive.send_replace(());
                self.take(message, &mut log_limit)?;
            }
        }
    }

    fn take(&self, message: ToNode, log_limit: &mut RateLimit) -> Result<(), String> {
        match message {
            ToNode::Opened(info) => self.answer(0, Ok(Answer::Opened(info))),
            ToNode::Estimated { call, estimate } => self.answer(call, Ok(Answer::Estimated(estimate))),
            ToNode::Loaded { call, loaded } => self.answer(call, Ok(Answer::Loaded(loaded))),
            ToNode::Tokenized { call, ids } => self.answer(call, Ok(Answer::Tokenized(ids))),
            // Nobody here asks for them yet.
            ToNode::Stats { .. } => {}
            ToNode::Failed { call, status } => self.answer(call, Err(status)),
            ToNode::Progress { phase: engine_protocol::Phase::Load, done, total } if total > 0 => {
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    reason = "a share for people"
                )]
                self.progress.send_replace((done as f64 / total as f64).clamp(0.0, 1.0) as f32);
            }
            ToNode::Progress { .. } => {}
            ToNode::Events(events) => {
                let mut state = self.lock();
                for event in events {
                    state.event(event.sequence, event.kind);
                }
            }
            ToNode::StepFailed { status } => {
                let mut state = self.lock();
                let running: Vec<SequenceId> = state.sequences.keys().copied().collect();
                for sequence in running {
                    state.event(sequence, EventKind::Failed { status: status.clone() });
                }
            }
            ToNode::Log { level, message, sequence } => {
                if log_limit.allows() {
                    self.log(level, &message, sequence);
                }
            }
        }
        Ok(())
    }

    /// An answer nobody waits for any more is dropped: its caller ran out of time.
    fn answer(&self, call: Call, answer: Result<Answer, Status>) {
        if let Some(sender) = self.lock().calls.remove(&call) {
            let _ = sender.send(answer);
        }
    }

    fn log(&self, level: LogLevel, message: &str, sequence: SequenceId) {
        let request_id =
            self.lock().sequences.get(&sequence).map(|s| s.request_id.clone()).unwrap_or_default();
        let message = &message[..message.floor_char_boundary(LOG_BYTES_MAX)];
        let (engine_id, engine_version, model) = (&self.engine_id, &self.engine_version, &self.model);
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(engine_id, engine_version, model, request_id, "{message}")
            };
        }
        match level {
            LogLevel::Error => line!(error),
            LogLevel::Warn => line!(warn),
            LogLevel::Info => line!(info),
            LogLevel::Debug => line!(debug),
            LogLevel::Trace => line!(trace),
        }
    }
}

impl State {
    fn event(&mut self, id: SequenceId, kind: EventKind) {
        // Of a sequence that was cancelled a token more may come.
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let last = matches!(kind, EventKind::Finished { .. } | EventKind::Failed { .. });
        match sequence.events.try_send(Ok(kind)) {
            Ok(()) if !last => {}
            Ok(()) => {
                self.sequences.remove(&id);
            }
            // The reader is gone, or it stopped reading; it cancels when it is dropped.
            Err(_) => {
                if let Some(end) = sequence.end.take() {
                    let _ = end.send(RequestEnd::Overflow);
                }
            }
        }
    }
}

/// The events of one sequence, to its end. Dropping them cancels the sequence.
#[derive(Debug)]
pub struct WorkerEvents {
    inner: SequenceEvents,
    sequence: SequenceId,
    worker: Arc<Worker>,
    done: bool,
}

impl WorkerEvents {
    pub(super) fn new(inner: SequenceEvents, sequence: SequenceId, worker: Arc<Worker>) -> WorkerEvents {
        WorkerEvents { inner, sequence, worker, done: false }
    }
}

impl Stream for WorkerEvents {
    type Item = Result<EventKind, RequestEnd>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        // What came before the end is delivered before it.
        match self.inner.events.poll_recv(cx) {
            Poll::Ready(Some(event)) => {
                if let Ok(EventKind::Finished { .. } | EventKind::Failed { .. }) | Err(_) = &event {
                    self.done = true;
                }
                return Poll::Ready(Some(event));
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        match Pin::new(&mut self.inner.end).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(end) => {
                self.done = true;
                let end = end.unwrap_or_else(|_| RequestEnd::Worker(self.worker.shared.end_reason()));
                Poll::Ready(Some(Err(end)))
            }
        }
    }
}

impl Drop for WorkerEvents {
    fn drop(&mut self) {
        self.worker.cancel(self.sequence);
    }
}

impl RequestEnd {
    /// As a status of the engine would say it.
    pub fn status(&self) -> Status {
        match self {
            RequestEnd::Worker(reason) => {
                Status::new(StatusCode::Internal, "worker_died", reason.to_string())
            }
            RequestEnd::Overflow => Status::new(
                StatusCode::Cancelled,
                "reader_too_slow",
                format!("{EVENTS_MAX} tokens were not read; the request was ended"),
            ),
        }
    }
}
