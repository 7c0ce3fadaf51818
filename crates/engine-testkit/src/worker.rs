//! A worker process and a blocking client of its protocol.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use engine_protocol::{
    CallId, Event, EventKind, FrameReader, HELLO_BYTES, Hello, LogLevel, Model, Open, PROTOCOL_VERSION,
    SequenceId, Settings, Status, Submit, ToNode, ToWorker, Token, encode_frame, is_worker_variable,
};

use crate::manifest::Manifest;

/// How long any single answer may take. Generous: test machines are slow and shared.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a wait that cannot be woken looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const STDERR_LINES_MAX: usize = 10_000;

/// A worker that said hello. Killed when dropped.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Result<ToNode>>,
    /// Read but not asked for yet.
    kept: VecDeque<ToNode>,
    stderr: Arc<Mutex<Vec<String>>>,
    stderr_ended: Receiver<()>,
    pub hello: Hello,
    next_call: CallId,
}

/// What a sequence came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub events: Vec<EventKind>,
}

impl Reply {
    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.events.iter().filter_map(|e| if let EventKind::Token(t) = e { Some(t) } else { None })
    }

    pub fn ids(&self) -> Vec<u32> {
        self.tokens().map(|t| t.id).collect()
    }

    /// The bytes of all tokens that are text.
    pub fn text(&self) -> Vec<u8> {
        self.tokens().filter(|t| !t.control).flat_map(|t| t.bytes.iter().copied()).collect()
    }

    pub fn last(&self) -> &EventKind {
        self.events.last().expect("a reply ends with an event")
    }

    pub fn failure(&self) -> Option<&Status> {
        if let EventKind::Failed { status } = self.last() { Some(status) } else { None }
    }
}

impl Worker {
    /// Starts a worker program (with these arguments) and exchanges hello.
    pub fn start(program: &Path, arguments: &[&str]) -> Result<Worker> {
        Worker::start_as(program, arguments, PROTOCOL_VERSION)
    }

