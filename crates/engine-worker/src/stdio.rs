//! Moves the two pipes away from stdin and stdout before a plugin can touch them.

use std::fs::File;
use std::io;

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix::{keep, replace};
#[cfg(windows)]
use windows::{keep, replace};

/// The node's pipes under private handles that no child process inherits.
pub struct Pipes {
    pub input: File,
    pub output: File,
}

/// Takes the pipes. Afterwards stdin is at its end and stdout is stderr, for Rust, for C and for the system's calls.
pub fn take_pipes() -> io::Result<Pipes> {
    let pipes = keep()?;
    replace()?;
    Ok(pipes)
}

/// The device that is always empty.
const NOTHING: &str = if cfg!(windows) { "NUL" } else { "/dev/null" };
