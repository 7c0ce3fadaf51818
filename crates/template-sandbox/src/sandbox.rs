//! The router's side: a pool of warm children.

use std::collections::HashSet;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chat::{RenderError, RenderRequest, Rendered, TemplateSource};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::cpu_time::cpu_time;
use crate::protocol::{
    self, ANSWER_BYTES_MAX, Answer, Ask, EXIT_MEMORY, EXIT_NO_CAP, EXIT_TIME, REQUEST_BYTES_MAX, Schema,
};

/// What a template may take of the processor, from when the child has read the request. On a machine with time to spare
/// that is the time on the wall as well.
const RENDER_DEADLINE: Duration = Duration::from_millis(100);
/// What it may take on the wall when the machine is too busy to give the child its share.
const BUSY_DEADLINE: Duration = Duration::from_secs(1);
/// Between two looks at the processor time of a child that is late.
const LATE_PAUSE: Duration = Duration::from_millis(20);
const _: () = assert!(RENDER_DEADLINE.as_millis() < BUSY_DEADLINE.as_millis());
/// What a child may take to start, and to read a request.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// For the bytes of a message to pass the pipe.
const PIPE_DEADLINE: Duration = Duration::from_secs(5);
/// For a killed child to be gone.
const END_DEADLINE: Duration = Duration::from_secs(1);
/// Renderings at once. One takes less than a millisecond.
const CHILDREN_MAX: usize = 4;
/// How long a request waits for a child.
const QUEUE_DEADLINE: Duration = Duration::from_secs(5);
/// Templates a child is assumed to know; it says so when it does not.
const KNOWN_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The template or the request is at fault; limits overrun are here too.
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error("no template worker was free for {} s", QUEUE_DEADLINE.as_secs())]
    Busy,
    #[error("template worker {} cannot be started", exe.display())]
    Start { exe: PathBuf, source: io::Error },
    #[error("template worker {} ended with {status} before it was asked; is it this version of llm-router?", exe.display())]
    Ended { exe: PathBuf, status: String },
    #[error("template worker does not answer")]
    Pipe(#[source] io::Error),
}

/// Children that render templates. Dropping it ends them.
pub struct TemplateSandbox {
    exe: PathBuf,
    arguments: Vec<OsString>,
    idle: Mutex<Vec<Worker>>,
    free: Semaphore,
}

struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    is_greeted: bool,
    /// Templates it was given.
    known: HashSet<String>,
    nonce: u64,
}

/// How one request to one child went wrong.
enum Broken {
    /// Before the template ran: another child may do better.
    Before(io::Error),
    /// While it ran.
    Overrun,
    During(io::Error),
}

impl TemplateSandbox {
    /// `exe` is the router's own binary (`std::env::current_exe`).
    pub fn new(exe: PathBuf) -> TemplateSandbox {
        TemplateSandbox::with_arguments(exe, vec!["template-worker".into()])
    }

    /// For binaries that start [`crate::worker_main`] in another way.
    pub fn with_arguments(exe: PathBuf, arguments: Vec<OsString>) -> TemplateSandbox {
        TemplateSandbox { exe, arguments, idle: Mutex::new(Vec::new()), free: Semaphore::new(CHILDREN_MAX) }
    }

    /// Starts one child ahead of the first request and waits until it is ready.
    pub async fn warm(&self) -> Result<(), SandboxError> {
        let mut worker = self.start()?;
        match worker.greet().await {
            Ok(()) => {
                self.put_back(worker);
                Ok(())
            }
            Err(error) => Err(self.ended(worker, error).await),
        }
    }

    /// The prompt of a request; see [`chat::Template::render`].
    pub async fn render(
        &self,
        source: &TemplateSource,
        request: &RenderRequest,
    ) -> Result<Rendered, SandboxError> {
        self.render_checked(source, request, &[]).await
    }