    /// The same with another protocol version.
    pub fn start_as(program: &Path, arguments: &[&str], protocol_version: u32) -> Result<Worker> {
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(std::env::vars().filter(|(name, _)| is_worker_variable(name)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        let input = child.stdin.take().context("stdin is a pipe")?;
        let output = child.stdout.take().context("stdout is a pipe")?;
        let errors = child.stderr.take().context("stderr is a pipe")?;
        let (hello_sender, hello_receiver) = channel();
        let (sender, messages) = channel();
        thread::spawn(move || {
            let mut output = output;
            let mut hello = [0; HELLO_BYTES];
            let read = output.read_exact(&mut hello).context("the worker said no hello");
            let said = read.and_then(|()| Ok(Hello::from_bytes(hello)?));
            if hello_sender.send(said).is_err() {
                return;
            }
            let mut frames = FrameReader::default();
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                frames.extend(&buffer[..count]);
                loop {
                    let message = match frames.next::<ToNode>() {
                        Ok(None) => break,
                        Ok(Some(message)) => Ok(message),
                        Err(error) => Err(error.into()),
                    };
                    let broken = message.is_err();
                    if sender.send(message).is_err() || broken {
                        return;
                    }
                }
            }
        });
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let (stderr_end, stderr_ended) = channel();
        let lines = Arc::clone(&stderr);
        thread::spawn(move || {
            for line in BufReader::new(errors).split(b'\n').map_while(Result::ok).take(STDERR_LINES_MAX) {
                let line = String::from_utf8_lossy(&line).into_owned();
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
            drop(stderr_end);
        });
        let mut worker = Worker {
            child,
            input: Some(input),
            messages,
            kept: VecDeque::new(),
            stderr,
            stderr_ended,
            hello: Hello { protocol_version: 0, process_id: 0 },
            next_call: 1,
        };
        worker.write(&Hello { protocol_version, process_id: std::process::id() }.to_bytes())?;
        worker.hello = hello_receiver
            .recv_timeout(ANSWER_TIMEOUT)
            .context("no hello in time")?
            .with_context(|| format!("stderr: {:?}", worker.stderr_lines()))?;
        Ok(worker)
    }

    /// Opens the engine of a folder as its manifest describes it.
    pub fn open(&mut self, engine_dir: &Path) -> Result<Result<engine_protocol::EngineInfo, Status>> {
        let manifest = Manifest::read(engine_dir)?;
        let library = manifest.library_path(engine_dir)?;
        self.open_as(Open {
            library: library.to_str().context("a path that is not UTF-8")?.to_owned(),
            engine_id: manifest.id,
            engine_version: manifest.version,
            log_level: LogLevel::Trace,
        })
    }

    pub fn open_as(&mut self, open: Open) -> Result<Result<engine_protocol::EngineInfo, Status>> {
        self.send(&ToWorker::Open(open))?;
        self.wait_for(|message| match message {
            ToNode::Opened(info) => Ok(Ok(info)),
            ToNode::Failed { call: 0, status } => Ok(Err(status)),
            other => Err(other),
        })
    }

    pub fn estimate(
        &mut self,
        model: &Model,
        settings: &Settings,
    ) -> Result<Result<engine_protocol::Estimate, Status>> {
        let call = self.call();
        self.send(&ToWorker::Estimate { call, model: model.clone(), settings: settings.clone() })?;
        self.wait_for(answer_to(call, |message| match message {
            ToNode::Estimated { call: c, estimate } if c == call => Ok(estimate),
            other => Err(other),
        }))
    }

    pub fn load(
        &mut self,
        model: &Model,
        settings: &Settings,
        budget: &[engine_protocol::DeviceBytes],
    ) -> Result<Result<engine_protocol::Loaded, Status>> {
        let call = self.start_load(model, settings, budget)?;
        self.wait_for(answer_to(call, |message| match message {
            ToNode::Loaded { call: c, loaded } if c == call => Ok(loaded),
            other => Err(other),
        }))
    }

    pub fn start_load(
        &mut self,
        model: &Model,
        settings: &Settings,
        budget: &[engine_protocol::DeviceBytes],
    ) -> Result<CallId> {
        let call = self.call();
        let (model, settings, budget) = (model.clone(), settings.clone(), budget.to_vec());
        self.send(&ToWorker::Load { call, model, settings, budget })?;
        Ok(call)
    }

    pub fn tokenize(
        &mut self,
        text: &str,
        literal: &[engine_protocol::LiteralRange],
    ) -> Result<Result<Vec<u32>, Status>> {
        let call = self.call();
        self.send(&ToWorker::Tokenize { call, text: text.to_owned(), literal: literal.to_vec() })?;
        self.wait_for(answer_to(call, |message| match message {
            ToNode::Tokenized { call: c, ids } if c == call => Ok(ids),
            other => Err(other),
        }))
    }

    pub fn stats(&mut self) -> Result<Result<engine_protocol::Stats, Status>> {
        let call = self.call();
        self.send(&ToWorker::Stats { call })?;
        self.wait_for(answer_to(call, |message| match message {
            ToNode::Stats { call: c, stats } if c == call => Ok(stats),
            other => Err(other),
        }))
    }

    /// Submits a sequence and collects its events to the last.
    pub fn run(&mut self, submit: Submit) -> Result<Reply> {
        let sequence = submit.sequence;
        self.send(&ToWorker::Submit(Box::new(submit)))?;
        self.collect(sequence)
    }

    /// The events of a sequence that was submitted, to the last. Those of others are kept.
    pub fn collect(&mut self, sequence: SequenceId) -> Result<Reply> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut events = Vec::new();
        let mut at = 0;
        loop {
            if at == self.kept.len() {
                let message = self.receive(deadline)?;
                self.kept.push_back(message);
            }
            match &mut self.kept[at] {
                ToNode::StepFailed { status } => bail!("a step failed: {status}"),
                ToNode::Events(batch) => {
                    let (ours, others): (Vec<Event>, Vec<Event>) =
                        std::mem::take(batch).into_iter().partition(|e| e.sequence == sequence);
                    events.extend(ours.into_iter().map(|e| e.kind));
                    if others.is_empty() {
                        self.kept.remove(at);
                    } else {
                        *batch = others;
                        at += 1;
                    }
                }
                _ => at += 1,
            }
            if matches!(events.last(), Some(EventKind::Finished { .. } | EventKind::Failed { .. })) {
                return Ok(Reply { events });
            }
        }
    }

    /// The first message, kept or new, that `pick` takes; the others stay, in order.
    pub fn wait_for<T>(&mut self, mut pick: impl FnMut(ToNode) -> Result<T, ToNode>) -> Result<T> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut passed = VecDeque::new();
        let found = loop {
            let message = match self.kept.pop_front() {
                Some(message) => message,
                None => match self.receive(deadline) {
                    Ok(message) => message,
                    Err(error) => break Err(error),
                },
            };
            match pick(message) {
                Ok(found) => break Ok(found),
                Err(other) => passed.push_back(other),
            }
        };
        // What was passed over comes before what was not looked at.
        passed.append(&mut self.kept);
        self.kept = passed;
        found
    }

