//! One engine worker: a process, the calls it answers and the sequences it runs.
//!
//! A [`Worker`] is the only handle on its process; dropping it kills the process. Everything that waits for the worker
//! is told when it ends, with its exit status and last words.

mod connection;
mod last_words;
mod process;
mod starter;

pub use connection::{Call, WorkerEvents};
pub use process::{WorkerSpec, start};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_protocol::{
    DeviceBytes, EngineInfo, Estimate, LiteralRange, Loaded, Model, SequenceId, Settings, Status, Submit,
    ToWorker,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use connection::{Answer, Shared};

/// From start to the worker's hello: the program only has to be loaded.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// For opening the plugin: drivers may compile kernels at their first use.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// For an estimate, which reads headers only.
pub const ESTIMATE_TIMEOUT: Duration = Duration::from_secs(60);
/// A load that reports no progress for this long has failed.
pub const LOAD_SILENCE_MAX: Duration = Duration::from_secs(120);
/// For a text to be tokenized; it waits for the step that runs.
pub const TOKENIZE_TIMEOUT: Duration = Duration::from_secs(60);
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
    /// With the exit status and last words.
    #[error("{0}")]
    Ended(Arc<str>),
    #[error("the worker gave no sign of life for {} s while it was to {what}", after.as_secs())]
    Silent { what: &'static str, after: Duration },
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

    /// Why it ended, once it has.
    pub fn ended(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.shared.ended.subscribe()
    }

    /// 0 to 1 while a model is loaded.
    pub fn progress(&self) -> watch::Receiver<f32> {
        self.shared.progress.subscribe()
    }

    pub async fn estimate(&self, model: Model, settings: Settings) -> Result<Estimate, WorkerError> {
        let call = self.number();
        let message = ToWorker::Estimate { call, model, settings };
        match self.call(call, &message, "estimate its memory", ESTIMATE_TIMEOUT).await? {
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
        let mut answer = self.send_call(call, &ToWorker::Load { call, model, settings, budget })?;
        let mut alive = self.shared.alive.subscribe();
        loop {
            tokio::select! {
                answer = &mut answer => return match self.take(answer)? {
                    Answer::Loaded(loaded) => Ok(loaded),
                    other => Err(out_of_turn(&other)),
                },
                silent = timeout(LOAD_SILENCE_MAX, alive.changed()) => {
                    if silent.is_err() {
                        return Err(WorkerError::Silent { what: "load the model", after: LOAD_SILENCE_MAX });
                    }
                }
            }
        }
    }

    pub async fn tokenize(&self, text: String, literal: Vec<LiteralRange>) -> Result<Vec<u32>, WorkerError> {
        let call = self.number();
        let message = ToWorker::Tokenize { call, text, literal };
        match self.call(call, &message, "tokenize", TOKENIZE_TIMEOUT).await? {
            Answer::Tokenized(ids) => Ok(ids),
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
        self.send(&ToWorker::Submit(Box::new(submit)))?;
        Ok(events)
    }

    /// Asks the process to end, and kills it if it does not.
    pub async fn shut_down(&self) {
        let mut ended = self.ended();
        self.shared.expect_end();
        let asked = self.send(&ToWorker::Shutdown);
        let done = timeout(SHUTDOWN_TIMEOUT, ended.wait_for(Option::is_some)).await.is_ok();
        if asked.is_err() || !done {
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
        match self.call(0, message, "open the engine", OPEN_TIMEOUT).await? {
            Answer::Opened(info) => Ok(info),
            other => Err(out_of_turn(&other)),
        }
    }

    async fn call(
        &self,
        call: Call,
        message: &ToWorker,
        what: &'static str,
        after: Duration,
    ) -> Result<Answer, WorkerError> {
        let answer = self.send_call(call, message)?;
        let answer = timeout(after, answer).await.map_err(|_| {
            self.shared.forget_call(call);
            WorkerError::Silent { what, after }
        })?;
        self.take(answer)
    }

    fn send_call(
        &self,
        call: Call,
        message: &ToWorker,
    ) -> Result<oneshot::Receiver<Result<Answer, Status>>, WorkerError> {
        let answer = self.shared.open_call(call).map_err(WorkerError::Ended)?;
        self.send(message)?;
        Ok(answer)
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
