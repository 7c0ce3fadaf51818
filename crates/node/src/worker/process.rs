//! Starts a worker's process, watches it, and tells its end.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use engine_protocol::{
    EngineInfo, HELLO_BYTES, Hello, LogLevel, Open, PROTOCOL_VERSION, ToWorker, is_worker_variable,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connection::Shared;
use super::{HELLO_TIMEOUT, MESSAGES_MAX, Worker, WorkerError, last_words, starter};
use crate::WorkerProgram;
use crate::engines::Engine;

/// A worker whose pipe has ended gets this long to end by itself, so that its own exit status is reported.
const EXIT_GRACE: Duration = Duration::from_secs(3);
/// For what a dead worker left in its pipes, should another process hold them open.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    pub program: WorkerProgram,
    pub engine: Engine,
    /// For log lines.
    pub model: String,
}

/// Starts the process, says hello, and has it open the plugin.
pub async fn start(spec: &WorkerSpec) -> Result<(Worker, EngineInfo), WorkerError> {
    let manifest = &spec.engine.manifest;
    let program = spec.program.executable.display().to_string();
    let failed = |reason: String| WorkerError::Start { program: program.clone(), reason };
    let mut command = Command::new(&spec.program.executable);
    command
        .args(&spec.program.arguments)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_worker_variable)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    // No console window flashes up, and Ctrl-C in the node's console is the node's to handle.
    #[cfg(windows)]
    command.creation_flags(0x0800_0000 | 0x0000_0200);
    #[cfg(unix)]
    command.process_group(0);

    let mut child = starter::spawn(command).await.map_err(|e| failed(e.to_string()))?;
    let pid = child.id().unwrap_or_default();
    #[cfg(windows)]
    job::tie(&child).map_err(|e| failed(format!("it cannot be tied to the node: {e}")))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(mut stdout), Some(stderr)) = pipes else {
        return Err(failed("it has no pipes".to_owned()));
    };
    let shared = Arc::new(Shared::new(manifest.id.clone(), manifest.version.clone(), spec.model.clone()));
    let words = tokio::spawn(last_words::read(stderr, Arc::clone(&shared)));

    let hello = timeout(HELLO_TIMEOUT, hello(&mut stdin, &mut stdout)).await;
    let hello =
        hello.unwrap_or_else(|_| Err(format!("did not say hello within {} s", HELLO_TIMEOUT.as_secs())));
    if let Err(reason) = hello {
        let end = obituary(child, words).await;
        return Err(WorkerError::Hello(format!("the worker of {} {reason}; {end}", spec.engine.label())));
    }

    let kill = CancellationToken::new();
    let (outgoing, frames) = mpsc::channel(MESSAGES_MAX);
    tokio::spawn(write(stdin, frames));
    tokio::spawn(supervise(child, stdout, words, Arc::clone(&shared), kill.clone()));
    let worker =
        Worker { pid, shared, outgoing, next: AtomicU64::new(1), _kill: kill.clone().drop_guard(), kill };
    let open = Open {
        library: spec.engine.library.display().to_string(),
        engine_id: manifest.id.clone(),
        engine_version: manifest.version.clone(),
        log_level: log_level(manifest.log_level.as_deref()),
    };
    let info = worker.open(&ToWorker::Open(open)).await?;
    Ok((worker, info))
}

async fn hello(stdin: &mut ChildStdin, stdout: &mut ChildStdout) -> Result<(), String> {
    let ours = Hello { protocol_version: PROTOCOL_VERSION, process_id: std::process::id() };
    // One that has died already is found out by reading, with a better reason.
    let _ = stdin.write_all(&ours.to_bytes()).await;
    let mut bytes = [0; HELLO_BYTES];
    stdout.read_exact(&mut bytes).await.map_err(|_| "ended before it said hello".to_owned())?;
    let theirs = Hello::from_bytes(bytes).map_err(|e| e.to_string())?;
    match theirs.protocol_version {
        PROTOCOL_VERSION => Ok(()),
        other => {
            Err(format!("speaks protocol {other} and this node {PROTOCOL_VERSION}: is it of the same build?"))
        }
    }
}