    /// Looks through what was read and not asked for, without waiting.
    pub fn find_kept<T>(&self, look: impl FnMut(&ToNode) -> Option<T>) -> Option<T> {
        self.kept.iter().find_map(look)
    }

    /// The next message as it comes.
    pub fn next_message(&mut self) -> Result<ToNode> {
        self.wait_for(Ok)
    }

    fn receive(&mut self, deadline: Instant) -> Result<ToNode> {
        match self.messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(message) => message.context("the worker's pipe has something else than frames"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("no answer in {} s; stderr: {:?}", ANSWER_TIMEOUT.as_secs(), self.stderr_lines())
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.wait_exit();
                bail!("the worker is gone ({status:?}); stderr: {:?}", self.stderr_lines())
            }
        }
    }

    pub fn send(&mut self, message: &ToWorker) -> Result<()> {
        let mut bytes = Vec::new();
        encode_frame(message, &mut bytes)?;
        self.write(&bytes)
    }

    /// Several messages in one write.
    pub fn send_all(&mut self, messages: &[ToWorker]) -> Result<()> {
        let mut bytes = Vec::new();
        for message in messages {
            encode_frame(message, &mut bytes)?;
        }
        self.write(&bytes)
    }

    /// Bytes as they are, for saying what no node would.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let input = self.input.as_mut().context("the worker's input is closed")?;
        input.write_all(bytes).and_then(|()| input.flush()).context("the worker does not read")
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits for the process to end by itself.
    pub fn wait_exit(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // What it wrote last is still on its way through the pipe.
                let _ = self.stderr_ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("the worker did not end in {} s", ANSWER_TIMEOUT.as_secs());
            }
            thread::park_timeout(LOOK_AGAIN);
        }
    }

    /// Asks for the end and waits for it.
    pub fn shut_down(&mut self) -> Result<ExitStatus> {
        self.send(&ToWorker::Shutdown)?;
        self.wait_exit()
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub fn stderr_lines(&self) -> Vec<String> {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn call(&mut self) -> CallId {
        self.next_call += 1;
        self.next_call
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Picks the answer of a call, or its failure.
fn answer_to<T>(
    call: CallId,
    mut pick: impl FnMut(ToNode) -> Result<T, ToNode>,
) -> impl FnMut(ToNode) -> Result<Result<T, Status>, ToNode> {
    move |message| match message {
        ToNode::Failed { call: c, status } if c == call => Ok(Err(status)),
        other => pick(other).map(Ok),
    }
}
