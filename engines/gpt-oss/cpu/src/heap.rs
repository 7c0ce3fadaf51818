//! What becomes of memory that a step gives back.

/// So much of it stays with the process: more than a step of many prompts' tokens takes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: i32 = 128 << 20;
/// Pieces up to this size come from there: the most that the C library allows.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const PIECE_BYTES: i32 = 32 << 20;

/// From now on this process keeps what it frees, for the next step. Each layer asks for some megabytes; given back to the
/// system, they are cleared and brought back page by page, which was 5 % of a step of 16 sequences. Does nothing where the
/// C library is not glibc.
pub fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: only numbers are passed, and the allocator takes its own lock.
    unsafe {
        // Refused, it stays as it was.
        libc::mallopt(libc::M_MMAP_THRESHOLD, PIECE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}
