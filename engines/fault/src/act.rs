//! The misdeeds themselves.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use engine_sdk::{Progress, Status, StatusCode};
use serde::Deserialize;

use crate::{memory, system};

/// Between two signs of life, and two looks at a file.
pub const TICK: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// Ends the process as if all were well, or with another code.
    Exit {
        code: i32,
    },
    Abort,
    /// Reads where nothing is.
    Segfault,
    /// The SDK turns it into INTERNAL.
    Panic,
    /// Never comes back and says nothing.
    Hang,
    /// The same, using a processor.
    Spin,
    /// Never comes back, and says all the time that it moves while nothing rises.
    HangTalking,
    /// A stall: so long without a sign of life, then goes on.
    Pause {
        ms: u64,
    },
    /// Waits for a file to appear; with signs of life unless it is silent.
    Hold {
        file: PathBuf,
        #[serde(default)]
        silent: bool,
    },
    /// Takes more memory at every call and never gives it back.
    Leak {
        bytes: u64,
    },
    /// Takes memory beyond what it said, once.
    Take {
        bytes: u64,
    },
    /// Bytes that are no text, on stdout and stderr.
    Print {
        bytes: u64,
    },
    /// Writes to every pipe the process has, that to the node included.
    Scribble,
    /// From now on outlives what should end it: the end of its input, its node's death, signals that can be ignored.
    IgnoreEnd,
    /// In an estimate: all its bytes times this.
    Scale {
        factor: f64,
    },
    /// Answers with this status.
    Fail(Failure),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// One of the ABI's ten.
    pub code: i32,
    pub reason: String,
    pub message: String,
    #[serde(default)]
    pub needed: u64,
    #[serde(default)]
    pub available: u64,
}

impl Failure {
    pub fn status(&self) -> Status {
        Status::new(code(self.code), self.reason.clone(), self.message.clone())
            .with_numbers(self.needed, self.available)
    }
}

fn code(number: i32) -> StatusCode {
    use StatusCode::{
        AbiMismatch, Cancelled, Internal, LoadFailed, ModelCorrupt, OomRam, OomVram, Timeout, Unsupported,
    };
    let codes =
        [OomVram, OomRam, ModelCorrupt, Timeout, Cancelled, Unsupported, Internal, AbiMismatch, LoadFailed];
    codes.into_iter().find(|code| *code as i32 == number).unwrap_or(Internal)
}

/// Does it; comes back where the misdeed lets it.
pub fn perform(act: &Act, devices: &[String], mut progress: Option<&mut Progress<'_>>) -> Result<(), Status> {
    match act {
        Act::Exit { code } => std::process::exit(*code),
        Act::Abort => std::process::abort(),
        Act::Segfault => system::segfault(),
        Act::Panic => panic!("asked to panic"),
        Act::Hang => loop {
            pause(Duration::from_secs(3600));
        },
        Act::Spin => loop {
            std::hint::spin_loop();
        },
        Act::HangTalking => loop {
            alive(progress.as_deref_mut())?;
            pause(TICK);
        },
        Act::Pause { ms } => pause(Duration::from_millis(*ms)),
        Act::Hold { file, silent } => {
            while !file.exists() {
                if !silent {
                    alive(progress.as_deref_mut())?;
                }
                pause(TICK);
            }
        }
        Act::Leak { bytes } | Act::Take { bytes } => memory::take(*bytes, devices),
        Act::Print { bytes } => print(*bytes),
        Act::Scribble => system::scribble(),
        Act::IgnoreEnd => system::ignore_end(),
        // Asked for where the estimate is made.
        Act::Scale { .. } => {}
        Act::Fail(failure) => return Err(failure.status()),
    }
    Ok(())
}

/// A sign of life that says of no progress.
fn alive(progress: Option<&mut Progress<'_>>) -> Result<(), Status> {
    progress.map_or(Ok(()), |progress| progress.report(0, 0))
}

/// Waits so long and says meanwhile that it lives; `done` of `total` is what it says.
pub fn wait_alive(time: Duration, progress: &mut Progress<'_>, done: u64, total: u64) -> Result<(), Status> {
    let end = Instant::now() + time;
    loop {
        progress.report(done, total)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        pause(left.min(TICK));
    }
}

#[expect(clippy::disallowed_methods, reason = "being slow is what this engine is asked for")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Every byte there is, over and over: no line in it is UTF-8, and some have no end.
fn print(bytes: u64) {
    let all: Vec<u8> = (0..=255).cycle().take(usize::try_from(bytes).unwrap_or(usize::MAX)).collect();
    // Who closed them does not want to hear it.
    let _ = std::io::stdout().write_all(&all).and_then(|()| std::io::stdout().flush());
    let _ = std::io::stderr().write_all(&all);
}
