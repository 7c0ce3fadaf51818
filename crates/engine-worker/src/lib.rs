//! The process that holds one engine plugin and at most one model, and serves its node over two pipes.
//!
//! Started with the pipes as stdin and stdout. Before anything of the plugin runs they are moved to private handles,
//! stdin reads nothing and stdout is stderr, so that whatever a plugin prints lands in the node's log and never in the
//! protocol. The first thread is the engine's (every call into the plugin but `cancel`), one reads what the node sends,
//! one looks whether the node is still there, and whoever has something to say writes it under a lock, whole frames at a time.
//!
//! **Invariant:** the process ends when its node does. The reading thread ends it at the end of input whatever the
//! engine is doing; on Linux the kernel kills it too. The library is never closed: the end of the process unloads it.

mod abi_in;
mod abi_out;
mod callbacks;
mod engine;
mod error;
mod handshake;
mod inbox;
mod lifetime;
mod outbox;
mod plugin;
mod reader;
mod serve;
mod stdio;

use std::io::Write as _;
use std::process::ExitCode;

use error::WorkerError;

/// Exit codes of a worker, for whoever reads the node's log. 0: asked to shut down, and did.
pub mod exit_code {
    /// The pipes could not be moved, or writing to the node failed.
    pub const PIPES: u8 = 2;
    /// The other side is not a node, or one of another version, or sent what cannot be understood.
    pub const PROTOCOL: u8 = 3;
    /// The node has gone.
    pub const NODE_GONE: u8 = 4;
    /// Shutdown was asked for, and the engine did not come to an end.
    pub const SHUTDOWN_HANGS: u8 = 5;
    /// The device has failed, as the engine said: another process may have it work again.
    pub const DEVICE: u8 = 6;
    /// A mistake in the worker itself; stderr has its place.
    pub const PANIC: u8 = 101;
}

/// Runs a worker until its node is done with it. Does not return while the plugin's code could still run.
pub fn main() -> ExitCode {
    lifetime::end_on_panic();
    let code = match run() {
        Ok(()) => 0,
        Err(error) => {
            report(&error);
            error.exit_code()
        }
    };
    lifetime::end_now(code)
}

fn run() -> Result<(), WorkerError> {
    let pipes = stdio::take_pipes().map_err(WorkerError::Pipes)?;
    // Elsewhere the end of input is what tells: the pipe closes with the node. On Windows the node's job object kills too.
    #[cfg(target_os = "linux")]
    lifetime::end_with_parent();
    let (input, output) = handshake::hello(pipes)?;
    #[cfg(unix)]
    lifetime::watch_parent().map_err(WorkerError::Thread)?;
    let outbox: &'static outbox::Outbox = Box::leak(Box::new(outbox::Outbox::new(output)));
    let inbox: &'static inbox::Inbox = Box::leak(Box::default());
    reader::start(input, inbox).map_err(WorkerError::Thread)?;
    serve::serve(inbox, outbox)
}

/// One line on stderr with the whole chain of causes: the last words the node reports.
fn report(error: &(dyn std::error::Error + 'static)) {
    say(&format!("engine worker: {}", plugin::chain(error)));
}

/// A line on stderr. Unlike `eprintln!` it does not panic when nobody is there to read it.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
