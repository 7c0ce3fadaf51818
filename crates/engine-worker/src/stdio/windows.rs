//! Standard handles and the C runtime's descriptors on Windows.

use std::fs::OpenOptions;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, IntoRawHandle, OwnedHandle};

use windows_sys::Win32::System::Console::{STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, SetStdHandle};

use super::{NOTHING, Pipes};

const C_STDIN: i32 = 0;
const C_STDOUT: i32 = 1;

pub fn keep() -> io::Result<Pipes> {
    // Duplicates that children do not inherit.
    Ok(Pipes {
        input: io::stdin().as_handle().try_clone_to_owned()?.into(),
        output: io::stdout().as_handle().try_clone_to_owned()?.into(),
    })
}

pub fn replace() -> io::Result<()> {
    let nothing: OwnedHandle = OpenOptions::new().read(true).write(true).open(NOTHING)?.into();
    let errors = io::stderr().as_handle().try_clone_to_owned()?;
    // The C runtime this program shares with most plugins first: its dup2 also closes the pipe's old handle. A
    // plugin with a runtime of its own reads the standard handles when it is opened.
    set_c_descriptor(C_STDIN, nothing.try_clone()?, libc::O_RDONLY)?;
    set_c_descriptor(C_STDOUT, errors.try_clone()?, libc::O_WRONLY)?;
    set_standard_handle(STD_INPUT_HANDLE, nothing)?;
    set_standard_handle(STD_OUTPUT_HANDLE, errors)
}

/// The handle is given away: it lives as long as the process.
fn set_standard_handle(which: u32, handle: OwnedHandle) -> io::Result<()> {
    // SAFETY: the handle is open, and nobody closes it after into_raw_handle.
    let done = unsafe { SetStdHandle(which, handle.into_raw_handle()) };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_c_descriptor(to: i32, handle: OwnedHandle, flags: i32) -> io::Result<()> {
    // SAFETY: the handle is open; on success the descriptor owns it, which `forget` below respects.
    let from = unsafe { libc::open_osfhandle(handle.as_raw_handle() as libc::intptr_t, flags) };
    if from < 0 {
        return Err(io::Error::last_os_error());
    }
    std::mem::forget(handle);
    // SAFETY: `from` was opened above. `to` may be closed already, which dup2 allows.
    let done = unsafe { libc::dup2(from, to) };
    // SAFETY: `from` is ours and not used again.
    unsafe { libc::close(from) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
