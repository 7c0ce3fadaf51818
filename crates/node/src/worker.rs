//! One engine worker: a process, the calls it answers and the sequences it runs.
//!
//! A [`Worker`] is the only handle on its process; dropping it kills the process. Everything that waits for the worker
//! is told when it ends, with its exit status and last words.

mod connection;
mod end;
mod last_words;
mod process;
mod starter;
mod watchdog;

pub use connection::{Call, RequestEnd, WorkerEvents};
pub use end::{EndCause, WorkerEnd};
pub use process::{WorkerSpec, start};
pub use watchdog::Limits as WatchdogLimits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_protocol::{
    DeviceBytes, EngineInfo, Estimate, LiteralRange, Loaded, Model, SequenceId, Settings, Stats, Status,
    Submit, ToWorker,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use connection::{Answer, Shared};

/// From start to the worker's hello: the program only has to be loaded.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// From the order to shut down to the kill.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages on their way to a worker. It takes them at once unless it hangs; each request has two.
pub const MESSAGES_MAX: usize = 4096;
/// Events of one request that its reader has not taken: a longest answer, so that only a reader that stopped loses it.
pub const EVENTS_MAX: usize = 1 << 17;

/// Why a worker did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    #[error("the worker program {program} cannot be started: {reason}")]
    Start { program: String, reason: String },
    #[error("{0}")]
    Hello(String),
    /// The engine's own answer.
    #[error("{0}")]
    Status(Status),
    /// It is gone, whatever the cause.
    #[error("{0}")]
    Ended(WorkerEnd),
    #[error("the request cannot be sent to the worker: {0}")]
    Send(String),
}

#[derive(Debug)]
pub struct Worker {
    pid: u32,
    shared: Arc<Shared>,
    outgoing: mpsc::Sender<Vec<u8>>,
    next: AtomicU64,
    /// Dropped with the handle: the supervising task then kills the process.
    _kill: DropGuard,
    kill: CancellationToken,
}

impl Worker {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, once it has: the process is reaped, and its memory is free.
    pub fn ended(&self) -> watch::Receiver<Option<WorkerEnd>> {
        self.shared.ended.subscribe()
    }

    /// Kills the process at once. Of several reasons the first is the one that is told.
    pub fn kill(&self, cause: EndCause, reason: impl Into<String>) {
        self.shared.expect_end(cause, reason);
        self.kill.cancel();
    }

    /// 0 to 1 while a model is loaded.
    pub fn progress(&self) -> watch::Receiver<f32> {
        self.shared.progress.subscribe()
    }

    pub async fn estimate(&self, model: Model, settings: Settings) -> Result<Estimate, WorkerError> {
        let call = self.number();
        let message = ToWorker::Estimate { call, model, settings };
        match self.call(call, &message, "estimate its memory").await? {
            Answer::Estimated(estimate) => Ok(estimate),
            other => Err(out_of_turn(&other)),
        }
    }

    pub async fn load(
        &self,
        model: Model,
        settings: Settings,
        budget: Vec<DeviceBytes>,
    ) -> Result<Loaded, WorkerError> {
        let call = self.number();
        let message = ToWorker::Load { call, model, settings, budget };
        match self.call(call, &message, "load the model").await? {
            Answer::Loaded(loaded) => Ok(loaded),
            other => Err(out_of_turn(&other)),
        }
    }

    pub async fn tokenize(&self, text: String, literal: Vec<LiteralRange>) -> Result<Vec<u32>, WorkerError> {
        let call = self.number();
        let message = ToWorker::Tokenize { call, text, literal };
        match self.call(call, &message, "tokenize a text").await? {
            Answer::Tokenized(ids) => Ok(ids),
            other => Err(out_of_turn(&other)),
        }
    }

    /// The engine's own counters, and the memory it counts.
    pub async fn stats(&self) -> Result<Stats, WorkerError> {
        let call = self.number();
        match self.call(call, &ToWorker::Stats { call }, "tell its counters").await? {
            Answer::Stats(stats) => Ok(*stats),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Starts a sequence, whose number is chosen here. Dropping the events cancels it.
    pub fn submit(self: &Arc<Self>, mut submit: Submit) -> Result<WorkerEvents, WorkerError> {
        let sequence: SequenceId = self.number();
        submit.sequence = sequence;
        let events =
            self.shared.open_sequence(sequence, submit.request_id.clone()).map_err(WorkerError::Ended)?;
        // Made before sending, so that the sequence is forgotten if it cannot be sent.
        let events = WorkerEvents::new(events, sequence, Arc::clone(self));
        if let Err(error) = self.send(&ToWorker::Submit(Box::new(submit))) {
            self.shared.forget_sequence(sequence);
            return Err(error);
        }
        Ok(events)
    }

    /// Asks the process to end, and kills it if it has not within [`SHUTDOWN_TIMEOUT`].
    pub async fn shut_down(&self) {
        let mut ended = self.ended();
        self.shared.expect_end(EndCause::Asked, "");
        let asked = self.send(&ToWorker::Shutdown);
        let done = timeout(SHUTDOWN_TIMEOUT, ended.wait_for(Option::is_some)).await.is_ok();
        if asked.is_err() || !done {
            tracing::warn!(
                engine_id = self.shared.engine_id,
                engine_version = self.shared.engine_version,
                model = self.shared.model,
                worker = self.pid,
                "the worker did not end when it was asked to, and is killed"
            );
            self.kill.cancel();
            // The supervising task reaps it and says so; it holds no lock that this could wait for.
            let _ = timeout(SHUTDOWN_TIMEOUT, ended.wait_for(Option::is_some)).await;
        }
    }

    fn cancel(&self, sequence: SequenceId) {
        if self.shared.close_sequence(sequence) {
            // A worker that takes no more messages is about to be ended by whoever waits for it.
            let _ = self.send(&ToWorker::Cancel { sequence });
        }
    }

    async fn open(&self, message: &ToWorker) -> Result<EngineInfo, WorkerError> {
        match self.call(0, message, "open the engine").await? {
            Answer::Opened(info) => Ok(info),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Waits for the answer. The watchdog bounds that: a worker that gives none is ended.
    async fn call(&self, call: Call, message: &ToWorker, what: &'static str) -> Result<Answer, WorkerError> {
        let answer = self.shared.open_call(call, what).map_err(WorkerError::Ended)?;
        if let Err(error) = self.send(message) {
            self.shared.forget_call(call);
            return Err(error);
        }
        self.take(answer.await)
    }

    fn take(
        &self,
        answer: Result<Result<Answer, Status>, oneshot::error::RecvError>,
    ) -> Result<Answer, WorkerError> {
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(WorkerError::Status(status)),
            Err(_) => Err(WorkerError::Ended(self.shared.end_reason())),
        }
    }

    fn send(&self, message: &ToWorker) -> Result<(), WorkerError> {
        let mut frame = Vec::new();
        engine_protocol::encode_frame(message, &mut frame).map_err(|e| WorkerError::Send(e.to_string()))?;
        self.outgoing.try_send(frame).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => {
                WorkerError::Send(format!("{MESSAGES_MAX} messages wait for it already"))
            }
            mpsc::error::TrySendError::Closed(_) => WorkerError::Ended(self.shared.end_reason()),
        })
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

fn out_of_turn(answer: &Answer) -> WorkerError {
    WorkerError::Send(format!("it answered with {}", answer.name()))
}
