//! What a worker says, and to whom it goes.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use engine_protocol::{
    EngineInfo, Estimate, EventKind, FrameReader, Loaded, LogLevel, Phase, SequenceId, Stats, Status,
    StatusCode, ToNode,
};
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::end::{EndCause, WorkerEnd};
use super::last_words::RateLimit;
use super::watchdog::{self, Hang, Limits, Watchdog};
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
    Stats(Box<Stats>),
}

impl Answer {
    pub fn name(&self) -> &'static str {
        match self {
            Answer::Opened(_) => "an opened engine",
            Answer::Estimated(_) => "an estimate",
            Answer::Loaded(_) => "a loaded model",
            Answer::Tokenized(_) => "token ids",
            Answer::Stats(_) => "counters",
        }
    }
}

/// Why a sequence ended without the engine ending it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestEnd {
    /// The worker is gone.
    Worker(WorkerEnd),
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
    pub ended: watch::Sender<Option<WorkerEnd>>,
    /// Something is asked of a worker that had nothing to do.
    woken: Notify,
}

#[derive(Debug)]
struct State {
    calls: HashMap<Call, oneshot::Sender<Result<Answer, Status>>>,
    sequences: HashMap<SequenceId, Sequence>,
    watchdog: Watchdog,
    ended: Option<WorkerEnd>,
    /// Why it is about to be ended by us: the first reason counts.
    ending: Option<(EndCause, String)>,
}

#[derive(Debug)]
struct Sequence {
    request_id: String,
    events: mpsc::Sender<Result<EventKind, RequestEnd>>,
    end: Option<oneshot::Sender<RequestEnd>>,
    /// Its reader has gone; it is kept for the request id of log lines until the worker ends it.
    cancelled: bool,
}

#[derive(Debug)]
pub(super) struct SequenceEvents {
    events: mpsc::Receiver<Result<EventKind, RequestEnd>>,
    end: oneshot::Receiver<RequestEnd>,
    /// The end has come; events may still be before it.
    ended: Option<RequestEnd>,
}

impl SequenceEvents {
    /// The next event, or the end behind the last; `reason` words an end that nobody told.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        reason: impl FnOnce() -> WorkerEnd,
    ) -> Poll<Result<EventKind, RequestEnd>> {
        if let Poll::Ready(Some(event)) = self.events.poll_recv(context) {
            return Poll::Ready(event);
        }
        let end = match self.ended.take() {
            Some(end) => end,
            None => match Pin::new(&mut self.end).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(end) => end.unwrap_or_else(|_| RequestEnd::Worker(reason())),
            },
        };
        // Between the two looks above events may have come, and the end behind them.
        match self.events.try_recv() {
            Ok(event) => {
                self.ended = Some(end);
                Poll::Ready(event)
            }
            Err(_) => Poll::Ready(Err(end)),
        }
    }
}

impl Shared {
    pub fn new(engine_id: String, engine_version: String, model: String, limits: Limits) -> Shared {
        Shared {
            engine_id,
            engine_version,
            model,
            state: Mutex::new(State {
                calls: HashMap::new(),
                sequences: HashMap::new(),
                watchdog: Watchdog::new(limits, Instant::now()),
                ended: None,
                ending: None,
            }),
            progress: watch::Sender::new(0.0),
            ended: watch::Sender::new(None),
            woken: Notify::new(),
        }
    }

