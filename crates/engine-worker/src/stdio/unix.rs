//! File descriptors 0 and 1 on Unix.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use super::{NOTHING, Pipes};

pub fn keep() -> io::Result<Pipes> {
    // Duplicates are above 2 and closed on exec.
    Ok(Pipes {
        input: io::stdin().as_fd().try_clone_to_owned()?.into(),
        output: io::stdout().as_fd().try_clone_to_owned()?.into(),
    })
}

pub fn replace() -> io::Result<()> {
    let nothing = File::open(NOTHING)?;
    duplicate(nothing.as_raw_fd(), libc::STDIN_FILENO)?;
    duplicate(libc::STDERR_FILENO, libc::STDOUT_FILENO)
}

fn duplicate(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: both are plain numbers of open descriptors; 0 and 1 are owned by nobody in Rust.
    if unsafe { libc::dup2(from, to) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