    /// As [`TemplateSandbox::render`], of a request whose schemas can all be kept to; see [`grammar::check`].
    pub async fn render_checked(
        &self,
        source: &TemplateSource,
        request: &RenderRequest,
        schemas: &[Schema],
    ) -> Result<Rendered, SandboxError> {
        let permit = timeout(QUEUE_DEADLINE, self.free.acquire()).await.map_err(|_| SandboxError::Busy)?;
        let _permit = permit.map_err(|_| SandboxError::Busy)?;
        let id = source.id();
        // A child that died in the pool is found out when it is asked; a new one is tried once.
        for is_last in [false, true] {
            let mut worker = match if is_last { None } else { self.take() } {
                Some(worker) => worker,
                None => self.start()?,
            };
            match worker.ask(&id, source, request, schemas).await {
                Ok(result) => {
                    self.put_back(worker);
                    return Ok(result?);
                }
                Err(Broken::Before(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.put_back(worker);
                    return Err(RenderError::Request {
                        param: "messages".to_owned(),
                        message: format!("{error}; shorten the conversation"),
                    }
                    .into());
                }
                Err(Broken::Before(error)) => {
                    let ended = self.ended(worker, error).await;
                    if is_last {
                        return Err(ended);
                    }
                    tracing::warn!(error = %ended, "template worker was gone; starting another");
                }
                Err(Broken::Overrun) => {
                    worker.kill().await;
                    self.replace();
                    return Err(too_slow().into());
                }
                Err(Broken::During(error)) => {
                    let status = worker.end().await;
                    self.replace();
                    return Err(died(status, &error).into());
                }
            }
        }
        Err(SandboxError::Busy)
    }

    fn take(&self) -> Option<Worker> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put_back(&self, worker: Worker) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < CHILDREN_MAX {
            idle.push(worker);
        }
    }

    /// A new child gets ready while nobody waits for it.
    fn replace(&self) {
        match self.start() {
            Ok(worker) => self.put_back(worker),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "no template worker is warm")
            }
        }
    }

    fn start(&self) -> Result<Worker, SandboxError> {
        let failed = |source| SandboxError::Start { exe: self.exe.clone(), source };
        let mut command = Command::new(&self.exe);
        command
            .args(&self.arguments)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        // An interrupt at the terminal is for the router, which ends its children itself.
        #[cfg(unix)]
        command.process_group(0);
        #[cfg(windows)]
        {
            const CREATE_NO_WINDOW: u32 = 0x0800_0000;
            command.creation_flags(CREATE_NO_WINDOW);
            // Without it the system's source of random numbers cannot be loaded.
            command.envs(std::env::var_os("SystemRoot").map(|root| ("SystemRoot", root)));
        }
        let mut child = command.spawn().map_err(failed)?;
        let missing = || failed(io::Error::other("it has no pipes"));
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let nonce = RandomState::new().build_hasher().finish();
        Ok(Worker { child, stdin, stdout, is_greeted: false, known: HashSet::new(), nonce })
    }

    async fn ended(&self, worker: Worker, error: io::Error) -> SandboxError {
        match worker.end().await {
            Some(status) if status.code() == Some(EXIT_NO_CAP) => SandboxError::Ended {
                exe: self.exe.clone(),
                status: "no CappedAllocator as its global allocator".to_owned(),
            },
            Some(status) => SandboxError::Ended { exe: self.exe.clone(), status: status.to_string() },
            None => SandboxError::Pipe(error),
        }
    }
}

fn too_slow() -> RenderError {
    RenderError::Limit { limit: format!("{} ms", RENDER_DEADLINE.as_millis()) }
}

fn died(status: Option<ExitStatus>, error: &io::Error) -> RenderError {
    match status {
        Some(status) if status.code() == Some(EXIT_MEMORY) => {
            RenderError::Limit { limit: "64 MiB of memory".to_owned() }
        }
        Some(status) if status.code() == Some(EXIT_TIME) => too_slow(),
        Some(status) => RenderError::Failed { message: format!("its process ended with {status}") },
        None => RenderError::Failed { message: format!("its process does not answer: {error}") },
    }
}