    /// Nothing that holds the lock can panic half way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open_call(
        &self,
        call: Call,
        what: &'static str,
    ) -> Result<oneshot::Receiver<Result<Answer, Status>>, WorkerEnd> {
        let mut state = self.lock();
        if let Some(end) = &state.ended {
            return Err(end.clone());
        }
        let (sender, receiver) = oneshot::channel();
        state.calls.insert(call, sender);
        state.watchdog.asked(call, what, Instant::now());
        self.woken.notify_one();
        Ok(receiver)
    }

    /// It could not be sent.
    pub fn forget_call(&self, call: Call) {
        let mut state = self.lock();
        state.calls.remove(&call);
        state.watchdog.forget_call(call);
    }

    pub fn open_sequence(
        &self,
        sequence: SequenceId,
        request_id: String,
    ) -> Result<SequenceEvents, WorkerEnd> {
        let mut state = self.lock();
        if let Some(end) = &state.ended {
            return Err(end.clone());
        }
        let (events_in, events) = mpsc::channel(EVENTS_MAX);
        let (end_in, end) = oneshot::channel();
        let opened = Sequence { request_id, events: events_in, end: Some(end_in), cancelled: false };
        state.sequences.insert(sequence, opened);
        state.watchdog.submitted(sequence, Instant::now());
        self.woken.notify_one();
        Ok(SequenceEvents { events, end, ended: None })
    }

    /// Its reader has gone. Whether the worker still runs it, and is to be told.
    pub fn close_sequence(&self, sequence: SequenceId) -> bool {
        match self.lock().sequences.get_mut(&sequence) {
            Some(sequence) => !std::mem::replace(&mut sequence.cancelled, true),
            None => false,
        }
    }

    /// It could not be sent.
    pub fn forget_sequence(&self, sequence: SequenceId) {
        let mut state = self.lock();
        state.sequences.remove(&sequence);
        state.watchdog.ended(sequence);
    }

    /// What is to be said of its end, unless there is a reason already.
    pub fn expect_end(&self, cause: EndCause, reason: impl Into<String>) {
        self.lock().ending.get_or_insert_with(|| (cause, reason.into()));
    }

    pub fn ending(&self) -> Option<(EndCause, String)> {
        self.lock().ending.clone()
    }

    /// How it ended; of one that takes no more messages and is not reaped yet, what is known.
    pub fn end_reason(&self) -> WorkerEnd {
        let state = self.lock();
        state.ended.clone().unwrap_or_else(|| WorkerEnd {
            cause: state.ending.as_ref().map_or(EndCause::Crashed, |(cause, _)| *cause),
            reason: format!("the worker of engine {} is ending", self.engine_id).into(),
        })
    }

    /// Everything that waits is told. Called once, by the supervising task.
    pub fn end(&self, end: WorkerEnd) {
        let mut state = self.lock();
        state.ended = Some(end.clone());
        // Calls learn it by their sender's end and ask for the reason.
        state.calls.clear();
        state.watchdog.all_ended();
        for (_, mut sequence) in state.sequences.drain() {
            if let Some(sender) = sequence.end.take() {
                let _ = sender.send(RequestEnd::Worker(end.clone()));
            }
        }
        drop(state);
        self.ended.send_replace(Some(end));
    }

    /// Returns when the worker hangs.
    pub async fn watch(&self) -> Hang {
        loop {
            let hang = {
                let mut state = self.lock();
                let hang = state.watchdog.check(Instant::now());
                hang.map_or_else(|| Err(state.watchdog.idle()), Ok)
            };
            match hang {
                Ok(hang) => return hang,
                // A permit is kept for a wake-up that comes in between.
                Err(true) => self.woken.notified().await,
                Err(false) => tokio::time::sleep(watchdog::CHECK_INTERVAL).await,
            }
        }
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
            ToNode::Stats { call, stats } => self.answer(call, Ok(Answer::Stats(Box::new(stats)))),
            ToNode::Failed { call, status } => self.answer(call, Err(status)),
            ToNode::Progress { phase, done, total } => {
                self.lock().watchdog.progress(phase, done, Instant::now());
                if phase == Phase::Load && total > 0 {
                    self.progress.send_replace(share(done, total));
                }
            }
            ToNode::Events(events) => {
                let (mut state, now) = (self.lock(), Instant::now());
                for event in events {
                    state.event(event.sequence, event.kind, now);
                }
            }
            ToNode::StepFailed { status } => {
                let (mut state, now) = (self.lock(), Instant::now());
                let running: Vec<SequenceId> = state.sequences.keys().copied().collect();
                for sequence in running {
                    state.event(sequence, EventKind::Failed { status: status.clone() }, now);
                }
                state.watchdog.all_ended();
            }
            ToNode::Log { level, message, sequence } => {
                if log_limit.allows() {
                    self.log(level, &message, sequence);
                }
            }
        }
        Ok(())
    }

    /// An answer nobody waits for any more is dropped: its caller has gone.
    fn answer(&self, call: Call, answer: Result<Answer, Status>) {
        let mut state = self.lock();
        let result = !matches!(answer, Ok(Answer::Stats(_)));
        state.watchdog.answered(call, result, Instant::now());
        if let Some(sender) = state.calls.remove(&call) {
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
    fn event(&mut self, id: SequenceId, kind: EventKind, now: Instant) {
        if matches!(kind, EventKind::Token(_)) {
            self.watchdog.token(id, now);
        } else {
            self.watchdog.event(now);
        }
        let last = matches!(kind, EventKind::Finished { .. } | EventKind::Failed { .. });
        if last {
            self.watchdog.ended(id);
        }
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        // Of a sequence that was cancelled a token more may come; of one that overflowed nothing may follow the gap.
        if !sequence.cancelled
            && sequence.end.is_some()
            && sequence.events.try_send(Ok(kind)).is_err()
            // The reader is gone, or it stopped reading; it cancels when it is dropped.
            && let Some(end) = sequence.end.take()
        {
            let _ = end.send(RequestEnd::Overflow);
        }
        if last {
            self.sequences.remove(&id);
        }
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a share for people")]
fn share(done: u64, total: u64) -> f32 {
    (done as f64 / total as f64).clamp(0.0, 1.0) as f32
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
        let this = &mut *self;
        // What came before the end is delivered before it.
        let event = std::task::ready!(this.inner.poll(cx, || this.worker.shared.end_reason()));
        this.done = matches!(event, Ok(EventKind::Finished { .. } | EventKind::Failed { .. }) | Err(_));
        Poll::Ready(Some(event))
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
            RequestEnd::Worker(end) => {
                Status::new(StatusCode::Internal, "worker_died", end.reason.to_string())
            }
            RequestEnd::Overflow => Status::new(
                StatusCode::Cancelled,
                "reader_too_slow",
                format!("{EVENTS_MAX} tokens were not read; the request was ended"),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
