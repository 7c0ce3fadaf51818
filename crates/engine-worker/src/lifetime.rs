//! How the process ends: at once, with its node, and never silently after a panic.

use std::io::Write as _;

use crate::exit_code;

/// Ends the process without running any destructor of a library: those of drivers are known to hang. What C code has
/// printed and not flushed is flushed.
pub fn end_now(code: u8) -> ! {
    let _ = std::io::stderr().flush();
    flush_c_streams();
    leave(code)
}

/// Ends the process while another thread may hang inside the C library, holding the lock of a stream.
pub fn end_without_flush(code: u8) -> ! {
    leave(code)
}

#[cfg(unix)]
fn leave(code: u8) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

#[cfg(windows)]
fn leave(code: u8) -> ! {
    use windows_sys::Win32::System::Threading::{GetCurrentProcess, TerminateProcess};
    // SAFETY: the pseudo handle of this process is always valid. ExitProcess would run the libraries' DllMain.
    unsafe { TerminateProcess(GetCurrentProcess(), u32::from(code)) };
    std::process::abort()
}

/// Writes out what plugins printed through C's buffered streams, so that it is in the log when it matters.
pub fn flush_c_streams() {
    // SAFETY: a null stream means all output streams; fflush locks each while it writes.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// A panic in any thread of the worker prints its place and ends the process: half a worker serves nobody.
pub fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        crate::say("engine worker: a mistake in the worker itself, please report it");
        print(info);
        end_without_flush(exit_code::PANIC)
    }));
}

/// Asks the kernel to kill this process when the thread that started it ends.
#[cfg(target_os = "linux")]
pub fn end_with_parent() {
    // SAFETY: two numbers; the call cannot fail with a valid signal.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// The process that started this one, if the system can tell. After the request above: one that died before it has
/// been replaced by now.
#[cfg(unix)]
pub fn parent() -> Option<u32> {
    Some(std::os::unix::process::parent_id())
}

/// A second line behind the end of input and the kernel: a thread that looks whether the process still has the parent it
/// began with. An engine that reads the pipe away, or a system that sends no signal, does not keep a worker alive.
#[cfg(unix)]
pub fn watch_parent() -> std::io::Result<()> {
    use std::time::{Duration, Instant};
    /// Two system calls a second; an orphan lives no longer than that.
    const INTERVAL: Duration = Duration::from_secs(1);
    let node = parent();
    let watch = move || {
        loop {
            let next = Instant::now() + INTERVAL;
            while let Some(left) = next.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
            if parent() != node {
                end_without_flush(exit_code::NODE_GONE);
            }
        }
    };
    std::thread::Builder::new().name("parent-watch".to_owned()).spawn(watch).map(drop)
}

#[cfg(not(unix))]
pub fn parent() -> Option<u32> {
    None
}
