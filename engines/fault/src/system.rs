//! Misdeeds that need the system's help.
#![expect(unsafe_code, reason = "it has to crash, and to do what no engine may")]

/// An address in the first page, and aligned.
const FIRST_PAGE: usize = 8;

/// Reads from the first page, which no process has.
pub fn segfault() {
    let nowhere = std::hint::black_box(std::ptr::without_provenance::<u64>(FIRST_PAGE));
    // SAFETY: there is none. The fault that the kernel answers with is what is asked for.
    let read = unsafe { nowhere.read_volatile() };
    std::hint::black_box(read);
}

/// Bytes that are no frame, into whatever pipe this process has open.
#[cfg(unix)]
pub fn scribble() {
    const DESCRIPTORS_MAX: i32 = 256;
    let garbage = [0xFF_u8; 64];
    for descriptor in 3..DESCRIPTORS_MAX {
        if is_pipe(descriptor) {
            // SAFETY: the buffer is ours; a descriptor that cannot be written to answers with an error.
            unsafe { libc::write(descriptor, garbage.as_ptr().cast(), garbage.len()) };
        }
    }
}

/// Windows names no open pipes to a process; its standard handles are all an engine could find, and they are only a log.
#[cfg(windows)]
pub fn scribble() {
    use std::io::Write as _;
    let garbage = [0xFF_u8; 64];
    // Who closed it does not want to hear it.
    let _ = std::io::stdout().write_all(&garbage);
    std::process::exit(SCRIBBLED);
}

/// What a process that cannot write garbage ends with.
#[cfg(windows)]
const SCRIBBLED: i32 = 86;

#[cfg(unix)]
fn is_pipe(descriptor: i32) -> bool {
    // SAFETY: numbers only; it is written before it is read.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the output is ours; a descriptor that is not open answers with an error.
    let known = unsafe { libc::fstat(descriptor, &raw mut stat) } == 0;
    known && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
}

/// Signals ignored, no signal from the kernel at the parent's death, and a pipe of our own in the place of every pipe
/// that is read from: the next read of it waits for ever. What was replaced stays open elsewhere, so that who writes to
/// it is not told.
#[cfg(unix)]
pub fn ignore_end() {
    const DESCRIPTORS_MAX: i32 = 256;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE, libc::SIGQUIT] {
        // SAFETY: a known signal and a known disposition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    #[cfg(target_os = "linux")]
    // SAFETY: two numbers; no signal is asked for.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, 0)
    };
    let mut ends = [0; 2];
    // SAFETY: an array of two, as pipe wants it. Neither end is ever closed.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return;
    }
    for descriptor in (3..DESCRIPTORS_MAX).filter(|d| !ends.contains(d) && is_pipe(*d)) {
        // SAFETY: asks for flags.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
        if flags >= 0 && flags & libc::O_ACCMODE == libc::O_RDONLY {
            // SAFETY: both are open; what is replaced was given another number before.
            unsafe {
                libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, DESCRIPTORS_MAX);
                libc::dup2(ends[0], descriptor)
            };
        }
    }
}

/// Nothing can be ignored there: a job object ends its processes without asking. What is left is to sit still.
#[cfg(windows)]
pub fn ignore_end() {
    std::thread::spawn(|| {
        loop {
            crate::act::pause(std::time::Duration::from_secs(3600));
        }
    });
}
