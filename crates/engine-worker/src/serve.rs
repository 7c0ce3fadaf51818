//! The loop of the engine's thread: does what the node asks, steps while there is work, waits otherwise.

use std::time::Instant;

use engine_protocol::{
    CallId, Event, EventKind, FinishReason, LogLevel, Open, Phase, SequenceId, Status, StatusCode, Submit,
    ToNode, ToWorker,
};

use crate::abi_in::broken;
use crate::callbacks::{Heard, ProgressContext, SinkContext, sign_of_life};
use crate::engine::{Engine, Running};
use crate::error::WorkerError;
use crate::inbox::Inbox;
use crate::lifetime;
use crate::outbox::Outbox;

/// From this length on the node is told that a text is being worked on. Tokenizers take megabytes a second.
const LONG_TEXT_BYTES: usize = 64 << 10;

/// Returns when the node has asked for the end and the engine is closed.
///
/// # Errors
/// The engine's device has failed: no process that has used it can go on.
pub fn serve(inbox: &'static Inbox, outbox: &'static Outbox) -> Result<(), WorkerError> {
    let heard = Heard::default();
    let mut server = Server { inbox, outbox, engine: None, running: Running::new(), heard: &heard };
    loop {
        // Everything that waits is taken up before the next step, so that sequences join the batch together.
        let idle = server.running.is_empty();
        match inbox.take(idle) {
            Some(ToWorker::Shutdown) => break,
            Some(message) => server.handle(message),
            None => server.step()?,
        }
    }
    server.shut_down();
    Ok(())
}

struct Server<'a> {
    inbox: &'static Inbox,
    outbox: &'static Outbox,
    engine: Option<Engine>,
    running: Running,
    heard: &'a Heard,
}

impl Server<'_> {
    fn handle(&mut self, message: ToWorker) {
        // While sequences decode the node gives the engine's thread little time between two signs of life. A long text has
        // to be tokenized in one go.
        if message.text_bytes() >= LONG_TEXT_BYTES {
            self.heard.set(None);
            sign_of_life(self.outbox, self.heard, Phase::Call, 0, 0);
        }
        match message {
            ToWorker::Open(open) => self.open(&open),
            ToWorker::Estimate { call, model, settings } => self.answer(call, |engine| {
                Ok(ToNode::Estimated { call, estimate: engine.estimate(&model, &settings)? })
            }),
            ToWorker::Load { call, model, settings, budget } => {
                let progress = ProgressContext::new(self.inbox, self.outbox, Phase::Load, self.heard);
                self.answer(call, |engine| {
                    Ok(ToNode::Loaded { call, loaded: engine.load(&model, &settings, &budget, &progress)? })
                });
            }
            ToWorker::Tokenize { call, text, literal } => self.answer(call, |engine| {
                Ok(ToNode::Tokenized { call, ids: engine.tokenize(&text, &literal)? })
            }),
            ToWorker::Stats { call } => {
                self.answer(call, |engine| Ok(ToNode::Stats { call, stats: engine.stats()? }));
            }
            ToWorker::Submit(submit) => self.submit(&submit),
            ToWorker::Cancel { sequence } => {
                if let Some(engine) = &mut self.engine {
                    engine.cancel(sequence);
                }
            }
            ToWorker::Shutdown => unreachable!("ends the loop"),
        }
        // Plugins print through buffered streams; what they print belongs to what just happened.
        lifetime::flush_c_streams();
    }

    fn open(&mut self, open: &Open) {
        let opened = if self.engine.is_some() {
            Err(Status::new(StatusCode::Unsupported, "already_opened", "this worker has an engine already"))
        } else {
            Engine::open(open, self.outbox).and_then(|mut engine| {
                let info = engine.info()?;
                self.inbox.set_canceller(Some(engine.canceller()));
                self.engine = Some(engine);
                Ok(info)
            })
        };
        self.outbox.send(&match opened {
            Ok(info) => ToNode::Opened(info),
            Err(status) => ToNode::Failed { call: 0, status },
        });
    }

    fn answer(&mut self, call: CallId, work: impl FnOnce(&mut Engine) -> Result<ToNode, Status>) {
        let answer = self.engine().and_then(work).unwrap_or_else(|status| ToNode::Failed { call, status });
        self.outbox.send(&answer);
    }

    fn engine(&mut self) -> Result<&mut Engine, Status> {
        self.engine.as_mut().ok_or_else(|| {
            Status::new(StatusCode::Unsupported, "engine_not_opened", "open an engine before anything else")
        })
    }

    fn submit(&mut self, submit: &Submit) {
        let sequence = submit.sequence;
        let accepted = if self.running.contains_key(&sequence) {
            Err(Status::new(
                StatusCode::Unsupported,
                engine_abi::REASON_SEQUENCE_EXISTS,
                format!("sequence {sequence} is running already"),
            ))
        } else {
            self.engine().and_then(|engine| engine.submit(submit))
        };
        match accepted {
            Ok(()) => {
                self.running.insert(sequence, 0);
            }
            Err(status) => self.send_events(vec![Event { sequence, kind: EventKind::Failed { status } }]),
        }
    }

    fn step(&mut self) -> Result<(), WorkerError> {
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let progress = ProgressContext::new(self.inbox, self.outbox, Phase::Step, self.heard);
        let mut sink = SinkContext {
            running: &mut self.running,
            embedding_size: engine.embedding_size(),
            events: Vec::new(),
            complaints: Vec::new(),
        };
        let outcome = engine.step(&progress, &mut sink);
        let SinkContext { events, complaints, .. } = sink;
        if events.is_empty() {
            // Steps of a long prompt give no events; that they go by is a sign of life.
            sign_of_life(self.outbox, self.heard, Phase::Step, 0, 0);
        } else {
            self.heard.set(Some(Instant::now()));
            self.send_events(events);
        }
        for complaint in complaints {
            self.outbox.log(LogLevel::Error, broken(complaint).message, 0);
        }
        match outcome {
            Ok(0) if !self.running.is_empty() => {
                let status = broken("it has no more work for sequences that have not ended".to_owned());
                self.end_all(|_| EventKind::Failed { status: status.clone() });
            }
            Ok(_) => {}
            // The node asked for the end: what is left ends in `shut_down`, in an orderly way.
            Err(status) if status.code == StatusCode::Cancelled && self.inbox.stopping() => {}
            // Its sequences have no last event: to the node they were aboard a worker that died.
            Err(status) if status.reason == engine_abi::REASON_DEVICE_FAILED => {
                return Err(WorkerError::DeviceFailed(status.message.to_string()));
            }
            Err(status) => {
                self.running.clear();
                self.outbox.send(&ToNode::StepFailed { status });
            }
        }
        if self.running.is_empty() {
            lifetime::flush_c_streams();
        }
        Ok(())
    }

    fn shut_down(mut self) {
        self.end_all(|completion_tokens| EventKind::Finished {
            reason: FinishReason::Cancelled,
            completion_tokens,
        });
        // Nobody cancels any more, so the engine can go.
        self.inbox.set_canceller(None);
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
    }

    /// Ends every sequence in the worker's own name.
    fn end_all(&mut self, kind: impl Fn(u32) -> EventKind) {
        let mut ended: Vec<(SequenceId, u32)> = self.running.drain().collect();
        ended.sort_unstable();
        let events: Vec<Event> =
            ended.into_iter().map(|(sequence, tokens)| Event { sequence, kind: kind(tokens) }).collect();
        if !events.is_empty() {
            self.send_events(events);
        }
    }

    fn send_events(&self, events: Vec<Event>) {
        self.outbox.send(&ToNode::Events(events));
    }
}