async fn write(mut stdin: ChildStdin, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(mut bytes) = frames.recv().await {
        while let Ok(more) = frames.try_recv() {
            bytes.extend_from_slice(&more);
        }
        // A broken pipe means that the worker is gone; the supervising task tells.
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Owns the process to its end.
async fn supervise(
    mut child: Child,
    stdout: ChildStdout,
    words: JoinHandle<Vec<String>>,
    shared: Arc<Shared>,
    kill: CancellationToken,
) {
    let reading = shared.read(stdout);
    tokio::pin!(reading);
    let why = tokio::select! {
        read = reading.as_mut() => read.err(),
        // What it said before it died still counts.
        _ = child.wait() => timeout(LEFTOVERS_TIMEOUT, reading.as_mut()).await.unwrap_or(Ok(())).err(),
        () = kill.cancelled() => {
            let _ = child.start_kill();
            shared.expect_end();
            None
        }
    };
    if why.is_some() {
        // It talks nonsense: no reason to wait for more of it.
        let _ = child.start_kill();
    }
    let end = obituary(child, words).await;
    let reason = match why {
        Some(why) => format!("the worker of engine {} was ended because {why}; {end}", shared.engine_id),
        None => format!("the worker of engine {} ended: {end}", shared.engine_id),
    };
    if shared.is_end_expected() && shared.model.is_empty() {
        // It held no model: the look at an engine when the node starts.
        tracing::debug!(engine_id = shared.engine_id, "a worker ended as asked: {end}");
    } else if shared.is_end_expected() {
        tracing::info!(engine_id = shared.engine_id, model = shared.model, "a worker ended as asked: {end}");
    } else {
        tracing::error!(
            engine_id = shared.engine_id,
            engine_version = shared.engine_version,
            model = shared.model,
            "{reason}"
        );
    }
    shared.end(reason.into());
}

/// Reaps the process and words its end: exit status, then what it said last.
async fn obituary(mut child: Child, words: JoinHandle<Vec<String>>) -> String {
    let status = match timeout(EXIT_GRACE, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            let _ = child.start_kill();
            child.wait().await
        }
    };
    let status = status.map_or_else(|e| format!("its exit status is unknown: {e}"), |status| word(&status));
    let mut words = words;
    let last = match timeout(LEFTOVERS_TIMEOUT, &mut words).await {
        Ok(last) => last.unwrap_or_default(),
        Err(_) => {
            words.abort();
            Vec::new()
        }
    };
    if last.is_empty() { status } else { format!("{status}; its last words: {}", last.join(" | ")) }
}

fn word(status: &ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(status) {
        return match signal {
            4 => "killed by signal 4 (SIGILL: this processor lacks an instruction)".to_owned(),
            6 => "killed by signal 6 (SIGABRT)".to_owned(),
            7 => "killed by signal 7 (SIGBUS: was a model file cut?)".to_owned(),
            9 => "killed by signal 9 (SIGKILL: by somebody, or by the system for lack of memory)".to_owned(),
            11 => "killed by signal 11 (SIGSEGV)".to_owned(),
            other => format!("killed by signal {other}"),
        };
    }
    match status.code() {
        Some(code) => format!("exit status {code}"),
        None => "no exit status".to_owned(),
    }
}

fn log_level(name: Option<&str>) -> LogLevel {
    match name {
        Some("error") => LogLevel::Error,
        Some("warn") => LogLevel::Warn,
        Some("debug") => LogLevel::Debug,
        Some("trace") => LogLevel::Trace,
        _ => LogLevel::Info,
    }
}

#[cfg(windows)]
mod job {
    //! One job for all workers: the system ends them with the last handle to it, which ends with the node.

    use std::io::{Error, Result};
    use std::sync::OnceLock;

    use tokio::process::Child;
    use win32job::{ExtendedLimitInfo, Job};

    pub fn tie(child: &Child) -> Result<()> {
        static JOB: OnceLock<std::result::Result<Job, String>> = OnceLock::new();
        let job = JOB.get_or_init(|| {
            let mut limits = ExtendedLimitInfo::new();
            limits.limit_kill_on_job_close();
            Job::create_with_limit_info(&limits).map_err(|e| e.to_string())
        });
        let job = job.as_ref().map_err(|reason| Error::other(reason.clone()))?;
        // Without a handle it has ended already.
        let Some(handle) = child.raw_handle() else { return Ok(()) };
        job.assign_process(handle as isize).map_err(Error::other)
    }
}
