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
use super::end::{EndCause, WorkerEnd};
use super::watchdog::{Hang, Limits};
use super::{HELLO_TIMEOUT, MESSAGES_MAX, Worker, WorkerError, last_words, starter};
use crate::WorkerProgram;
use crate::engines::Engine;

/// A worker whose pipe has ended gets this long to end by itself, so that its own exit status is reported.
const EXIT_GRACE: Duration = Duration::from_secs(3);
/// For the system to end a process that was killed.
const REAP_TIMEOUT: Duration = Duration::from_secs(30);
/// For what a dead worker left in its pipes, should another process hold them open.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    pub program: WorkerProgram,
    pub engine: Engine,
    /// For log lines.
    pub model: String,
    pub watchdog: Limits,
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
    let (id, version) = (manifest.id.clone(), manifest.version.clone());
    let shared = Arc::new(Shared::new(id, version, spec.model.clone(), spec.watchdog));
    let words = tokio::spawn(last_words::read(stderr, Arc::clone(&shared)));

    let hello = timeout(HELLO_TIMEOUT, hello(&mut stdin, &mut stdout)).await;
    let hello =
        hello.unwrap_or_else(|_| Err(format!("did not say hello within {} s", HELLO_TIMEOUT.as_secs())));
    if let Err(reason) = hello {
        let end = obituary(reap(child, &shared, pid).await, words).await;
        return Err(WorkerError::Hello(format!("the worker of {} {reason}; {end}", spec.engine.label())));
    }

    let kill = CancellationToken::new();
    let (outgoing, frames) = mpsc::channel(MESSAGES_MAX);
    tokio::spawn(write(stdin, frames));
    tokio::spawn(supervise(
        child,
        pid,
        stdout,
        words,
        Arc::clone(&shared),
        kill.clone(),
        spec.engine.clone(),
    ));
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
    pid: u32,
    stdout: ChildStdout,
    words: JoinHandle<Vec<String>>,
    shared: Arc<Shared>,
    kill: CancellationToken,
    // Held to the end: the private copy of its library stays as long.
    _engine: Engine,
) {
    let reading = shared.read(stdout);
    tokio::pin!(reading);
    let garbage = |why: String| {
        shared.expect_end(EndCause::Garbage, why);
        true
    };
    let kill_it = tokio::select! {
        read = reading.as_mut() => read.err().is_some_and(garbage),
        // What it said before it died still counts.
        _ = child.wait() => {
            timeout(LEFTOVERS_TIMEOUT, reading.as_mut()).await.unwrap_or(Ok(())).err().is_some_and(garbage)
        }
        () = kill.cancelled() => {
            // Without another reason: the handle was dropped.
            shared.expect_end(EndCause::Asked, "");
            true
        }
        hang = shared.watch() => {
            shared.expect_end(EndCause::Hung, describe(&hang));
            true
        }
    };
    if kill_it {
        let _ = child.start_kill();
    }
    let status = reap(child, &shared, pid).await;
    let (cause, why) = shared.ending().unwrap_or((EndCause::Crashed, String::new()));
    let end = obituary(status, words).await;
    let engine = format!("engine {} {}", shared.engine_id, shared.engine_version);
    let reason = if why.is_empty() {
        format!("the worker of {engine} ended: {end}")
    } else {
        format!("the worker of {engine} was ended because {why}; {end}")
    };
    let (engine_id, engine_version, model) = (&shared.engine_id, &shared.engine_version, &shared.model);
    match cause {
        // It held no model: the look at an engine.
        EndCause::Asked if model.is_empty() => {
            tracing::debug!(engine_id, engine_version, worker = pid, "a worker ended as asked: {end}");
        }
        EndCause::Asked => {
            tracing::info!(engine_id, engine_version, model, worker = pid, "a worker ended as asked: {end}");
        }
        _ => {
            let cause = cause.name();
            tracing::error!(engine_id, engine_version, model, worker = pid, cause, "{reason}");
        }
    }
    shared.end(WorkerEnd { cause, reason: reason.into() });
}

fn describe(hang: &Hang) -> String {
    let Hang { what, doing, after } = hang;
    format!("it hung: it {what} for {} s while it was to {doing}", after.as_secs_f32())
}

/// Waits for the process to be gone, and its memory with it. One that does not go by itself is killed; one that the
/// system cannot end (stuck in a driver) is left to a task, after it was said.
async fn reap(mut child: Child, shared: &Shared, pid: u32) -> String {
    if let Ok(status) = timeout(EXIT_GRACE, child.wait()).await {
        return word(status);
    }
    let _ = child.start_kill();
    if let Ok(status) = timeout(REAP_TIMEOUT, child.wait()).await {
        return word(status);
    }
    tracing::error!(
        engine_id = shared.engine_id,
        engine_version = shared.engine_version,
        model = shared.model,
        worker = pid,
        "the system does not end process {pid}, which was killed; its memory stays taken until it does"
    );
    tokio::spawn(async move {
        let _ = child.wait().await;
        tracing::warn!("process {pid}, killed before, has ended now");
    });
    format!("killed, and not gone within {} s", REAP_TIMEOUT.as_secs())
}

/// Words a process's end: exit status, then what it said last.
async fn obituary(status: String, mut words: JoinHandle<Vec<String>>) -> String {
    let last = match timeout(LEFTOVERS_TIMEOUT, &mut words).await {
        Ok(last) => last.unwrap_or_default(),
        Err(_) => {
            words.abort();
            Vec::new()
        }
    };
    if last.is_empty() { status } else { format!("{status}; its last words: {}", last.join(" | ")) }
}

fn word(status: std::io::Result<ExitStatus>) -> String {
    status.map_or_else(|e| format!("its exit status is unknown: {e}"), |status| word_status(&status))
}

fn word_status(status: &ExitStatus) -> String {
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
