//! The thread that reads what the node sends, and ends the process when the node is gone.

use std::fs::File;
use std::io::{self, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use engine_protocol::{FrameReader, ToWorker};

use crate::error::WorkerError;
use crate::inbox::Inbox;
use crate::{exit_code, lifetime, report, say};

/// One read takes at most this much: a prompt of a few thousand tokens.
const READ_BYTES: usize = 64 << 10;
/// How long the engine may take to unload when the node has asked for the end and closed its side.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub fn start(input: File, inbox: &'static Inbox) -> io::Result<()> {
    thread::Builder::new().name("node-reader".to_owned()).spawn(move || read(input, inbox))?;
    Ok(())
}

fn read(mut input: File, inbox: &'static Inbox) {
    let mut frames = FrameReader::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => end_of_input(inbox),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A broken pipe is how Windows says end of input.
            Err(_) => end_of_input(inbox),
        };
        frames.extend(&buffer[..count]);
        let mut messages = Vec::new();
        loop {
            match frames.next::<ToWorker>() {
                Ok(None) => break,
                Ok(Some(message)) => messages.push(message),
                Err(error) => {
                    let error = WorkerError::Frame(error);
                    report(&error);
                    lifetime::end_without_flush(error.exit_code());
                }
            }
        }
        if let Err(full) = inbox.put(messages) {
            report(&full);
            lifetime::end_without_flush(exit_code::PROTOCOL);
        }
    }
}

/// The node is gone, or has asked for the end and said all it had to say.
fn end_of_input(inbox: &Inbox) -> ! {
    if !inbox.stopping() {
        lifetime::end_without_flush(exit_code::NODE_GONE);
    }
    // The engine thread ends the process; this one sees to it that it ends in any case.
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
    }
    say(&format!("engine worker: the engine did not unload within {} s", SHUTDOWN_TIMEOUT.as_secs()));
    lifetime::end_without_flush(exit_code::SHUTDOWN_HANGS)
}