impl Worker {
    async fn ask(
        &mut self,
        id: &str,
        source: &TemplateSource,
        request: &RenderRequest,
        schemas: &[Schema],
    ) -> Result<Result<Rendered, RenderError>, Broken> {
        if !self.is_greeted {
            self.greet().await.map_err(Broken::Before)?;
        }
        loop {
            let is_known = self.known.contains(id);
            let ask = Ask {
                template: id.into(),
                source: (!is_known).then_some(std::borrow::Cow::Borrowed(source)),
                nonce: self.nonce,
                request: std::borrow::Cow::Borrowed(request),
                schemas: std::borrow::Cow::Borrowed(schemas),
            };
            let frame = protocol::encode(&ask, REQUEST_BYTES_MAX)
                .map_err(|e| Broken::Before(io::Error::new(io::ErrorKind::InvalidInput, e.to_string())))?;
            let sent = timeout(PIPE_DEADLINE, async {
                self.stdin.write_all(&frame).await?;
                self.stdin.flush().await
            });
            sent.await.map_err(|_| Broken::Before(late()))?.map_err(Broken::Before)?;
            match self.answer(START_DEADLINE).await {
                Ok(Answer::Started) => {}
                Ok(other) => return Err(Broken::Before(unexpected(&other))),
                Err(error) => return Err(Broken::Before(error)),
            }
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(id.to_owned());
            match self.rendered().await {
                Ok(Answer::Done(result)) => {
                    if matches!(result, Err(RenderError::Syntax { .. })) {
                        self.known.remove(id);
                    }
                    return Ok(result);
                }
                // Only a template that is not sent along can be unknown, so this is said once.
                Ok(Answer::UnknownTemplate) if is_known => {
                    self.known.remove(id);
                }
                Ok(other) => return Err(Broken::During(unexpected(&other))),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(Broken::Overrun),
                Err(error) => return Err(Broken::During(error)),
            }
        }
    }

    async fn greet(&mut self) -> io::Result<()> {
        match self.answer(START_DEADLINE).await? {
            Answer::Hello { version: protocol::VERSION } => {
                self.is_greeted = true;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The answer to a request that the child has read.
    async fn rendered(&mut self) -> io::Result<Answer> {
        let begun = Instant::now();
        let used_before = self.child.id().and_then(cpu_time);
        let mut pause = RENDER_DEADLINE;
        // `fill_buf` takes nothing out of the pipe, so giving it up loses nothing.
        while let Err(_elapsed) = timeout(pause, self.stdout.fill_buf()).await {
            let used = self
                .child
                .id()
                .and_then(cpu_time)
                .zip(used_before)
                .map(|(now, before)| now.saturating_sub(before));
            if used.is_none_or(|used| used >= RENDER_DEADLINE) || begun.elapsed() >= BUSY_DEADLINE {
                return Err(late());
            }
            pause = LATE_PAUSE;
        }
        self.answer(PIPE_DEADLINE).await
    }

    /// The deadline is for the answer to begin.
    async fn answer(&mut self, deadline: Duration) -> io::Result<Answer> {
        let mut header = [0; 4];
        timeout(deadline, self.stdout.read_exact(&mut header)).await.map_err(|_| late())??;
        let len = u32::from_le_bytes(header) as usize;
        if len > ANSWER_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of {len} bytes")));
        }
        let mut body = vec![0; len];
        let read = timeout(PIPE_DEADLINE, self.stdout.read_exact(&mut body));
        read.await.map_err(|_| io::Error::other("an answer broke off"))??;
        Ok(serde_json::from_slice(&body)?)
    }

    /// Ends it if it still runs; its status if it ended by itself.
    async fn end(mut self) -> Option<ExitStatus> {
        // The pipe closes a moment before the status is there.
        if let Ok(Ok(status)) = timeout(END_DEADLINE, self.child.wait()).await {
            return Some(status);
        }
        self.kill().await;
        None
    }

    async fn kill(mut self) {
        // A child that cannot be killed within the deadline is killed and reaped by the runtime when dropped.
        let _ = timeout(END_DEADLINE, self.child.kill()).await;
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

fn unexpected(answer: &Answer) -> io::Error {
    let what = match answer {
        Answer::Hello { version } => format!("hello of version {version}"),
        Answer::Started => "start".to_owned(),
        Answer::UnknownTemplate => "unknown template".to_owned(),
        Answer::Done(_) => "result".to_owned(),
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected {what}"))
}
